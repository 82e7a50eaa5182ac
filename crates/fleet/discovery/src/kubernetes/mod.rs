//! Agents in a Kubernetes cluster. The only place here that knows Kubernetes.
//!
//! An agent publishes its record in the custom resource `DynamoWorkerMetadata` of its pod, which
//! Dynamo's workers use too: under `spec.data.stator_agents`, a map from agent to record as text,
//! beside what others keep there. Text, because the API server reads large numbers as floating
//! point, and identities of workers are large. The pod owns the resource, so it dies with the
//! pod; an agent is there while its pod is ready and not being deleted.

mod entry;
mod objects;
#[cfg(test)]
mod tests;
mod watcher;

pub(crate) use entry::KubernetesEntry;
pub(crate) use watcher::KubernetesWatcher;

use crate::DiscoveryError;
use crate::source::KubernetesSource;
use stator_kube::{Cluster, ConnectError, Resource};
use stator_protos::discovery::AgentRecord;

/// The custom resource in which agents publish.
const METADATA: Resource =
    Resource { group: "nvidia.com", version: "v1alpha1", plural: "dynamoworkermetadatas" };
/// The endpoints of services.
const SLICES: Resource =
    Resource { group: "discovery.k8s.io", version: "v1", plural: "endpointslices" };

impl From<ConnectError> for DiscoveryError {
    fn from(error: ConnectError) -> Self {
        Self::Unconfigured(error.to_string())
    }
}

/// Reads an object as a custom resource, a pod and an EndpointSlice: the records that it holds, and
/// how many pods it calls ready. For fuzz targets.
pub(crate) fn object(json: &str) -> (Vec<Result<AgentRecord, String>>, usize) {
    let published = objects::published(json).ok().flatten().unwrap_or_default();
    let records = published.agents.into_values().map(|read| read.map(|read| (*read).clone()));
    let pods = [objects::listed_pod(json), objects::listed_in_slice(json)];
    let ready = pods.into_iter().filter_map(|pods| pods.ok().flatten()).flatten();
    (records.collect(), ready.filter(|pod| pod.is_ready).count())
}

/// A connection, and the namespace to look in.
async fn connect(source: &KubernetesSource) -> Result<(Cluster, String), DiscoveryError> {
    let cluster = Cluster::connect(source.kubeconfig.as_deref()).await?;
    let namespace = source.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
    Ok((cluster, namespace))
}
