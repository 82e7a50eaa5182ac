//! Graphs run: manifests are applied, pods come, requests are answered.

use crate::bed::{GraphBed, answer, chat, documents};
use stator_tests::nodes::PodCluster;

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
