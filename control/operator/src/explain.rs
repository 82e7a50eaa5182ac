//! The objects that a manifest leads to, without a cluster.

use crate::condition::translated;
use crate::convert::{FormVersion, convert};
use crate::kinds::GROUP;
use crate::objects::{
    ClusterApis, Instance, NodeSets, OperatorSettings, PROVIDER, WantedObjects, cliques, graph,
    label, of_older_form, wants_cliques, workload,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// The objects of a manifest's documents in their order, each document of ours followed by its
/// status. Documents of other groups stay as they are.
///
/// # Errors
///
/// The document and the field that are wrong.
pub(crate) fn explain(text: &str, settings: &OperatorSettings) -> Result<Vec<Value>, String> {
    let mut explained = Vec::new();
    for (at, document) in serde_yaml_ng::Deserializer::from_str(text).enumerate() {
        let fault = |fault: String| format!("document {}: {fault}", at + 1);
        let document = Value::deserialize(document).map_err(|error| fault(error.to_string()))?;
        if !document.is_null() {
            explained.extend(explain_one(&document, settings).map_err(fault)?);
        }
    }
    Ok(explained)
}

fn explain_one(document: &Value, settings: &OperatorSettings) -> Result<Vec<Value>, String> {
    let version = document["apiVersion"].as_str().ok_or("apiVersion: is missing")?;
    let kind = document["kind"].as_str().ok_or("kind: is missing")?;
    if version.split('/').next() != Some(GROUP) {
        return Ok(vec![document.clone()]);
    }
    let document = convert(document, FormVersion::Beta);
    let wanted = wanted(&document, settings)?;
    let mut objects = wanted.objects;
    let metadata = &document["metadata"];
    let mut status = json!({
        "apiVersion": document["apiVersion"],
        "kind": kind,
        "metadata": { "name": metadata["name"], "namespace": metadata["namespace"].as_str().unwrap_or("default") },
    });
    if !objects.is_empty() {
        status["status"] = json!({ "conditions": [translated(&wanted.notes)] });
    }
    objects.push(status);
    Ok(objects)
}

/// The objects that a document of `v1beta1` leads to; none for kinds that lead to none.
///
/// # Errors
///
/// The field that is wrong.
pub(crate) fn wanted(
    document: &Value,
    settings: &OperatorSettings,
) -> Result<WantedObjects, String> {
    match document["kind"].as_str() {
        Some("DynamoGraphDeployment") => of_graph(document, settings),
        Some("DynamoComponentDeployment") => {
            let of = Instance::read(document)?;
            let mut wanted = workload::objects(&of, settings, NodeSets::LeaderWorker)?;
            wanted.notes.extend(of_older_form(document));
            Ok(wanted)
        }
        _ => Ok(WantedObjects::default()),
    }
}

/// The objects of a graph, and those of its components, in a cluster that has what the graph names.
fn of_graph(document: &Value, settings: &OperatorSettings) -> Result<WantedObjects, String> {
    let all = graph::objects(document, settings)?;
    let (components, mut objects): (Vec<_>, Vec<_>) =
        all.objects.into_iter().partition(|object| object["kind"] == "DynamoComponentDeployment");
    let mut notes = all.notes;
    let has_grove = document["metadata"]["annotations"][label(PROVIDER)] == "grove";
    let apis = ClusterApis { clique_sets: has_grove, ..ClusterApis::USUAL };
    if wants_cliques(document, apis)? {
        let components = cliques::unversioned(document, components);
        let wanted = cliques::objects(document, &components, settings)?;
        objects.extend(wanted.objects);
        cliques::forget_obeyed(&mut notes);
        notes.extend(wanted.notes);
        return Ok(WantedObjects { objects, notes });
    }
    for component in components {
        let of = Instance::read(&component)?;
        objects.push(component);
        let wanted = workload::objects(&of, settings, NodeSets::of(apis))?;
        objects.extend(wanted.objects);
        notes.extend(wanted.notes);
    }
    Ok(WantedObjects { objects, notes })
}
