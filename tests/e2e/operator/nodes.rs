//! Engines on several nodes: what the operator makes is what a cluster serves, and the cluster takes it.

use super::serve::Bed;
use super::{documents, operator};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use stator_tests::kube::{Cluster, Resources};
use stator_tests::kube_objects::path;

/// A frontend, a worker on one node, and an engine on two.
const GRAPH: &str = r#"
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: wide}
spec:
  backendFramework: sglang
  components:
  - {name: Front, type: frontend, podTemplate: {spec: {containers: [{name: main, image: f}]}}}
  - name: Narrow
    type: prefill
    replicas: 2
    podTemplate: {spec: {containers: [{name: main, image: w, command: [python3, -m, dynamo.sglang], args: [--model-path, /m, --disaggregation-mode, prefill]}]}}
  - name: Wide
    type: decode
    multinode: {nodeCount: 2}
    podTemplate: {spec: {containers: [{name: main, image: w, command: [python3, -m, dynamo.sglang], args: [--model-path, /m, --disaggregation-mode, decode, --tp, "16"]}]}}
"#;

/// Applies an object as a stranger would, with unknown fields refused.
async fn accepted(bed: &Bed, object: &Value) {
    let mut object = object.clone();
    object["metadata"]["namespace"] = json!(bed.namespace.name);
    let path = format!(
        "{}?fieldManager=strict&force=true&dryRun=All&fieldValidation=Strict",
        path(&object)
    );
    let media = "application/apply-patch+yaml";
    let reply = bed.namespace.api.send(Method::PATCH, &path, media, object.to_string()).await;
    let is_fine = [StatusCode::OK, StatusCode::CREATED].contains(&reply.status);
    assert!(is_fine, "{}: {}", object["kind"], reply.json());
}

/// The objects that a graph leads to without a cluster.
fn explained(graph: &Value) -> Vec<Value> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), graph.to_string()).unwrap();
    let objects = operator(&["explain", &file.path().display().to_string()]);
    objects.into_iter().filter(|object| object.get("status").is_none()).collect()
}

#[tokio::test]
async fn a_graph_is_a_set_of_cliques_where_grove_is_installed() {
    let Some(cluster) = Cluster::start().await else { return };
    if !cluster.has(Resources::Grove) {
        return;
    }
    cluster.install(Resources::Grove).await;
    let bed = Bed::new(&cluster).await;
    let mut graph = documents(GRAPH).remove(0);
    bed.namespace.apply(graph.clone()).await;
    let set = bed.object("grove.io/v1alpha1", "PodCliqueSet", "wide");
    let set = bed.namespace.api.until(&set, "a set of cliques", |_| true).await;
    let cliques = set["spec"]["template"]["cliques"].as_array().unwrap();
    let names: Vec<_> = cliques.iter().map(|clique| clique["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["front", "narrow", "wide-ldr", "wide-wkr"]);
    graph["metadata"]["annotations"]["nvidia.com/workload-provider"] = json!("grove");
    for object in explained(&graph) {
        accepted(&bed, &object).await;
    }

    // Grove's part: it makes these, and says how they are.
    for (kind, part, copies) in [
        ("PodClique", "front", 1),
        ("PodClique", "narrow", 1),
        ("PodCliqueScalingGroup", "wide", 1),
    ] {
        let mut object = bed.object("grove.io/v1alpha1", kind, &format!("wide-0-{part}"));
        object["metadata"]["labels"] = json!({
            "app.kubernetes.io/part-of": "wide",
            "app.kubernetes.io/managed-by": "grove-operator",
        });
        object["spec"] = match kind {
            "PodClique" => json!({
                "roleName": part, "replicas": copies, "minAvailable": 1,
                "podSpec": { "containers": [{ "name": "main", "image": "i" }] },
            }),
            _ => json!({
                "replicas": copies, "minAvailable": 1, "cliqueNames": ["wide-ldr", "wide-wkr"],
            }),
        };
        bed.namespace.api.apply(&object).await;
        let ready = json!({
            "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "scheduledReplicas": 2,
            "availableReplicas": 2,
        });
        bed.namespace.api.patch_status(&object, &ready).await;
    }
    let narrow = bed.object("grove.io/v1alpha1", "PodClique", "wide-0-narrow");
    let is_scaled = |clique: &Value| clique["spec"]["replicas"] == 2;
    bed.namespace.api.until(&narrow, "the clique is scaled", is_scaled).await;
    let graph = bed.object("nvidia.com/v1beta1", "DynamoGraphDeployment", "wide");
    bed.namespace
        .api
        .until(&graph, "the graph is ready", |graph| graph["status"]["state"] == "successful")
        .await;
}

#[tokio::test]
async fn a_leader_worker_set_is_accepted_where_they_are_installed() {
    let Some(cluster) = Cluster::start().await else { return };
    if !cluster.has(Resources::LeaderWorkerSet) {
        return;
    }
    cluster.install(Resources::LeaderWorkerSet).await;
    let bed = Bed::new(&cluster).await;
    let graph = documents(GRAPH).remove(0);
    let applied = bed.namespace.apply(graph.clone()).await;
    let of = bed.object("nvidia.com/v1beta1", "DynamoGraphDeployment", "wide");
    let is_wide = |graph: &Value| {
        let kind = &graph["status"]["components"]["Wide"]["componentKind"];
        *kind == "LeaderWorkerSet" && graph["status"]["observedGeneration"] == 1
    };
    bed.namespace.api.until(&of, "a set with a leader", is_wide).await;
    assert_eq!(applied["metadata"]["generation"], 1);
    for object in explained(&graph) {
        accepted(&bed, &object).await;
    }
}
