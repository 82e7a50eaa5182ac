//! Engines on several nodes: their pods are bound together or not at all, and then serve as one.

use crate::bed::{GraphBed, answer, chat, documents};
use serde_json::{Value, json};
use stator_tests::kube_objects::reference;
use stator_tests::nodes::PodCluster;

const GRAPH: &str = include_str!("graphs/two-nodes.yaml");
const POD: &str = "nvidia.com/dynamo-component=Worker";

/// A graph with an engine on two nodes, each of which it needs all GPUs of.
fn graph() -> Value {
    let mut graph = documents(GRAPH).remove(0);
    let main = &mut graph["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0];
    // Pods have the files of this machine.
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker-agent/tiny-model");
    main["args"][0] = json!(format!("--model={model}"));
    graph
}

/// Keeps new pods from a node, or lets them come.
async fn close(bed: &GraphBed<'_>, node: &str, is_closed: bool) {
    let object = reference("v1", "Node", "", node);
    bed.space
        .namespace
        .api
        .patch(&object, &json!({ "spec": { "unschedulable": is_closed } }))
        .await;
}

#[tokio::test]
async fn an_engine_on_two_nodes_waits_for_room_for_both_and_then_answers() {
    let nodes = ["first", "second"];
    let Some(cluster) = PodCluster::start_with_gangs(&nodes).await else { return };
    let bed = GraphBed::new(&cluster).await;
    close(&bed, "second", true).await;
    let applied = bed.space.namespace.apply(graph()).await;
    let object = bed.space.object("nvidia.com/v1beta1", "DynamoGraphDeployment", "two-nodes");
    let says = |graph: &Value| {
        let message = graph["status"]["conditions"][0]["message"].as_str().unwrap_or_default();
        message.contains("Insufficient nvidia.com/gpu")
    };
    bed.space.namespace.api.until(&object, "the graph says what is missing", says).await;
    let pods = bed.space.pods(POD, "the pods of the engine", |pods| pods.len() == 2).await;
    assert!(pods.iter().all(|pod| pod["spec"]["nodeName"].is_null()), "{pods:#?}");

    close(&bed, "second", false).await;
    bed.ready(&applied).await;
    let pods = bed.space.pods(POD, "the pods of the engine", |pods| pods.len() == 2).await;
    let mut taken: Vec<_> = pods.iter().map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    taken.sort_unstable();
    assert_eq!(taken, nodes.map(Some));
    let client = bed.frontend("two-nodes").await;
    assert!(!answer(&client, &chat("org/model", "Hello", 20)).await.unwrap().is_empty());
}
