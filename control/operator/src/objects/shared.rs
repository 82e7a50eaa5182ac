//! Objects that the components of a graph share: rights, claims, the picker's pool and settings, and
//! scaling adapters.

use super::document::GraphDocument;
use super::instance::graph_label;
use super::{ingress, label, object, unsupported};
use crate::convert::{FormVersion, convert};
use crate::kinds::BETA;
use crate::kinds::beta::{ComponentShape, ComponentType};
use crate::translate::Note;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// File of the picker's configuration, and its key in a ConfigMap.
pub(super) const PICKER_FILE: &str = "epp-config-dynamo.yaml";

/// Rights of the pods of a graph.
static RIGHTS: LazyLock<Vec<PodRights>> = LazyLock::new(|| {
    serde_yaml_ng::from_str(include_str!("rights.yaml")).expect("a test reads the file")
});

/// Rights of some pods.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PodRights {
    /// Type of the components that have them; all without one.
    only: Option<ComponentType>,
    /// ServiceAccount, where `$graph` is the graph's name.
    account: String,
    /// Beginning of the names of role and binding.
    names: String,
    rules: Vec<Value>,
}

/// The objects, without an order, and notes on those that are not made.
///
/// # Errors
///
/// The field that is wrong.
pub(super) fn objects(graph: &GraphDocument<'_>) -> Result<(Vec<Value>, Vec<Note>), String> {
    let mut objects: Vec<_> = RIGHTS
        .iter()
        .filter(|rights| rights.only.is_none_or(|kind| graph.has(kind)))
        .flat_map(|rights| rights_of(graph, rights))
        .collect();
    let older = older_form(graph);
    objects.extend(claims(graph, &older));
    let (ingresses, mut notes) = ingress::objects(graph, &older);
    let services = older["spec"]["services"].as_object().into_iter().flatten();
    notes.extend(services.flat_map(|(name, service)| unsupported::of_service(name, service)));
    objects.extend(ingresses);
    if graph.has(ComponentType::Epp) {
        objects.extend(picker_settings(graph)?);
        objects.push(pool(graph));
    }
    objects.extend(adapters(graph));
    let components = graph.spec.components.iter().flatten();
    objects.extend(components.filter_map(|component| {
        let id = format!("{}-{}", graph.name, component.name.to_lowercase());
        let mut budget = disruption_budget(graph.namespace, &id, &component.shape)?;
        let is_global = component.shape.global_dynamo_namespace == Some(true);
        budget["spec"]["selector"] = json!({ "matchLabels": {
            label("dynamo-component"): component.name,
            label("dynamo-namespace"): graph_label(graph.namespace, graph.name, is_global),
        } });
        Some(budget)
    }));
    Ok((objects, notes))
}

/// The budget of a component that says how many copies a drain of nodes leaves, without a selector.
pub(super) fn disruption_budget(
    namespace: &str,
    name: &str,
    shape: &ComponentShape,
) -> Option<Value> {
    let least = shape.min_available?;
    let mut budget = object("policy/v1", "PodDisruptionBudget", namespace, name);
    budget["spec"] = json!({ "minAvailable": least });
    Some(budget)
}

fn rights_of(graph: &GraphDocument<'_>, rights: &PodRights) -> [Value; 3] {
    let fill = |text: &str| text.replace("$graph", graph.name);
    let (account, names) = (fill(&rights.account), fill(&rights.names));
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let (role_name, binding_name) = (format!("{names}-role"), format!("{names}-binding"));
    let mut role = object(&version, "Role", graph.namespace, &role_name);
    role["rules"] = rights.rules.clone().into();
    let mut binding = object(&version, "RoleBinding", graph.namespace, &binding_name);
    binding["roleRef"] = json!({ "apiGroup": group, "kind": "Role", "name": role_name });
    let subject =
        json!({ "kind": "ServiceAccount", "name": account, "namespace": graph.namespace });
    binding["subjects"] = json!([subject]);
    [object("v1", "ServiceAccount", graph.namespace, &account), role, binding]
}

