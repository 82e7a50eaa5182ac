//! Generations of workers: one for each content of a graph's worker components.

use super::hash_of;
use super::instance::is_worker;
use crate::kinds::beta::ComponentType;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Fields that change without a new generation.
const OUTSIDE: [&str; 4] = ["replicas", "minAvailable", "scalingAdapter", "runtimeVersionOverride"];

/// The generation of a graph with these components, made by the operator without a generation.
pub(super) fn generation(components: &[Value]) -> String {
    let workers = components.iter().filter(|component| {
        let kind: Option<ComponentType> =
            serde_json::from_value(component["spec"]["type"].clone()).ok();
        is_worker(kind)
    });
    let content: BTreeMap<_, _> = workers
        .map(|worker| {
            let mut spec = worker["spec"].clone();
            if let Some(spec) = spec.as_object_mut() {
                spec.retain(|name, _| !OUTSIDE.contains(&name.as_str()));
            }
            let metadata = &worker["metadata"];
            let content = json!({
                "labels": metadata["labels"], "annotations": metadata["annotations"], "spec": spec,
            });
            (worker["spec"]["name"].to_string(), content)
        })
        .collect();
    hash_of(&json!(content), 8)
}
