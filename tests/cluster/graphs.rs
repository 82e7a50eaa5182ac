//! Graphs run: manifests are applied, pods come, requests are answered.

use crate::bed::{GraphBed, answer, chat, documents};
use serde_json::{Value, json};
use stator_tests::nodes::PodCluster;
use std::io::Write as _;
use std::path::Path;

const SIMULATED: &str = include_str!("../../manifests/operator/graphs/simulated.yaml");

#[tokio::test]
async fn a_simulated_graph_answers() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let bed = GraphBed::new(cluster).await;
    bed.run(&documents(SIMULATED)[0]).await;
    let client = bed.frontend("simulated").await;
    let text = answer(&client, &chat("org/model", "Hello", 20)).await.unwrap();
    assert!(!text.is_empty());
}

#[tokio::test]
async fn dynamos_simulated_example_answers_unchanged() {
    let path = "../../shared/data/dynamo-manifests/examples/backends/mocker/deploy/disagg.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let Ok(text) = std::fs::read_to_string(&path) else {
        let _ = writeln!(std::io::stderr().lock(), "not run: there is no {}", path.display());
        return;
    };
    let Some(cluster) = PodCluster::shared().await else { return };
    let bed = GraphBed::new(cluster).await;
    // Its workers take their environment from the Secret that users have for the hub.
    let mut token = bed.space.object("v1", "Secret", "hf-token-secret");
    token["stringData"] = json!({ "HF_TOKEN": "none" });
    bed.space.namespace.api.apply(&token).await;
    let graph: Value = documents(&text).remove(0);
    bed.run(&graph).await;
    let client = bed.frontend("mocker-disagg").await;
    let request = chat("nvidia/Llama-3.1-8B-Instruct-FP8", "Hello", 20);
    assert!(!answer(&client, &request).await.unwrap().is_empty());
}
