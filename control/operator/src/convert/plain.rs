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

fn only(fields: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let kept = fields.iter().filter(|(name, _)| names.contains(&name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Fields of requests, in the older version and in the newer. The older version has most of them in a
/// document of its profiler.
const REQUEST_FIELDS: [(&str, &str); 13] = [
    ("profilingConfig.config.sla.ttft", "sla.ttft"),
    ("profilingConfig.config.sla.itl", "sla.itl"),
    ("profilingConfig.config.sla.isl", "workload.isl"),
    ("profilingConfig.config.sla.osl", "workload.osl"),
    ("profilingConfig.config.deployment.modelCache.pvcName", "modelCache.pvcName"),
    ("profilingConfig.config.deployment.modelCache.modelPathInPvc", "modelCache.pvcModelPath"),
    ("profilingConfig.config.deployment.modelCache.pvcMountPath", "modelCache.pvcMountPath"),
    ("profilingConfig.config.planner", "features.planner"),
    ("deploymentOverrides.name", "overrides.dgd.metadata.name"),
    ("deploymentOverrides.labels", "overrides.dgd.metadata.labels"),
    ("deploymentOverrides.annotations", "overrides.dgd.metadata.annotations"),
    // The image of the workers, unless the profiler has another.
    ("deploymentOverrides.workersImage", "image"),
    ("profilingConfig.profilerImage", "image"),
];

/// The value of a field, whose name has dots between its parts.
fn value_at<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut parts = path.split('.');
    let first = fields.get(parts.next()?)?;
    let value = parts.try_fold(first, |value, part| value.get(part))?;
    // An empty image is none.
    (!value.is_null() && value != "").then_some(value)
}

/// Sets the field; nothing if something else than an object is in the way.
fn set_at(fields: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(fields.insert(path.to_owned(), value)),
        Some((first, rest)) => {
            let inner = fields.entry(first).or_insert_with(|| json!({}));
            if let Some(inner) = inner.as_object_mut() {
                set_at(inner, rest, value);
            }
        }
    }
}

pub(super) fn request_to_beta(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut request = only(spec, &SAME);
    for (older, newer) in REQUEST_FIELDS {
        if let Some(value) = value_at(spec, older) {
            set_at(&mut request, newer, value.clone());
        }
    }
    if spec.get("useMocker") == Some(&Value::Bool(true)) {
        set_at(&mut request, "features.mocker", json!({ "enabled": true }));
    }
    request
}

pub(super) fn request_to_alpha(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut request = only(spec, &SAME);
    // The older version cannot do without.
    request.insert("profilingConfig".to_owned(), json!({ "profilerImage": "" }));
    for (older, newer) in REQUEST_FIELDS {
        let is_other_image = older == "deploymentOverrides.workersImage";
        if let Some(value) = value_at(spec, newer).filter(|_| !is_other_image) {
            set_at(&mut request, older, value.clone());
        }
    }
    if spec.get("features").is_some_and(|features| features["mocker"]["enabled"] == true) {
        request.insert("useMocker".to_owned(), true.into());
    }
    request
}

/// Phases of requests that are states of the older version.
const PHASES: [&str; 5] = ["Pending", "Profiling", "Ready", "Deploying", "Failed"];
/// Fields of a request's status that both versions have.
const SAME_STATUS: [&str; 2] = ["observedGeneration", "conditions"];

pub(super) fn request_status_to_beta(status: &Map<String, Value>) -> Map<String, Value> {
    let mut request = only(status, &SAME_STATUS);
    let state = status.get("state").filter(|state| PHASES.iter().any(|phase| *state == phase));
    request.extend(state.map(|state| ("phase".to_owned(), state.clone())));
    let name = status.get("deployment").and_then(|of| of.get("name"));
    request.extend(name.map(|name| ("dgdName".to_owned(), name.clone())));
    request
}

pub(super) fn request_status_to_alpha(status: &Map<String, Value>) -> Map<String, Value> {
    let mut request = only(status, &SAME_STATUS);
    let phase = status.get("phase");
    // The older version has no word for a graph that runs.
    let state = phase.map(|phase| if phase == "Deployed" { json!("Ready") } else { phase.clone() });
    request.extend(state.map(|state| ("state".to_owned(), state)));
    let name = status.get("dgdName");
    request.extend(name.map(|name| ("deployment".to_owned(), json!({ "name": name }))));
    request
}

/// Names of a status' parts in both versions, the older first.
const PARTS: [(&str, &str); 2] = [("services", "components"), ("service", "component")];

pub(super) fn status_to_beta(status: &Map<String, Value>) -> Map<String, Value> {
    let mut status = status.clone();
    PARTS.iter().for_each(|(older, newer)| rename(&mut status, older, newer));
    rename_in(&mut status, "rollingUpdate", "updatedServices", "updatedComponents");
    for_components(&mut status, |component| {
        let first = component.get("componentNames").and_then(|names| names.get(0));
        if component.get("componentName").is_some() && component.get("componentName") == first {
            component.remove("componentName");
        }
    });
    status
}

pub(super) fn status_to_alpha(status: &Map<String, Value>) -> Map<String, Value> {
    let mut status = status.clone();
    for_components(&mut status, |component| {
        let first = component.get("componentNames").and_then(|names| names.get(0)).cloned();
        component.extend(first.map(|name| ("componentName".to_owned(), name)));
    });
    PARTS.iter().for_each(|(older, newer)| rename(&mut status, newer, older));
    rename_in(&mut status, "rollingUpdate", "updatedComponents", "updatedServices");
    status
}

/// Changes the states of all components, under their newer names.
fn for_components(status: &mut Map<String, Value>, change: fn(&mut Map<String, Value>)) {
    let all = status.get_mut("components").and_then(Value::as_object_mut);
    all.into_iter().flatten().filter_map(|(_, of)| of.as_object_mut()).for_each(change);
    status.get_mut("component").and_then(Value::as_object_mut).into_iter().for_each(change);
}
