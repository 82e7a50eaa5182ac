//! A planner in a graph moves a component's scale, and pods come and go.

use crate::bed::{GraphBed, answer, asks_on, chat, documents};
use serde_json::{Value, json};
use stator_tests::nodes::PodCluster;

/// Decode workers that two long answers fill by more than a quarter, and a planner that sees it.
fn graph() -> Value {
    let mut graph =
        documents(include_str!("../../manifests/operator/graphs/simulated.yaml")).remove(0);
    let components = graph["spec"]["components"].as_array_mut().unwrap();
    components[2]["scalingAdapter"] = json!({});
    for (component, mode) in [(1, "prefill"), (2, "decode")] {
        let pod = &mut components[component]["podTemplate"]["spec"];
        pod["containers"][0]["args"] = json!([
            "--model-path=org/model",
            format!("--disaggregation-mode={mode}"),
            "--num-gpu-blocks-override=128",
            "--block-size=16",
        ]);
    }
    let args = json!([
        "planner",
        "--models=org/model",
        "--mode=decode",
        "--optimization-target=load",
        "--decode-scale-up-kv-percent=25",
        "--decode-scale-down-kv-percent=5",
        "--max-endpoint=2",
        "--load-adjustment-interval-s=0.2",
        "--warmup-s=1",
        "--cached-warmup-s=1",
        "--cold-s=0",
        "--discovery=kubernetes://$(POD_NAMESPACE)?selector=nvidia.com/dynamo-graph-deployment-name=simulated",
        "--scale=decode=dgdsa/simulated-decode",
        "--metrics-host=0.0.0.0",
        "--metrics-port=9090",
    ]);
    let main = json!({ "name": "main", "image": "stator", "command": ["stator"], "args": args });
    components.push(json!({
        "name": "Planner",
        "type": "planner",
        "replicas": 1,
        "podTemplate": { "spec": { "containers": [main] } },
    }));
    graph
}

#[tokio::test]
async fn decode_pods_follow_the_load() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let bed = GraphBed::new(cluster).await;
    bed.run(&graph()).await;
    let first = bed.pods("Decode", 1).await;
    let client = bed.frontend("simulated").await;
    // Two clients that are soon out of step.
    let both = tokio::select! {
        both = bed.pods("Decode", 2) => both,
        never = asks_on(&client, "Once upon a time", 1_000) => match never {},
        never = asks_on(&client, "In the beginning", 700) => match never {},
    };
    assert!(both.contains(&first[0]), "{both:?}");
    bed.pods("Decode", 1).await;
    let kind = "DynamoGraphDeploymentScalingAdapter";
    let adapter = bed.space.object("nvidia.com/v1beta1", kind, "simulated-decode");
    let adapter = bed.space.namespace.api.get(&adapter).await.unwrap();
    assert_eq!(adapter["spec"]["replicas"], 1);
    answer(&client, &chat("org/model", "And then", 20)).await.unwrap();
}
