//! A cluster as a plan sees it.

use super::readiness::WorkloadReadiness;
use crate::objects::{ClusterApis, Instance, NodeSets, label, nodes, wants_cliques, workload};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) const COMPONENT: &str = "DynamoComponentDeployment";
/// Kind of Grove's sets.
pub(super) const CLIQUES: &str = "PodCliqueSet";

/// Parts of a cluster that the plan of one document depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterView {
    /// Objects with the document's label.
    pub(crate) objects: Vec<Value>,
    /// Cliques and scaling groups that Grove made of the document's set.
    pub(crate) cliques: Vec<Value>,
    /// Pods of the document that have no node.
    pub(crate) waiting: Vec<Value>,
    pub(crate) apis: ClusterApis,
}

/// Objects of a document that a cluster has.
pub(super) struct ObservedObjects<'a> {
    pub(super) objects: BTreeMap<(String, String), &'a Value>,
    view: &'a ClusterView,
}

impl<'a> ObservedObjects<'a> {
    pub(super) fn new(view: &'a ClusterView) -> Self {
        let objects = view.objects.iter().map(|object| (key(object), object)).collect();
        Self { objects, view }
    }

    pub(super) fn find(&self, object: &Value) -> Option<&'a Value> {
        self.objects.get(&key(object)).copied()
    }

    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &'a Value> {
        let all = self.objects.iter().filter(move |((known, _), _)| known == kind);
        all.map(|(_, object)| *object)
    }

    /// A clique or a scaling group of Grove's.
    pub(super) fn clique(&self, reference: &Value) -> Option<&'a Value> {
        self.view.cliques.iter().find(|object| key(object) == key(reference))
    }

    /// Whether the graph's pods come from Grove. A graph that runs stays as it is.
    pub(super) fn wants_cliques(&self, document: &Value) -> Result<bool, String> {
        if self.of_kind(CLIQUES).next().is_some() {
            return Ok(true);
        }
        if self.of_kind(COMPONENT).next().is_some() {
            return Ok(false);
        }
        wants_cliques(document, self.view.apis)
    }

    /// Objects that a component's nodes come from: those that it has, or the best that there are.
    pub(super) fn node_sets(&self, of: &Instance) -> NodeSets {
        if self.find(&reference("LeaderWorkerSet", &workload::set_name(of))).is_some() {
            return NodeSets::LeaderWorker;
        }
        match self.find(&reference("StatefulSet", &nodes::leader_name(&of.name, 0))) {
            Some(set) => {
                let is_gang = set["spec"]["template"]["spec"]["schedulingGroup"].is_object();
                NodeSets::Stateful(self.view.apis.pod_groups.filter(|_| is_gang))
            }
            None => NodeSets::of(self.view.apis),
        }
    }

    /// Kind of a component's workload.
    pub(super) fn workload_kind(&self, of: &Instance) -> &'static str {
        match self.node_sets(of) {
            _ if !of.is_multinode() => "Deployment",
            NodeSets::LeaderWorker => "LeaderWorkerSet",
            NodeSets::Stateful(_) => "StatefulSet",
            NodeSets::Cliques => CLIQUES,
        }
    }

    /// Copies of a component.
    pub(super) fn readiness(&self, of: &Instance) -> WorkloadReadiness {
        match self.workload_kind(of) {
            "StatefulSet" => WorkloadReadiness::of_engines(self.node_sets_of(of), of.nodes()),
            kind => {
                let is_set = kind == "LeaderWorkerSet";
                let name = if is_set { workload::set_name(of) } else { of.name.clone() };
                WorkloadReadiness::of(self.find(&reference(kind, &name)))
            }
        }
    }

    /// An object with a component's pod template, if there is any.
    pub(super) fn workload(&self, of: &Instance) -> Option<&'a Value> {
        let kind = self.workload_kind(of);
        let name = match kind {
            "StatefulSet" => nodes::leader_name(&of.name, 0),
            "LeaderWorkerSet" => workload::set_name(of),
            _ => of.name.clone(),
        };
        self.find(&reference(kind, &name))
    }

    /// StatefulSets of a component's nodes.
    fn node_sets_of(&self, of: &Instance) -> impl Iterator<Item = &'a Value> {
        let name = json!(of.name);
        self.of_kind("StatefulSet")
            .filter(move |set| set["metadata"]["labels"][label("selector")] == name)
    }

    /// Reason for which a pod of a component has no node, in the scheduler's words.
    pub(super) fn obstacle(&self, component: &Value) -> Option<String> {
        let (name, part) = (&component["metadata"]["name"], &component["spec"]["name"]);
        let is_of = |pod: &&Value| {
            let labels = &pod["metadata"]["labels"];
            // Pods of a LeaderWorkerSet and of Grove do not say which document they are of.
            labels[label("selector")] == *name
                || (labels[label("selector")].is_null()
                    && labels[label("dynamo-component")] == *part)
        };
        let reasons = self.view.waiting.iter().filter(is_of).filter_map(|pod| {
            let conditions = pod["status"]["conditions"].as_array()?;
            let scheduled = conditions.iter().find(|one| one["type"] == "PodScheduled")?;
            scheduled["message"].as_str().filter(|message| !message.is_empty())
        });
        // Of a gang, only the pods that found no room say what they lack.
        let best = reasons.min_by_key(|message| !message.contains("nodes are available"));
        best.map(|message| format!("no node for a pod: {message}"))
    }
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "kind": kind, "metadata": { "name": name } })
}

/// Kind and name, by which an object is known in its namespace.
pub(crate) fn key(object: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["name"]))
}
