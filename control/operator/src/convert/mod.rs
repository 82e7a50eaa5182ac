//! Documents of `v1alpha1` as documents of `v1beta1`, and back.
//!
//! A field that the other version lacks travels in an annotation, so that a round trip changes
//! nothing. The annotation holds the specification in the version that the document came from; it
//! is believed whole while the document still says the same, and afterwards for the fields that
//! only it can say.

mod component;
mod plain;

use crate::kinds::{ALPHA, BETA};
use serde_json::{Map, Value};

/// Version of a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FormVersion {
    Alpha,
    Beta,
}

/// Kind with two versions.
#[derive(Clone, Copy)]
struct TwoForms {
    kind: &'static str,
    /// Annotation with the specification in the version that the document came from.
    annotation: &'static str,
    to_beta: fn(&Map<String, Value>) -> Map<String, Value>,
    to_alpha: fn(&Map<String, Value>) -> Map<String, Value>,
}

const KINDS: [TwoForms; 4] = [
    TwoForms {
        kind: "DynamoGraphDeployment",
        annotation: "nvidia.com/dgd-spec",
        to_beta: plain::graph_to_beta,
        to_alpha: plain::graph_to_alpha,
    },
    TwoForms {
        kind: "DynamoComponentDeployment",
        annotation: "nvidia.com/dcd-spec",
        to_beta: component::service_to_component,
        to_alpha: component::component_to_service,
    },
    TwoForms {
        kind: "DynamoGraphDeploymentRequest",
        annotation: "nvidia.com/dgdr-spec",
        to_beta: plain::request_to_beta,
        to_alpha: plain::request_to_alpha,
    },
    TwoForms {
        kind: "DynamoGraphDeploymentScalingAdapter",
        annotation: "nvidia.com/dgdsa-spec",
        to_beta: plain::adapter_to_beta,
        to_alpha: plain::adapter_to_alpha,
    },
];

/// The document in the other version where it is not in `wanted`. Other kinds, and those with one
/// version, stay as they are.
pub(crate) fn convert(document: &Value, wanted: FormVersion) -> Value {
    let Some(forms) = KINDS.iter().find(|forms| document["kind"] == forms.kind) else {
        return document.clone();
    };
    let (name, there, back) = match wanted {
        FormVersion::Alpha => (ALPHA, forms.to_alpha, forms.to_beta),
        FormVersion::Beta => (BETA, forms.to_beta, forms.to_alpha),
    };
    let mut converted = document.clone();
    converted["apiVersion"] = name.into();
    // A stored document has the stored version's name, whatever its form.
    if is_old_form(document) == (wanted == FormVersion::Alpha) {
        return converted;
    }
    let empty = Map::new();
    let spec = document["spec"].as_object().unwrap_or(&empty);
    let kept = take_annotation(&mut converted, forms.annotation);
    let new = match kept {
        Some(kept) if back(&kept) == *spec => kept,
        Some(kept) => with_what_only_it_says(there(spec), &kept, &there(&back(&kept))),
        None => there(spec),
    };
    if back(&new) != *spec {
        let text = Value::Object(spec.clone()).to_string();
        converted["metadata"]["annotations"][forms.annotation] = text.into();
    }
    converted["spec"] = new.into();
    if let Some(status) = converted.get_mut("status") {
        plain::rename_status(status, wanted == FormVersion::Beta);
    }
    converted
}

/// Whether a document has fields that only `v1alpha1` has.
fn is_old_form(document: &Value) -> bool {
    let spec = &document["spec"];
    let marks = ["services", "envs", "pvcs", "componentType", "extraPodSpec", "profilingConfig"];
    document["apiVersion"] == ALPHA
        || marks.iter().any(|mark| spec.get(mark).is_some())
        || spec["dgdRef"].get("serviceName").is_some()
}

/// Takes the annotation away and returns what it says; one that cannot be read says nothing.
fn take_annotation(document: &mut Value, name: &str) -> Option<Map<String, Value>> {
    let metadata = document["metadata"].as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let text = annotations.remove(name)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}

/// `new` with the fields of `kept` that the other version cannot say: those that are missing in
/// `said`, which is `kept` after it went there and back.
fn with_what_only_it_says(
    mut new: Map<String, Value>,
    kept: &Map<String, Value>,
    said: &Map<String, Value>,
) -> Map<String, Value> {
    for (name, value) in kept {
        match (new.get_mut(name), said.get(name)) {
            (None, None) => drop(new.insert(name.clone(), value.clone())),
            (Some(Value::Object(there)), Some(Value::Object(said))) => {
                let Value::Object(kept) = value else { continue };
                *there = with_what_only_it_says(std::mem::take(there), kept, said);
            }
            (Some(Value::Array(there)), Some(Value::Array(said))) => {
                by_name(there, value, said);
            }
            _ => {}
        }
    }
    new
}

/// As [`with_what_only_it_says`], for lists whose items have names.
fn by_name(there: &mut [Value], kept: &Value, said: &[Value]) {
    let find = |list: &[Value], name: &Value| {
        list.iter().find(|item| item["name"] == *name).and_then(Value::as_object).cloned()
    };
    let kept = kept.as_array().map(Vec::as_slice).unwrap_or_default();
    for item in there.iter_mut().filter_map(Value::as_object_mut) {
        let Some(name) = item.get("name").cloned() else { continue };
        if let (Some(kept), Some(said)) = (find(kept, &name), find(said, &name)) {
            *item = with_what_only_it_says(std::mem::take(item), &kept, &said);
        }
    }
}

#[cfg(test)]
mod tests;
