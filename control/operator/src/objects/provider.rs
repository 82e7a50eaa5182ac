//! Ways to make a graph's pods, of which a cluster serves some.

use super::label;
use serde_json::Value;

/// Interfaces of a cluster that a plan depends on, beside those that every cluster has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClusterApis {
    /// Grove's sets of cliques.
    pub(crate) clique_sets: bool,
    pub(crate) leader_worker_sets: bool,
    /// Version of Kubernetes' own groups of pods that are bound together or not at all.
    pub(crate) pod_groups: Option<&'static str>,
}

impl ClusterApis {
    /// Interfaces of a cluster that nobody has asked.
    pub(crate) const USUAL: Self =
        Self { clique_sets: false, leader_worker_sets: true, pod_groups: None };
}

/// Objects that the pods of one engine on several nodes come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NodeSets {
    /// A LeaderWorkerSet, whose controller makes groups of pods.
    LeaderWorker,
    /// StatefulSets of a leader and of workers for each engine, and the version of the PodGroup that
    /// binds them together, if the cluster has any.
    Stateful(Option<&'static str>),
    /// Cliques of Grove's.
    Cliques,
}

impl NodeSets {
    /// The best that a cluster serves for a component by itself.
    pub(crate) fn of(apis: ClusterApis) -> Self {
        match apis.leader_worker_sets {
            true => Self::LeaderWorker,
            false => Self::Stateful(apis.pod_groups),
        }
    }
}

/// Annotation that says which kind of objects a graph becomes: `component` or `grove`.
pub(crate) const PROVIDER: &str = "workload-provider";
/// Annotation that keeps a graph from Grove where its value is `false`.
const ENABLE_GROVE: &str = "enable-grove";

/// Whether a graph's pods are to come from Grove.
///
/// # Errors
///
/// For a graph that names Grove where it is missing.
pub(crate) fn wants_cliques(document: &Value, apis: ClusterApis) -> Result<bool, String> {
    let annotations = &document["metadata"]["annotations"];
    match annotations[label(PROVIDER)].as_str() {
        Some("grove") if !apis.clique_sets => Err(format!(
            "metadata.annotations[{}]: is grove, and the cluster serves no podcliquesets.grove.io",
            label(PROVIDER)
        )),
        Some("grove") => Ok(true),
        Some(_) => Ok(false),
        None => Ok(apis.clique_sets && annotations[label(ENABLE_GROVE)] != "false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_graph_becomes_cliques_where_grove_is_served_unless_it_says_otherwise() {
        let check = |clique_sets: bool, annotations: Value, expected: Option<bool>| {
            let document = json!({ "metadata": { "annotations": annotations } });
            let apis = ClusterApis { clique_sets, ..ClusterApis::USUAL };
            assert_eq!(wants_cliques(&document, apis).ok(), expected, "{document}");
        };
        check(true, Value::Null, Some(true));
        check(false, Value::Null, Some(false));
        check(true, json!({ "nvidia.com/enable-grove": "false" }), Some(false));
        check(true, json!({ "nvidia.com/workload-provider": "component" }), Some(false));
        check(true, json!({ "nvidia.com/workload-provider": "grove" }), Some(true));
        check(false, json!({ "nvidia.com/workload-provider": "grove" }), None);
    }
}
