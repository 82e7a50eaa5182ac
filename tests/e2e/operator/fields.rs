//! No field of Dynamo's graphs and components is ignored in silence: a table says of each what becomes
//! of it, and what the table says is so.

use super::{data, documents, operator, read};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Fate of a field: `"obeyed"`, or one of `condition` and `nothing` with its value.
type Fates = BTreeMap<String, Value>;

const TABLE: &str = include_str!("fields.yaml");
/// Fields that Kubernetes defines: what is below them goes into pods as it is.
const OF_KUBERNETES: [&str; 9] = [
    "podTemplate",
    "env",
    "envs",
    "resources",
    "livenessProbe",
    "readinessProbe",
    "extraPodSpec",
    "autoscaling",
    "job",
];

/// A kind in one version, and the place of its components.
const KINDS: [(&str, &str, &str); 4] = [
    ("DynamoGraphDeployment", "v1beta1", "components."),
    ("DynamoGraphDeployment", "v1alpha1", "services."),
    ("DynamoComponentDeployment", "v1beta1", ""),
    ("DynamoComponentDeployment", "v1alpha1", ""),
];

/// The fates of a kind's fields: its own, and those of its components below them.
fn fates(kind: &str, version: &str, components: &str) -> Fates {
    let table: BTreeMap<String, Fates> = serde_yaml_ng::from_str(TABLE).unwrap();
    let parts = table[&format!("component {version}")].clone().into_iter();
    let mut fates: Fates =
        parts.map(|(field, fate)| (format!("{components}{field}"), fate)).collect();
    fates.extend(table[&format!("{kind} {version}")].clone());
    fates
}

/// All fields below a schema, with dots between their names.
fn walk(schema: &Value, path: &str, found: &mut Vec<String>) {
    let inner = [&schema["items"], &schema["additionalProperties"]];
    for inner in inner.into_iter().filter(|inner| inner["properties"].is_object()) {
        walk(inner, path, found);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        found.push(path.clone());
        if !OF_KUBERNETES.contains(&name.as_str()) {
            walk(field, &path, found);
        }
    }
}

/// Whether a field or one above it has a fate.
fn is_listed(fates: &Fates, field: &str) -> bool {
    let ends = field.match_indices('.').map(|(at, _)| at).chain([field.len()]);
    ends.into_iter().any(|end| {
        // All components are below one field, which speaks for none of theirs.
        fates.contains_key(&field[..end]) && (end == field.len() || !is_list(&field[..end]))
    })
}

fn is_list(field: &str) -> bool {
    ["components", "services", "experimental"].contains(&field.rsplit('.').next().unwrap_or(field))
}

#[test]
fn the_table_lists_every_field_and_no_other() {
    let Some(folder) = data("dynamo-crds/without-descriptions") else { return };
    for (kind, version, components) in KINDS {
        let fates = fates(kind, version, components);
        let file = format!("nvidia.com_{}s.yaml", kind.to_lowercase());
        let definition = read(&folder.join(file)).remove(0);
        let versions = definition["spec"]["versions"].as_array().unwrap();
        let of = versions.iter().find(|of| of["name"] == version).unwrap();
        let mut found = Vec::new();
        walk(&of["schema"]["openAPIV3Schema"]["properties"]["spec"], "", &mut found);
        let unlisted: Vec<_> = found.iter().filter(|field| !is_listed(&fates, field)).collect();
        assert!(unlisted.is_empty(), "{kind} {version}: fields without a fate: {unlisted:#?}");
        // A component by itself has fewer fields than the table of both.
        let unknown = fates.keys().filter(|field| !found.contains(field));
        let unknown: Vec<_> = unknown.filter(|_| !components.is_empty()).collect();
        assert!(unknown.is_empty(), "{kind} {version}: no fields: {unknown:#?}");
    }
}

/// A document with a component that is worth a condition for this field alone.
fn document(kind: &str, version: &str, field: &str, components: &str, value: &Value) -> Value {
    let mut component = match version {
        "v1beta1" => json!({
            "name": "part",
            "type": "frontend",
            "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "i", "command": ["sleep"] }] } },
        }),
        _ => json!({
            "componentType": "frontend",
            "extraPodSpec": { "mainContainer": { "image": "i", "command": ["sleep"] } },
        }),
    };
    let mut own = json!({});
    let inner = field.strip_prefix(components).filter(|_| !components.is_empty());
    let place = match (inner, kind) {
        (Some(_), _) | (_, "DynamoComponentDeployment") => &mut component,
        _ => &mut own,
    };
    let parts = inner.unwrap_or(field).split('.');
    *parts.fold(place, |place, part| &mut place[part]) = value.clone();
    let spec = match (kind, version) {
        ("DynamoComponentDeployment", _) => component,
        (_, "v1beta1") => {
            own["components"] = json!([component]);
            own
        }
        _ => {
            own["services"] = json!({ "part": component });
            own
        }
    };
    let api = format!("nvidia.com/{version}");
    json!({ "apiVersion": api, "kind": kind, "metadata": { "name": "g" }, "spec": spec })
}

/// Lines of the condition of a document.
fn condition(document: &Value) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), serde_yaml_ng::to_string(document).unwrap()).unwrap();
    let explained = operator(&["explain", &file.path().display().to_string()]);
    let status = explained.iter().find(|object| object["status"].is_object()).unwrap();
    status["status"]["conditions"][0]["message"].as_str().unwrap().to_owned()
}

#[test]
fn fields_without_effect_are_named_by_the_condition() {
    for (kind, version, components) in KINDS {
        for (field, fate) in fates(kind, version, components) {
            let Some(value) = fate.get("condition") else { continue };
            let said = condition(&document(kind, version, &field, components, value));
            let last = field.rsplit('.').next().unwrap();
            assert!(said.contains(last), "{kind} {version}: {field}: {said:?}");
        }
        let none = document(kind, version, "labels", "nothing", &Value::Null);
        assert_eq!(condition(&none), "", "{kind} {version}");
    }
    assert_eq!(documents(TABLE).len(), 1);
}