/// The graph as a document of `v1alpha1`.
fn older_form(graph: &GraphDocument<'_>) -> Value {
    let kind = "DynamoGraphDeployment";
    let document = json!({
        "apiVersion": BETA, "kind": kind, "metadata": graph.metadata, "spec": graph.written,
    });
    convert(&document, FormVersion::Alpha)
}

/// Claims that a graph of `v1alpha1` asks for.
fn claims(graph: &GraphDocument<'_>, older: &Value) -> Vec<Value> {
    let claims = older["spec"]["pvcs"].as_array().cloned().unwrap_or_default();
    let wanted = claims.into_iter().filter(|claim| claim["create"] == true);
    let claims = wanted.map(|said| {
        let name = said["name"].as_str().unwrap_or_default();
        let mut claim = object("v1", "PersistentVolumeClaim", graph.namespace, name);
        claim["spec"] = json!({
            "accessModes": [said["volumeAccessMode"]],
            "storageClassName": said["storageClass"],
            "resources": { "requests": { "storage": said["size"] } },
        });
        claim
    });
    claims.collect()
}

/// The ConfigMap with the picker's configuration, unless the manifest names one of its own.
///
/// # Errors
///
/// For a picker without a configuration.
fn picker_settings(graph: &GraphDocument<'_>) -> Result<Option<Value>, String> {
    let mut components = graph.spec.components.iter().flatten();
    let picker = components.find(|component| component.shape.r#type == Some(ComponentType::Epp));
    let config = picker.and_then(|picker| picker.shape.epp_config.as_ref());
    let config = config.ok_or("spec.components: the picker needs an eppConfig")?;
    let Some(config) = &config.config else { return Ok(None) };
    let mut text = json!(config);
    for (name, value) in
        [("apiVersion", "inference.networking.x-k8s.io/v1alpha1"), ("kind", "EndpointPickerConfig")]
    {
        if text[name].is_null() {
            text[name] = value.into();
        }
    }
    let text = serde_yaml_ng::to_string(&text).map_err(|error| format!("eppConfig: {error}"))?;
    let name = format!("{}-epp-config", graph.name);
    let mut settings = object("v1", "ConfigMap", graph.namespace, &name);
    settings["data"] = json!({ PICKER_FILE: text });
    Ok(Some(settings))
}

fn pool(graph: &GraphDocument<'_>) -> Value {
    let version = "inference.networking.k8s.io/v1";
    let mut pool =
        object(version, "InferencePool", graph.namespace, &format!("{}-pool", graph.name));
    let mut components = graph.spec.components.iter().flatten();
    let picker = components.find(|component| component.shape.r#type == Some(ComponentType::Epp));
    let picker = picker.map(|picker| picker.name.clone()).unwrap_or_default();
    pool["metadata"]["labels"] = json!({
        label("dynamo-graph-deployment-name"): graph.name,
        label("dynamo-component"): picker,
        label("dynamo-component-type"): "epp",
    });
    pool["spec"] = json!({
        "selector": { "matchLabels": {
            label("dynamo-component-class"): "worker",
            label("dynamo-namespace"): graph_label(graph.namespace, graph.name, false),
        } },
        "targetPorts": [{ "number": 8000 }],
        "endpointPickerRef": {
            "name": format!("{}-{}", graph.name, picker.to_lowercase()),
            "port": { "number": 9002 },
        },
    });
    pool
}

fn adapters(graph: &GraphDocument<'_>) -> impl Iterator<Item = Value> {
    let components = graph.spec.components.iter().flatten();
    components.filter(|component| component.shape.scaling_adapter.is_some()).map(|component| {
        let name = format!("{}-{}", graph.name, component.name.to_lowercase());
        let kind = "DynamoGraphDeploymentScalingAdapter";
        let mut adapter = object(BETA, kind, graph.namespace, &name);
        adapter["metadata"]["labels"] = json!({
            label("dynamo-graph-deployment-name"): graph.name,
            label("dynamo-component"): component.name,
        });
        adapter["spec"] = json!({
            "replicas": component.shape.replicas.unwrap_or(1),
            "dgdRef": { "name": graph.name, "componentName": component.name },
        });
        adapter
    })
}
