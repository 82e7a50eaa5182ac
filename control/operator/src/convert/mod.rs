//! Documents of `v1alpha1` as documents of `v1beta1`, and back.
//!
//! A field that the other version lacks travels in an annotation, so that a round trip changes
//! nothing. The annotation holds the specification, or the status, in the version that the document
//! came from; it is believed whole while the document still says the same, and afterwards for the fields that
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

type Fields = Map<String, Value>;

/// Kind with two versions.
struct TwoForms {
    kind: &'static str,
    parts: [PartForms; 2],
}

/// Part of a document in two versions.
#[derive(Clone, Copy)]
struct PartForms {
    /// Name of the part, `spec` or `status`.
    part: &'static str,
    /// Annotation with the part in the version that the document came from.
    annotation: &'static str,
    to_beta: fn(&Fields) -> Fields,
    to_alpha: fn(&Fields) -> Fields,
}

const KINDS: [TwoForms; 4] = [
    TwoForms {
        kind: "DynamoGraphDeployment",
        parts: [
            spec("nvidia.com/dgd-spec", plain::graph_to_beta, plain::graph_to_alpha),
            status("nvidia.com/dgd-status", plain::status_to_beta, plain::status_to_alpha),
        ],
    },
    TwoForms {
        kind: "DynamoComponentDeployment",
        parts: [
            spec(
                "nvidia.com/dcd-spec",
                component::service_to_component,
                component::component_to_service,
            ),
            status("nvidia.com/dcd-status", plain::status_to_beta, plain::status_to_alpha),
        ],
    },
    TwoForms {
        kind: "DynamoGraphDeploymentRequest",
        parts: [
            spec("nvidia.com/dgdr-spec", plain::request_to_beta, plain::request_to_alpha),
            status(
                "nvidia.com/dgdr-status",
                plain::request_status_to_beta,
                plain::request_status_to_alpha,
            ),
        ],
    },
    TwoForms {
        kind: "DynamoGraphDeploymentScalingAdapter",
        parts: [
            spec("nvidia.com/dgdsa-spec", plain::adapter_to_beta, plain::adapter_to_alpha),
            status("nvidia.com/dgdsa-status", Fields::clone, Fields::clone),
        ],
    },
];

const fn spec(
    annotation: &'static str,
    to_beta: fn(&Fields) -> Fields,
    to_alpha: fn(&Fields) -> Fields,
) -> PartForms {
    PartForms { part: "spec", annotation, to_beta, to_alpha }
}

const fn status(
    annotation: &'static str,
    to_beta: fn(&Fields) -> Fields,
    to_alpha: fn(&Fields) -> Fields,
) -> PartForms {
    PartForms { part: "status", annotation, to_beta, to_alpha }
}

/// The document in the other version where it is not in `wanted`. Other kinds, and those with one
/// version, stay as they are.
pub(crate) fn convert(document: &Value, wanted: FormVersion) -> Value {
    let Some(forms) = KINDS.iter().find(|forms| document["kind"] == forms.kind) else {
        return document.clone();
    };
    let mut converted = document.clone();
    let version = if wanted == FormVersion::Alpha { ALPHA } else { BETA };
    converted["apiVersion"] = version.into();
    // A stored document has the stored version's name, whatever its form.
    if is_old_form(document) != (wanted == FormVersion::Alpha) {
        for forms in forms.parts {
            convert_part(&mut converted, forms, wanted);
        }
    }
    converted
}

/// The document with its specification as of `v1beta1`: a cluster that converts nothing stores an older
/// one as it was written. Its status stays: only the operator writes it.
pub(crate) fn with_newer_spec(document: &Value) -> Value {
    let mut converted = convert(document, FormVersion::Beta);
    converted["status"] = document["status"].clone();
    converted
}

/// Converts a part of a document. One that is missing stays away.
fn convert_part(document: &mut Value, forms: PartForms, wanted: FormVersion) {
    let PartForms { part, annotation, to_beta, to_alpha } = forms;
    let (there, back) = match wanted {
        FormVersion::Alpha => (to_alpha, to_beta),
        FormVersion::Beta => (to_beta, to_alpha),
    };
    let kept = take_annotation(document, annotation);
    let Some(said) = document[part].as_object().cloned() else { return };
    let new = match kept {
        Some(kept) if back(&kept) == said => kept,
        Some(kept) => with_what_only_it_says(there(&said), &kept, &there(&back(&kept))),
        None => there(&said),
    };
    if back(&new) != said {
        let text = Value::Object(said).to_string();
        document["metadata"]["annotations"][annotation] = text.into();
    }
    document[part] = new.into();
}

/// Whether a document has fields that only `v1alpha1` has.
pub(crate) fn is_old_form(document: &Value) -> bool {
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
