//! Answers of discovery's back-ends, for fuzz targets.

use crate::etcd;
use crate::kubernetes;
use crate::record;
use stator_protos::discovery::AgentRecord;

/// Reads the record of an agent named `a`.
///
/// # Errors
///
/// The fault.
pub fn record(bytes: &[u8]) -> Result<AgentRecord, String> {
    record::decode(bytes, "a")
}

/// Reads an answer of etcd to a question for keys: the names of agents with what their keys hold.
pub fn etcd_range(bytes: &[u8]) -> Vec<(String, Result<AgentRecord, String>)> {
    etcd::range(bytes)
}

/// Reads an object of the Kubernetes API as a custom resource, a pod and an EndpointSlice; gives the
/// records that it holds, and the pods that it calls ready.
pub fn kubernetes_object(json: &str) -> (Vec<Result<AgentRecord, String>>, usize) {
    kubernetes::object(json)
}
