//! Rules of components by themselves, models and requests.

use super::component::{self, ComponentChange};
use super::faults::{DocumentChange, Faults};
use serde_json::Value;

/// Beginnings of the places that adapters come from.
const SOURCES: [&str; 3] = ["s3://", "hf://", "file:///"];
/// Phases in which the specification of a request stays.
const SETTLED: [&str; 4] = ["Profiling", "Deploying", "Ready", "Deployed"];
/// Fields that may change while a request waits in `Ready` for its user.
const OPEN: [&str; 2] = ["autoApply", "runtimeVersionOverride"];

pub(super) fn check_component(change: DocumentChange<'_>, faults: &mut Faults) {
    let spec = &change.new["spec"];
    let old = change.old.map(|old| &old["spec"]);
    let of = ComponentChange {
        path: "spec".to_owned(),
        new: spec,
        old,
        framework: &spec["backendFramework"],
        is_by_scaler: change.is_by_scaler,
    };
    component::check(&of, faults);
    if let Some(old) = old {
        let name = "backendFramework";
        faults.check_same("spec.backendFramework", &old[name], &spec[name]);
    }
}

pub(super) fn check_model(change: DocumentChange<'_>, faults: &mut Faults) {
    let spec = &change.new["spec"];
    for name in ["modelName", "baseModelName"] {
        let is_there = spec[name].as_str().is_some_and(|text| !text.is_empty());
        faults.check(is_there, format!("spec.{name}"), "is missing");
    }
    let kind = spec["modelType"].as_str().unwrap_or("base");
    let uri = spec["source"]["uri"].as_str();
    if kind == "lora" && uri.is_none_or(str::is_empty) {
        faults.add("spec.source.uri", "is missing: a LoRA adapter comes from somewhere");
    }
    if let Some(uri) = uri.filter(|uri| !uri.is_empty())
        && !SOURCES.iter().any(|start| uri.starts_with(start))
    {
        let message = format!("{uri:?} does not begin with one of {}", SOURCES.join(", "));
        faults.add("spec.source.uri", message);
    }
    if let Some(old) = change.old {
        let old = &old["spec"];
        faults.check_same("spec.baseModelName", &old["baseModelName"], &spec["baseModelName"]);
        let is_same = old["modelType"].as_str().unwrap_or("base") == kind;
        faults.check(is_same, "spec.modelType", "is immutable");
    }
}

pub(super) fn check_request(change: DocumentChange<'_>, faults: &mut Faults) {
    let spec = &change.new["spec"];
    if spec["searchStrategy"] == "thorough" && spec["backend"].as_str().unwrap_or("auto") == "auto"
    {
        faults.add("spec.backend", "a thorough search needs a backend by name");
    }
    let Some(old) = change.old else { return };
    let phase = old["status"]["phase"].as_str().unwrap_or_default();
    if !SETTLED.contains(&phase) {
        return;
    }
    let (old, empty) = (&old["spec"], serde_json::Map::new());
    let waits = old["autoApply"] == false;
    let all = [old, spec].map(|spec| spec.as_object().unwrap_or(&empty));
    let names: std::collections::BTreeSet<_> =
        all.iter().flat_map(|fields| fields.keys()).collect();
    for name in names.into_iter().filter(|name| old[*name] != spec[*name]) {
        if !(waits && OPEN.contains(&name.as_str())) {
            faults.add(format!("spec.{name}"), format!("is immutable in the phase {phase}"));
        }
    }
}

/// The rules of a kind; none for others.
pub(super) fn rules(document: &Value) -> Option<fn(DocumentChange<'_>, &mut Faults)> {
    match document["kind"].as_str()? {
        "DynamoGraphDeployment" => Some(super::graph::check),
        "DynamoComponentDeployment" => Some(check_component),
        "DynamoModel" => Some(check_model),
        "DynamoGraphDeploymentRequest" => Some(check_request),
        _ => None,
    }
}
