//! States of graphs and components.

use super::readiness::WorkloadReadiness;
use crate::objects::label;
use serde_json::{Map, Value, json};

/// A component of a graph, and the state of its workload.
pub(super) struct ComponentState<'a> {
    pub(super) component: &'a Value,
    pub(super) readiness: WorkloadReadiness,
    /// Kind of the workload.
    pub(super) kind: &'a str,
    /// Reason for which a pod of the component has no node.
    pub(super) obstacle: Option<String>,
}

impl ComponentState<'_> {
    /// Copies that are available, and what keeps the others from a node.
    fn message(&self) -> String {
        let WorkloadReadiness { asked, available, .. } = self.readiness;
        let obstacle = self.obstacle.as_ref().map(|obstacle| format!(", {obstacle}"));
        format!("{available} of {asked} available{}", obstacle.unwrap_or_default())
    }
}

/// The status of a graph.
pub(super) fn of_graph(document: &Value, parts: &[ComponentState<'_>], translated: Value) -> Value {
    let waiting: Vec<_> = parts
        .iter()
        .filter(|part| !part.readiness.is_ready())
        .map(|part| {
            let name = part.component["metadata"]["name"].as_str().unwrap_or_default();
            format!("{name}: {}", part.message())
        })
        .collect();
    let (state, ready, reason) = match waiting.is_empty() {
        true => ("successful", "True", "all_resources_are_ready"),
        false => ("pending", "False", "some_resources_are_not_ready"),
    };
    let mut components = Map::new();
    for part in parts {
        let name = part.component["spec"]["name"].as_str().unwrap_or_default();
        let entry = components.entry(name).or_insert_with(|| empty(part.kind));
        add(entry, part);
    }
    let generation = &document["metadata"]["generation"];
    let condition = condition("Ready", ready, reason, &waiting.join("; "));
    json!({
        "state": state,
        "observedGeneration": generation,
        "conditions": [condition, translated],
        "components": components,
    })
}

/// Says in the status of a graph whether it changes from a generation to the next, or has changed.
pub(super) fn roll(status: &mut Value, known: &Value, is_rolling: bool) {
    if is_rolling {
        status["state"] = "pending".into();
        status["rollingUpdate"] = json!({ "phase": "InProgress" });
        status["conditions"][0]["status"] = "False".into();
        status["conditions"][0]["reason"] = "rolling_update_in_progress".into();
    } else if known["phase"].as_str().is_some_and(|phase| !phase.is_empty()) {
        status["rollingUpdate"] = json!({ "phase": "Completed" });
    }
}

/// The status of one component.
pub(super) fn of_component(document: &Value, part: &ComponentState<'_>) -> Value {
    let mut component = empty(part.kind);
    add(&mut component, part);
    let is_ready = part.readiness.is_ready();
    let status = if is_ready { "True" } else { "False" };
    let suffix = if is_ready { "Ready" } else { "NotReady" };
    let message = part.message();
    json!({
        "observedGeneration": document["metadata"]["generation"],
        "conditions": [
            condition("Available", status, &format!("{}{suffix}", part.kind), &message),
            condition("DynamoComponentReady", status, &format!("Component{suffix}"), &message),
        ],
        "component": component,
    })
}

/// The status of a scaling adapter, by which autoscalers find the pods.
pub(super) fn of_adapter(adapter: &Value) -> Value {
    let spec = &adapter["spec"];
    let text = |name: &str| spec["dgdRef"][name].as_str().unwrap_or_default();
    let selector = format!(
        "{}={},{}={}",
        label("dynamo-component"),
        text("componentName"),
        label("dynamo-graph-deployment-name"),
        text("name"),
    );
    json!({ "replicas": spec["replicas"], "selector": selector })
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": message })
}

fn empty(kind: &str) -> Value {
    json!({
        "componentKind": kind, "componentNames": [], "replicas": 0, "updatedReplicas": 0,
        "readyReplicas": 0, "availableReplicas": 0,
    })
}

fn add(entry: &mut Value, part: &ComponentState<'_>) {
    let WorkloadReadiness { asked, updated, ready, available, .. } = part.readiness;
    let numbers = [
        ("replicas", asked),
        ("updatedReplicas", updated),
        ("readyReplicas", ready),
        ("availableReplicas", available),
    ];
    for (name, number) in numbers {
        entry[name] = (entry[name].as_i64().unwrap_or_default() + i64::from(number)).into();
    }
    if let Some(names) = entry["componentNames"].as_array_mut() {
        names.push(part.component["metadata"]["name"].clone());
    }
}
