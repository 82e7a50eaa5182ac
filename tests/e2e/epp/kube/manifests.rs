//! `manifests/epp` for each of its gateways, as kustomize makes it: the API server takes every
//! object, and what names another object names one that is there.
//!
//! Resources of a gateway's own are applied where `tests/kube/build` found their definitions.

use serde::Deserialize;
use serde_json::{Value, json};
use stator_tests::kube::{Cluster, Resources};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Kinds without a namespace.
const CLUSTER_WIDE: [&str; 1] = ["GatewayClass"];

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/epp")
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the file is there");
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents.map(|one| Value::deserialize(one).expect("the manifest is YAML")).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("it is text")
}

/// The objects of a kustomization: its resources, generated config maps, and patches that replace
/// a field or add to a list.
///
/// # Panics
///
/// For a patch that does anything else.
fn objects(directory: &Path) -> Vec<Value> {
    let kustomization = &documents(&directory.join("kustomization.yaml"))[0];
    let mut objects = Vec::new();
    for resource in list(&kustomization["resources"]) {
        let path = directory.join(text(resource));
        objects.extend(if path.is_dir() { self::objects(&path) } else { documents(&path) });
    }
    for map in list(&kustomization["configMapGenerator"]) {
        let mut object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": {},
                                 "metadata": { "name": map["name"] } });
        for file in list(&map["files"]) {
            let content = std::fs::read_to_string(directory.join(text(file)));
            object["data"][text(file)] = content.expect("the file is there").into();
        }
        objects.push(object);
    }
    for patch in list(&kustomization["patches"]) {
        let target = &patch["target"];
        let is_meant = |object: &&mut Value| {
            object["kind"] == target["kind"] && object["metadata"]["name"] == target["name"]
        };
        let object = objects.iter_mut().find(is_meant).expect("the patched object is there");
        let operations: Value = serde_yaml_ng::from_str(text(&patch["patch"])).expect("it is YAML");
        for operation in list(&operations) {
            let (path, value) = (text(&operation["path"]), operation["value"].clone());
            match (text(&operation["op"]), path.strip_suffix("/-")) {
                ("replace", None) => {
                    *object.pointer_mut(path).expect("the replaced field is there") = value;
                }
                ("add", Some(list)) => {
                    let list = object.pointer_mut(list).and_then(Value::as_array_mut);
                    list.expect("the longer list is there").push(value);
                }
                _ => panic!("not understood: {operation}"),
            }
        }
    }
    objects
}

/// What a cluster must have beside the Gateway API for an object.
fn needs(object: &Value) -> Option<Resources> {
    match text(&object["apiVersion"]).split('/').next() {
        Some("gateway.envoyproxy.io") => Some(Resources::EnvoyGateway),
        Some("networking.istio.io") => Some(Resources::Istio),
        _ => None,
    }
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &Value) -> &'a Value {
    let found = objects.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == *name);
    found.unwrap_or_else(|| panic!("no {kind} is called {name}"))
}

/// What names another object names one of these, with the port that is meant.
fn check_references(objects: &[Value]) {
    let only = |kind: &str| objects.iter().find(|one| one["kind"] == kind).expect("it is there");
    let route = only("HTTPRoute");
    for parent in list(&route["spec"]["parentRefs"]) {
        find(objects, "Gateway", &parent["name"]);
    }
    let backend = &route["spec"]["rules"][0]["backendRefs"][0];
    let pool = find(objects, text(&backend["kind"]), &backend["name"]);
    let picker = &pool["spec"]["endpointPickerRef"];
    let service = find(objects, "Service", &picker["name"]);
    let ports = list(&service["spec"]["ports"]);
    let port = ports.iter().find(|port| port["port"] == picker["port"]["number"]);
    assert!(port.is_some(), "{ports:?} lack the picker's port");
    let template = &only("Deployment")["spec"]["template"];
    let account = &template["spec"]["serviceAccountName"];
    find(objects, "ServiceAccount", account);
    let subjects = |one: &&Value| list(&one["subjects"]).iter().any(|s| s["name"] == *account);
    let binding = objects.iter().find(subjects).expect("the account has rights");
    find(objects, text(&binding["roleRef"]["kind"]), &binding["roleRef"]["name"]);
    let volumes = list(&template["spec"]["volumes"]);
    for map in volumes.iter().filter_map(|volume| volume["configMap"].get("name")) {
        find(objects, "ConfigMap", map);
    }
}

/// The objects of a gateway of this class.
async fn check(gateway: &str, class: &str) {
    let Some(cluster) = Cluster::shared().await else { return };
    cluster.install(Resources::Gateway).await;
    let namespace = cluster.namespace().await;
    let mut accepted = Vec::new();
    for mut object in objects(&manifests().join(gateway)) {
        if let Some(resources) = needs(&object) {
            if !cluster.has(resources) {
                let kind = &object["kind"];
                let missing = format!("not applied: {kind}, of which there is no definition");
                // Past the test harness, which hides what passing tests print.
                let _ = writeln!(std::io::stderr().lock(), "{missing}");
                continue;
            }
            cluster.install(resources).await;
        }
        // As kustomize does.
        let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            subject["namespace"] = namespace.name.clone().into();
        }
        accepted.push(match CLUSTER_WIDE.contains(&text(&object["kind"])) {
            true => namespace.api.apply(&object).await,
            false => namespace.apply(object).await,
        });
    }
    check_references(&accepted);
    let gateway = find(&accepted, "Gateway", &json!("inference-gateway"));
    assert_eq!(gateway["spec"]["gatewayClassName"], class);
}

#[tokio::test]
async fn the_objects_for_envoy_gateway_are_accepted() {
    check("envoy-gateway", "envoy-gateway").await;
}

#[tokio::test]
async fn the_objects_for_istio_are_accepted() {
    check("istio", "istio").await;
}

#[tokio::test]
async fn the_objects_for_kgateway_are_accepted() {
    check("kgateway", "kgateway").await;
}

#[tokio::test]
async fn the_objects_for_agentgateway_are_accepted() {
    check("agentgateway", "agentgateway").await;
}
