//! Objects of the chart and of the plain manifests on a real API server.

use super::{Helm, ObjectSet, RELEASE, chart, examples, plain, stem, text};
use hyper::{Method, StatusCode};
use serde_json::Value;
use stator_tests::kube::{Cluster, Namespace, Resources};
use stator_tests::kube_api::Api;
use stator_tests::kube_objects::{path, reference};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Definitions of kinds beside those of Kubernetes.
const DEFINITIONS: [(&str, Resources); 7] = [
    ("gateway.networking.k8s.io", Resources::Gateway),
    ("gateway.envoyproxy.io", Resources::EnvoyGateway),
    ("networking.istio.io", Resources::Istio),
    ("leaderworkerset.x-k8s.io", Resources::LeaderWorkerSet),
    ("monitoring.coreos.com", Resources::Monitoring),
    ("cert-manager.io", Resources::CertManager),
    ("keda.sh", Resources::Keda),
];

/// Applies an object, refusing every field that the server does not know. Kinds whose definitions
/// could not be had are left out, and said so.
async fn apply(cluster: &Cluster, api: &Api, object: &Value, from: &str) {
    let group = text(&object["apiVersion"]).split('/').next().unwrap_or_default();
    if let Some((_, resources)) = DEFINITIONS.iter().find(|(of, _)| *of == group) {
        if !cluster.has(*resources) {
            let kind = &object["kind"];
            // Past the test harness, which hides what passing tests print.
            let _ = writeln!(std::io::stderr().lock(), "not applied: {kind}, without a definition");
            return;
        }
        cluster.install(*resources).await;
    }
    // Webhooks that nobody answers would refuse the documents of other tests.
    let is_webhook = text(&object["kind"]).ends_with("WebhookConfiguration");
    let trial = if is_webhook { "&dryRun=All" } else { "" };
    let options = format!("fieldManager=tests&force=true&fieldValidation=Strict{trial}");
    let path = format!("{}?{options}", path(object));
    let media = "application/apply-patch+yaml";
    let reply = api.send(Method::PATCH, &path, media, object.to_string()).await;
    let is_there = [StatusCode::OK, StatusCode::CREATED].contains(&reply.status);
    assert!(is_there, "{from}: {} {}: {:?}", object["kind"], path, reply.json()["message"]);
}

#[tokio::test]
async fn objects_of_every_example_are_accepted() {
    let Some(helm) = Helm::installed() else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    for example in examples() {
        let namespace = cluster.namespace().await;
        let values = example.display().to_string();
        let objects = helm.objects(&namespace.name, &["--values", &values]);
        assert!(objects.len() > 5, "{values}: {} objects", objects.len());
        let set = ObjectSet { name: stem(&example), objects };
        let known = BTreeMap::from([(namespace.name.clone(), namespace)]);
        apply_all(cluster, set, known).await;
    }
}

#[tokio::test]
async fn objects_of_every_plain_manifest_are_accepted() {
    let Some(cluster) = Cluster::shared().await else { return };
    for set in plain::sets() {
        apply_all(cluster, set.clone(), BTreeMap::new()).await;
    }
}

/// Applies all objects, in namespaces of the test that stand in for those that the objects name.
async fn apply_all(cluster: &Cluster, mut set: ObjectSet, mut known: BTreeMap<String, Namespace>) {
    for name in set.objects.iter().flat_map(namespaces).collect::<BTreeSet<_>>() {
        if let Entry::Vacant(place) = known.entry(name) {
            place.insert(cluster.namespace().await);
        }
    }
    for object in &mut set.objects {
        rename(object, &known);
        apply(cluster, &cluster.api(), object, &set.name).await;
    }
}

/// Namespaces that a document names as places of objects.
fn namespaces(object: &Value) -> Vec<String> {
    match object {
        Value::Object(fields) => {
            let own = fields.get("namespace").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(namespaces)).collect()
        }
        Value::Array(list) => list.iter().flat_map(namespaces).collect(),
        _ => Vec::new(),
    }
}

fn rename(object: &mut Value, known: &BTreeMap<String, Namespace>) {
    match object {
        Value::Object(fields) => {
            let by = fields.get("namespace").and_then(Value::as_str).and_then(|of| known.get(of));
            if let Some(by) = by {
                fields.insert("namespace".to_owned(), by.name.clone().into());
            }
            fields.values_mut().for_each(|field| rename(field, known));
        }
        Value::Array(list) => list.iter_mut().for_each(|one| rename(one, known)),
        _ => {}
    }
}

#[tokio::test]
async fn plain_manifests_without_a_kustomization_are_accepted() {
    let Some(cluster) = Cluster::shared().await else { return };
    let manifests = chart().join("../..");
    let files = [
        "autoscaling/hpa.yaml",
        "autoscaling/hpa-graph.yaml",
        "autoscaling/keda.yaml",
        "monitoring/pod-monitors.yaml",
    ];
    for file in files.map(|file| manifests.join(file)) {
        let namespace = cluster.namespace().await;
        for mut object in super::documents(&std::fs::read_to_string(&file).unwrap()) {
            object["metadata"]["namespace"] = namespace.name.clone().into();
            apply(cluster, &namespace.api, &object, &stem(&file)).await;
        }
    }
}

/// The way of a user: install, upgrade, uninstall.
#[tokio::test]
async fn a_release_is_installed_upgraded_and_removed() {
    let Some(helm) = Helm::installed() else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    let (chart, kubeconfig) = (chart().display().to_string(), cluster.kubeconfig());
    let kubeconfig = kubeconfig.display().to_string();
    let place = ["--namespace", &namespace.name, "--kubeconfig", &kubeconfig];
    let example = |name: &str| format!("{chart}/examples/{name}.yaml");
    let run = |args: &[&str]| helm.prints(&[args, &place[..]].concat());

    let values = example("simulated");
    let told = run(&["install", RELEASE, &chart, "--skip-crds", "--values", &values]);
    assert!(told.contains("port-forward service/stator-proxy"), "{told}");
    let deployment =
        |name: &str| reference("apps/v1", "Deployment", &namespace.name, &format!("stator-{name}"));
    let workers = namespace.api.get(&deployment("simulated")).await.unwrap();
    assert_eq!(workers["spec"]["replicas"], 2);

    let more = ["--values", &values, "--set", "workers.simulated.replicas=3"];
    run(&[&["upgrade", RELEASE, &chart, "--skip-crds"], &more[..]].concat());
    let workers = namespace.api.get(&deployment("simulated")).await.unwrap();
    assert_eq!(workers["spec"]["replicas"], 3);

    run(&["uninstall", RELEASE]);
    assert!(namespace.api.get(&deployment("simulated")).await.is_none());
    assert!(namespace.api.get(&deployment("proxy")).await.is_none());
}
