//! Requests for graphs on a real API server: from a document to a deployed graph.

use super::serve::Bed;
use serde_json::{Value, json};
use stator_tests::kube::Cluster;

/// A request for simulated workers of Qwen3 0.6B, with its model's sizes.
fn request(spec: Value) -> Value {
    let config = json!({
        "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "vocab_size": 151_936, "max_position_embeddings": 40_960, "tie_word_embeddings": true,
    });
    let mut request = json!({
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeploymentRequest",
        "metadata": {
            "name": "small",
            "annotations": { "stator.dev/model-config": config.to_string() },
        },
        "spec": {
            "model": "Qwen/Qwen3-0.6B",
            "backend": "vllm",
            "hardware": { "gpuSku": "h100_sxm", "totalGpus": 2 },
            "workload": { "isl": 1000, "osl": 100, "requestRate": 2 },
            "sla": { "ttft": 1000, "itl": 30 },
            "features": { "mocker": { "enabled": true } },
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        request["spec"][field] = value.clone();
    }
    request
}

/// The request in this phase.
async fn reaches(bed: &Bed, phase: &str) -> Value {
    let request = bed.object("nvidia.com/v1beta1", "DynamoGraphDeploymentRequest", "small");
    bed.namespace.api.until(&request, phase, |request| request["status"]["phase"] == phase).await
}

/// Status and reason of a condition.
fn condition(request: &Value, kind: &str) -> Value {
    let all = request["status"]["conditions"].as_array().unwrap();
    let found = all.iter().find(|of| of["type"] == kind).unwrap();
    json!([found["status"], found["reason"]])
}

/// Makes all copies of the graph's components available.
async fn serves(bed: &Bed, graph: &Value) {
    let graph = bed
        .namespace
        .api
        .until(graph, "components", |graph| graph["status"]["components"].is_object())
        .await;
    for component in graph["status"]["components"].as_object().unwrap().values() {
        for name in component["componentNames"].as_array().unwrap() {
            bed.runs(name.as_str().unwrap()).await;
        }
    }
}

#[tokio::test]
async fn a_request_becomes_a_graph_that_serves_and_says_when_it_is_gone() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    bed.namespace.apply(request(json!({}))).await;
    let deploying = reaches(&bed, "Deploying").await;
    assert_eq!(condition(&deploying, "Profiling"), json!(["True", "ProfilingCompleted"]));
    assert_eq!(deploying["status"]["dgdName"], "small-dgd");
    let graph = bed.object("nvidia.com/v1beta1", "DynamoGraphDeployment", "small-dgd");
    serves(&bed, &graph).await;
    let deployed = reaches(&bed, "Deployed").await;
    assert_eq!(condition(&deployed, "Succeeded"), json!(["True", "Deployed"]));
    let info = &deployed["status"]["deploymentInfo"];
    assert_eq!(info["replicas"], info["availableReplicas"], "{info}");
    let made = bed.namespace.api.get(&graph).await.unwrap();
    assert_eq!(made["metadata"]["labels"]["dgdr.nvidia.com/name"], "small");
    assert_eq!(made["metadata"]["ownerReferences"], Value::Null);
    let said = &deployed["metadata"]["annotations"]["nvidia.com/generated-dgd-spec"];
    let said: Value = serde_json::from_str(said.as_str().unwrap()).unwrap();
    assert_eq!(said, deployed["status"]["profilingResults"]["selectedConfig"]);

    bed.namespace.api.delete(&graph, std::time::Duration::ZERO).await;
    let failed = reaches(&bed, "Failed").await;
    assert_eq!(condition(&failed, "Succeeded"), json!(["False", "DeploymentDeleted"]));
}

#[tokio::test]
async fn a_request_waits_at_ready_until_it_may_be_applied() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    bed.namespace.apply(request(json!({ "autoApply": false }))).await;
    let ready = reaches(&bed, "Ready").await;
    let graph = bed.object("nvidia.com/v1beta1", "DynamoGraphDeployment", "small-dgd");
    assert!(bed.namespace.api.get(&graph).await.is_none(), "{}", bed.log());
    // The graph can also be applied by hand; the server knows every field of it.
    let selected = ready["status"]["profilingResults"]["selectedConfig"].clone();
    assert!(selected["spec"]["components"].as_array().unwrap().len() >= 2, "{selected}");
    bed.namespace.apply(request(json!({ "autoApply": true }))).await;
    reaches(&bed, "Deploying").await;
    serves(&bed, &graph).await;
    reaches(&bed, "Deployed").await;
}

#[tokio::test]
async fn a_request_that_nothing_meets_says_what_would_work() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    bed.namespace.apply(request(json!({ "sla": { "ttft": 1000, "itl": 0.2 } }))).await;
    let failed = reaches(&bed, "Failed").await;
    let message = failed["status"]["conditions"].to_string();
    assert!(message.contains("itl_ms: 0.2 is met by no layout; the nearest is"), "{message}");
    assert_eq!(condition(&failed, "Validation"), json!(["True", "ValidationPassed"]));

    let bed = Bed::new(cluster).await;
    let hardware = json!({ "gpuSku": "h1000", "totalGpus": 0 });
    bed.namespace.apply(request(json!({ "hardware": hardware, "backend": "tgi" }))).await;
    let failed = reaches(&bed, "Failed").await;
    let message = failed["status"]["conditions"].to_string();
    for part in ["h1000", "spec.hardware.totalGpus: 0 is not in", "spec.backend:"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
}
