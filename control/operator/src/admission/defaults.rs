//! Fields that the operator fills in when a document is stored.

use crate::convert::is_old_form;
use crate::objects::{OperatorSettings, label};
use serde_json::{Value, json};

/// Annotation with the version of the operator that first saw the graph.
pub(super) const ORIGIN: &str = "dynamo-operator-origin-version";

/// The steps of a JSON patch that fill in a document. Those in an older form that were stored
/// without a conversion get none.
pub(super) fn patch(document: &Value, is_new: bool, settings: &OperatorSettings) -> Vec<Value> {
    if is_old_form(document) {
        return Vec::new();
    }
    match document["kind"].as_str() {
        Some("DynamoGraphDeployment") => of_graph(document, is_new, settings),
        Some("DynamoComponentDeployment") => of_component(document),
        _ => Vec::new(),
    }
}

fn of_graph(document: &Value, is_new: bool, settings: &OperatorSettings) -> Vec<Value> {
    let mut steps = Vec::new();
    if is_new {
        let annotations = &document["metadata"]["annotations"];
        if !annotations.is_object() {
            steps.push(add("/metadata/annotations", json!({})));
        }
        let name = label(ORIGIN);
        if annotations[&name].is_null() {
            let path = format!("/metadata/annotations/{}", name.replace('/', "~1"));
            steps.push(add(&path, json!(settings.origin_version)));
        }
    }
    let components = document["spec"]["components"].as_array().into_iter().flatten();
    for (at, component) in components.enumerate() {
        if component["replicas"].is_null() {
            steps.push(add(&format!("/spec/components/{at}/replicas"), json!(1)));
        }
    }
    steps
}

fn of_component(document: &Value) -> Vec<Value> {
    let spec = &document["spec"];
    let defaults = [("name", document["metadata"]["name"].clone()), ("replicas", json!(1))];
    let missing =
        defaults.into_iter().filter(|(name, value)| spec[name].is_null() && !value.is_null());
    missing.map(|(name, value)| add(&format!("/spec/{name}"), value)).collect()
}

fn add(path: &str, value: Value) -> Value {
    json!({ "op": "add", "path": path, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::Substitutes;

    fn check(document: Value, is_new: bool, expected: Value) {
        let settings = OperatorSettings::new(Substitutes::default());
        assert_eq!(json!(patch(&document, is_new, &settings)), expected, "{document:#}");
    }

    #[test]
    fn a_new_graph_says_who_made_it_and_how_many_copies_it_has() {
        let graph = json!({
            "kind": "DynamoGraphDeployment",
            "apiVersion": "nvidia.com/v1beta1",
            "metadata": { "name": "g" },
            "spec": { "components": [{ "name": "a", "replicas": 0 }, { "name": "b" }] },
        });
        let replicas = add("/spec/components/1/replicas", json!(1));
        check(graph.clone(), false, json!([replicas]));
        let expected = json!([
            add("/metadata/annotations", json!({})),
            add("/metadata/annotations/nvidia.com~1dynamo-operator-origin-version", json!("1.5.0")),
            replicas,
        ]);
        check(graph.clone(), true, expected);
        let mut said = graph;
        said["metadata"]["annotations"] = json!({
            "nvidia.com/dynamo-operator-origin-version": "1.2.0",
        });
        check(said, true, json!([replicas]));
    }

    #[test]
    fn a_component_has_the_name_of_its_document() {
        let component = json!({
            "kind": "DynamoComponentDeployment",
            "apiVersion": "nvidia.com/v1beta1",
            "metadata": { "name": "c" },
            "spec": { "replicas": 3 },
        });
        check(component, true, json!([add("/spec/name", json!("c"))]));
    }

    #[test]
    fn what_was_stored_in_the_older_form_stays_as_it_is() {
        let graph = json!({
            "kind": "DynamoGraphDeployment",
            "apiVersion": "nvidia.com/v1beta1",
            "spec": { "services": { "a": {} } },
        });
        check(graph, true, json!([]));
    }
}
