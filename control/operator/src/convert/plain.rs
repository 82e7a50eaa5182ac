//! Specifications of graphs, requests and adapters in the other version, as far as it can say them.

use super::component::{component_to_service, service_to_component};
use serde_json::{Map, Value, json};

/// Moves a field to its name in the other version.
fn rename(spec: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = spec.remove(from) {
        spec.insert(to.to_owned(), value);
    }
}

/// Renames a field of an object in `spec`.
fn rename_in(spec: &mut Map<String, Value>, object: &str, from: &str, to: &str) {
    if let Some(object) = spec.get_mut(object).and_then(Value::as_object_mut) {
        rename(object, from, to);
    }
}

pub(super) fn graph_to_beta(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut graph = spec.clone();
    rename(&mut graph, "envs", "env");
    rename_in(&mut graph, "topologyConstraint", "topologyProfile", "clusterTopologyName");
    graph.remove("pvcs");
    if let Some(Value::Object(services)) = graph.remove("services") {
        let components = services.into_iter().map(|(name, service)| {
            let mut component = service_to_component(service.as_object().unwrap_or(&Map::new()));
            component.insert("name".to_owned(), name.into());
            Value::Object(component)
        });
        graph.insert("components".to_owned(), components.collect());
    }
    graph
}

pub(super) fn graph_to_alpha(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut graph = spec.clone();
    rename(&mut graph, "env", "envs");
    rename_in(&mut graph, "topologyConstraint", "clusterTopologyName", "topologyProfile");
    if let Some(Value::Array(components)) = graph.remove("components") {
        let services = components.iter().filter_map(|component| {
            let name = component["name"].as_str()?.to_owned();
            let mut component = component.as_object()?.clone();
            component.remove("name");
            Some((name, Value::Object(component_to_service(&component))))
        });
        graph.insert("services".to_owned(), Value::Object(services.collect()));
    }
    graph
}

pub(super) fn adapter_to_beta(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut adapter = spec.clone();
    rename_in(&mut adapter, "dgdRef", "serviceName", "componentName");
    adapter
}

pub(super) fn adapter_to_alpha(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut adapter = spec.clone();
    rename_in(&mut adapter, "dgdRef", "componentName", "serviceName");
    adapter
}

/// Fields of requests that both versions have.
const SAME: [&str; 4] = ["model", "backend", "autoApply", "runtimeVersionOverride"];

fn same(spec: &Map<String, Value>) -> Map<String, Value> {
    spec.iter()
        .filter(|(name, _)| SAME.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

pub(super) fn request_to_beta(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut request = same(spec);
    let image = spec.get("profilingConfig").and_then(|config| config.get("profilerImage"));
    request.extend(image.map(|image| ("image".to_owned(), image.clone())));
    if spec.get("useMocker") == Some(&Value::Bool(true)) {
        request.insert("features".to_owned(), json!({ "mocker": { "enabled": true } }));
    }
    request
}

pub(super) fn request_to_alpha(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut request = same(spec);
    let image = spec.get("image").cloned().unwrap_or_else(|| "".into());
    request.insert("profilingConfig".to_owned(), json!({ "profilerImage": image }));
    if spec.get("features").is_some_and(|features| features["mocker"]["enabled"] == true) {
        request.insert("useMocker".to_owned(), true.into());
    }
    request
}

/// Gives the parts of a graph's status their names in the other version.
pub(super) fn rename_status(status: &mut Value, to_beta: bool) {
    let names = [("services", "components"), ("service", "component")];
    let updates = ("updatedServices", "updatedComponents");
    let turn =
        |(old, new): (&'static str, &'static str)| if to_beta { (old, new) } else { (new, old) };
    let Some(status) = status.as_object_mut() else { return };
    for (from, to) in names.map(turn) {
        rename(status, from, to);
    }
    let (from, to) = turn(updates);
    rename_in(status, "rollingUpdate", from, to);
}
