//! Objects that a graph needs, as plain values: a graph's components and what they share, and each
//! component's workload and Service.
//!
//! Nothing here asks a cluster. [`graph::objects`] makes components of a graph, and
//! [`workload::objects`] makes workloads of a component.

pub(crate) mod cliques;
mod document;
mod generation;
pub(crate) mod graph;
mod ingress;
mod instance;
mod multinode;
mod nearness;
pub(crate) mod nodes;
pub(crate) mod planner;
mod pod;
mod provider;
mod shared;
mod unsupported;
pub(crate) mod workload;

pub(crate) use instance::Instance;
pub(crate) use pod::model_hash;
pub(crate) use provider::{ClusterApis, NodeSets, PROVIDER, wants_cliques};
pub(crate) use unsupported::of_older_form;

use crate::translate::{Note, Substitutes};
use ring::digest;
use serde_json::{Map, Value, json};

/// Version of Dynamo's operator whose objects these are.
const FOLLOWS: &str = "1.5.0";

/// Choices that hold for all graphs.
#[derive(Clone, Debug)]
pub(crate) struct OperatorSettings {
    /// Version in the annotation of new graphs.
    pub(crate) origin_version: String,
    pub(crate) substitutes: Substitutes,
    /// Whether containers that run Dynamo's modules run stator's roles instead.
    pub(crate) translates: bool,
    /// Secrets for registries, which all pods get.
    pub(crate) pull_secrets: Vec<String>,
}

impl OperatorSettings {
    /// Settings that put stator's roles in the place of Dynamo's modules.
    pub(crate) fn new(substitutes: Substitutes) -> Self {
        let (translates, pull_secrets) = (true, Vec::new());
        Self { origin_version: FOLLOWS.to_owned(), substitutes, translates, pull_secrets }
    }
}

/// Objects, and what of the document has no effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WantedObjects {
    pub(crate) objects: Vec<Value>,
    pub(crate) notes: Vec<Note>,
}

/// An object of the cluster.
fn object(version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": namespace });
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata })
}

/// First hexadecimal digits of the SHA-256 of bytes.
fn hex(bytes: &[u8], digits: usize) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().iter().take(digits / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// As [`hex`], of a value, whatever the order of its fields.
pub(crate) fn hash_of(value: &Value, digits: usize) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    hex(value.to_string().as_bytes(), digits)
}

/// A name with the label's prefix.
pub(crate) fn label(name: &str) -> String {
    format!("nvidia.com/{name}")
}

/// Strings of an object's metadata: its labels or its annotations.
fn strings(metadata: &Value, part: &str) -> Map<String, Value> {
    metadata[part].as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests;
