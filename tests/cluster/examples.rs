//! Dynamo's own manifests, unchanged: those that a simulated or a pretend engine can stand in for are
//! served through.

use crate::bed::{GraphBed, answer, chat, documents};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::nodes::{MODEL, PodCluster};
use stator_tests::soon;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Manifests that are served through, and the tag of their images' stand-ins. vLLM's place is taken by
/// a pretend vLLM, which the agent starts by the translated command line; that of SGLang and TensorRT-LLM
/// by the agent's own simulated engine.
const SERVED: [&str; 14] = [
    "deploy/utils/tests/fixtures/v1alpha1/agg.yaml",
    "deploy/utils/tests/fixtures/v1alpha1/disagg_router.yaml",
    "examples/backends/mocker/deploy/disagg.yaml",
    "examples/backends/sglang/deploy/disagg.yaml",
    "examples/backends/trtllm/deploy/agg-with-config.yaml",
    "examples/backends/vllm/deploy/agg.yaml",
    "examples/backends/vllm/deploy/agg_router.yaml",
    "examples/backends/vllm/deploy/agg_router_kv_approx.yaml",
    "examples/backends/vllm/deploy/disagg.yaml",
    "examples/backends/vllm/deploy/disagg_planner.yaml",
    "examples/backends/vllm/deploy/disagg_router.yaml",
    "examples/backends/vllm/deploy/gaie/agg.yaml",
    "examples/backends/vllm/deploy/gms-failover.yaml",
    "examples/backends/vllm/deploy/lora/agg_lora.yaml",
];
/// Graphs that run at once.
const AT_ONCE: usize = 3;
/// Images of the manifests, and what stands in for each.
const IMAGES: [(&str, &str); 5] = [
    ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:my-tag", "stator-vllm"),
    ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:latest", "stator-vllm"),
    ("nvcr.io/nvidia/ai-dynamo/epp-image:my-tag", "stator"),
    ("my-registry/sglang-runtime:my-tag", "stator-simulated"),
    ("my-registry/tensorrtllm-runtime:my-tag", "stator-simulated"),
];
const HUB_MODEL: &str = "Qwen/Qwen3-0.6B";

/// The folder of the manifests; `None`, and said so, where it is not beside the checkout.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/dynamo-manifests");
    if folder.is_dir() {
        return Some(folder);
    }
    let _ = writeln!(std::io::stderr().lock(), "not run: there is no {}", folder.display());
    None
}

#[tokio::test]
async fn dynamos_examples_answer_unchanged() {
    let Some(folder) = folder() else { return };
    let Some(cluster) = PodCluster::shared().await else { return };
    let bed = GraphBed::with(cluster, &IMAGES, &[(HUB_MODEL, MODEL)]).await;
    for (name, keys) in [
        ("hf-token-secret", json!({ "HF_TOKEN": "none" })),
        ("minio-secret", json!({ "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b" })),
    ] {
        let mut secret = bed.space.object("v1", "Secret", name);
        secret["stringData"] = keys;
        bed.space.namespace.api.apply(&secret).await;
    }
    let served = stream::iter(SERVED).for_each_concurrent(AT_ONCE, async |file| {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        serve(&bed, file, documents(&text)).await;
    });
    served.await;
}

/// Applies a manifest, asks its graph once, and deletes it.
async fn serve(bed: &GraphBed<'_>, file: &str, objects: Vec<Value>) {
    let mut graph = Value::Null;
    for object in objects {
        let applied = bed.space.namespace.apply(object).await;
        if applied["kind"] == "DynamoGraphDeployment" {
            graph = applied;
        }
    }
    bed.ready(&graph).await;
    let client = door(bed, graph["metadata"]["name"].as_str().unwrap()).await;
    let model = model(&client).await;
    let said = answer(&client, &chat(&model, "Hello", 5)).await;
    assert!(said.as_ref().is_ok_and(|text| !text.is_empty()), "{file}: {said:?}");
    bed.space.namespace.api.delete(&graph, Duration::ZERO).await;
}

/// A client of a graph's frontend, or where a picker stands before it, of a decode worker's sidecar.
async fn door(bed: &GraphBed<'_>, graph: &str) -> Client {
    let labels = format!(
        "nvidia.com/dynamo-graph-deployment-name={graph},\
         nvidia.com/dynamo-component-type%20in%20(frontend,decode)"
    );
    let has_address = |pods: &[Value]| pods.iter().all(|pod| pod["status"]["podIP"].is_string());
    let pods = bed.space.pods(&labels, "pods with addresses", has_address).await;
    let kind =
        |pod: &&Value| pod["metadata"]["labels"]["nvidia.com/dynamo-component-type"] == "frontend";
    let pod = pods.iter().find(kind).unwrap_or(&pods[0]);
    let address = pod["status"]["podIP"].as_str().unwrap().parse().unwrap();
    Client::new(SocketAddr::new(address, 8000))
}

/// The model that a frontend serves, as soon as it serves one.
async fn model(client: &Client) -> String {
    soon("a model", async {
        loop {
            let models = client.get("/v1/models").await.json();
            if let Some(model) = models["data"][0]["id"].as_str() {
                return model.to_owned();
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}
