//! Our definitions accept what Dynamo's accept.

use super::serve::Bed;
use super::{data, files, operator, read};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use stator_tests::kube::Cluster;
use stator_tests::kube_api::Api;
use stator_tests::kube_objects::reference;
use stator_tests::kube_schema::{DocumentDraw, holds};
use stator_tests::process::Process;

/// Group of Dynamo's definitions here, beside ours of the same names.
const THEIRS: &str = "theirs.stator.dev";
const OURS: &str = "nvidia.com";
/// Published sizes of Qwen3 0.6B.
const QWEN_SMALL: &str = r#"{"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": true}"#;
/// Documents drawn of each version of each kind, and of its status.
const DRAWN: u64 = 40;

/// The API server's answer to a document that is not to be kept, with unknown fields refused.
async fn answer(api: &Api, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let media = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let path = format!("{path}?dryRun=All&fieldValidation=Strict");
    let reply = api.send(method, &path, media, body.to_string()).await;
    (reply.status, reply.json())
}

async fn define_ours(cluster: &Cluster) {
    for definition in operator(&["crds"]) {
        cluster.define(&serde_yaml_ng::to_string(&definition).unwrap()).await;
    }
}

/// Dynamo's definition under another group and without its webhook.
async fn define_theirs(cluster: &Cluster, definition: &Value) {
    let mut theirs = definition.clone();
    let spec = theirs["spec"].as_object_mut().unwrap();
    spec.remove("conversion");
    spec["group"] = json!(THEIRS);
    let name = format!("{}.{THEIRS}", definition["spec"]["names"]["plural"].as_str().unwrap());
    theirs["metadata"] = json!({ "name": name });
    cluster.define(&serde_yaml_ng::to_string(&theirs).unwrap()).await;
}

#[tokio::test]
async fn our_definitions_accept_what_dynamos_accept() {
    let Some(folder) = data("dynamo-crds/without-descriptions") else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    define_ours(cluster).await;
    let namespace = cluster.namespace().await;
    for file in files(&folder) {
        let definition = read(&file).remove(0);
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
        // Snapshots of processes are not among our kinds.
        if plural == "dynamocheckpoints" {
            continue;
        }
        define_theirs(cluster, &definition).await;
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
            Pair { api: &namespace.api, namespace: &namespace.name, plural, kind, version }
                .compare()
                .await;
        }
    }
}

/// A version of a kind that is defined twice.
struct Pair<'a> {
    api: &'a Api,
    namespace: &'a str,
    plural: &'a str,
    kind: &'a str,
    version: &'a Value,
}

impl Pair<'_> {
    fn path(&self, group: &str) -> String {
        let version = self.version["name"].as_str().unwrap();
        format!("/apis/{group}/{version}/namespaces/{}/{}", self.namespace, self.plural)
    }

    fn document(&self, group: &str, spec: &Value) -> Value {
        let version = format!("{group}/{}", self.version["name"].as_str().unwrap());
        json!({ "apiVersion": version, "kind": self.kind, "metadata": { "name": "a" }, "spec": spec })
    }

    async fn compare(&self) {
        let properties = &self.version["schema"]["openAPIV3Schema"]["properties"];
        let mut accepted = Vec::new();
        for seed in 0..DRAWN {
            let spec = DocumentDraw::new(seed).value(&properties["spec"]);
            let theirs = self.document(THEIRS, &spec);
            let (status, _) = answer(self.api, Method::POST, &self.path(THEIRS), &theirs).await;
            if status != StatusCode::CREATED {
                continue;
            }
            let ours = self.document(OURS, &spec);
            let (status, kept) = answer(self.api, Method::POST, &self.path(OURS), &ours).await;
            assert_eq!(status, StatusCode::CREATED, "seed {seed}: {}\n{ours:#}", kept["message"]);
            assert!(holds(&kept["spec"], &spec), "seed {seed}: {:#}\nof {spec:#}", kept["spec"]);
            accepted.push(spec);
        }
        let (number, drawn) = (accepted.len() as u64, DRAWN);
        assert!(number >= DRAWN / 8, "{}: of {drawn} documents {number} count", self.path(THEIRS));
        if self.version["subresources"].get("status").is_some() {
            self.compare_status(&accepted[0], &properties["status"]).await;
        }
    }

    async fn compare_status(&self, spec: &Value, schema: &Value) {
        for group in [THEIRS, OURS] {
            let path = self.path(group);
            let body = self.document(group, spec).to_string();
            let reply = self.api.send(Method::POST, &path, "application/json", body).await;
            let is_there = [StatusCode::CREATED, StatusCode::CONFLICT].contains(&reply.status);
            assert!(is_there, "{path}: {:?}", reply.json()["message"]);
        }
        let mut accepted = 0;
        for seed in 0..DRAWN {
            let status = json!({ "status": DocumentDraw::new(seed).value(schema) });
            let path = |group: &str| format!("{}/a/status", self.path(group));
            if answer(self.api, Method::PATCH, &path(THEIRS), &status).await.0 == StatusCode::OK {
                accepted += 1;
                let (code, said) = answer(self.api, Method::PATCH, &path(OURS), &status).await;
                assert_eq!(code, StatusCode::OK, "seed {seed}: {}\n{status:#}", said["message"]);
            }
        }
        assert!(accepted >= DRAWN / 8, "{}: of {DRAWN} states {accepted} count", self.path(THEIRS));
        // The next version has an object of this name, too.
        for group in [THEIRS, OURS] {
            let path = format!("{}/a", self.path(group));
            self.api.send(Method::DELETE, &path, "application/json", "").await;
        }
    }
}

#[tokio::test]
async fn manifests_of_dynamo_are_accepted() {
    let Some(folder) = data("dynamo-manifests") else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    define_ours(cluster).await;
    let namespace = cluster.namespace().await;
    let manifests = [files(&folder.join("examples")), files(&folder.join("deploy/utils"))].concat();
    assert_eq!(manifests.len(), 26);
    for file in manifests {
        for document in
            read(&file).iter().filter(|one| one["kind"].as_str().unwrap().starts_with("Dynamo"))
        {
            let version = document["apiVersion"].as_str().unwrap();
            let plural = document["kind"].as_str().unwrap().to_lowercase() + "s";
            let path = format!("/apis/{version}/namespaces/{}/{plural}", namespace.name);
            let (status, said) = answer(&namespace.api, Method::POST, &path, document).await;
            assert_eq!(status, StatusCode::CREATED, "{}: {}", file.display(), said["message"]);
        }
    }
}

/// No webhook converts: what was written in the older version is stored whole and comes back.
#[tokio::test]
async fn older_documents_are_stored_whole() {
    let Some(cluster) = Cluster::shared().await else { return };
    define_ours(cluster).await;
    let namespace = cluster.namespace().await;
    let older = include_str!("../../../manifests/operator/graphs/older.yaml");
    let document = super::documents(older).remove(0);
    namespace.apply(document.clone()).await;
    for version in ["nvidia.com/v1alpha1", "nvidia.com/v1beta1"] {
        let object = reference(version, "DynamoGraphDeployment", &namespace.name, "older");
        let found = namespace.api.get(&object).await.unwrap();
        assert!(holds(&found["spec"], &document["spec"]), "{found:#}");
    }
}

/// The manifests of plans: the server knows all of their fields, the operator makes a graph of them,
/// and its planner finds what scales the workers.
#[tokio::test]
async fn a_plan_writes_the_graph_whose_decode_workers_are_scaled_and_its_page() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let namespace = &bed.namespace;
    for form in ["aggregated", "disaggregated"] {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::write(path("config.json"), QWEN_SMALL).unwrap();
        let flag = |flag: &str, name: &str| format!("--{flag}={}", path(name).display());
        let mut plan = Process::start(&[
            "plan",
            "--gpu=h100-sxm",
            "--gpus=8",
            "--rate=4",
            "--engine=vllm",
            "--planner",
            &format!("--form={form}"),
            &format!("--model-name={form}"),
            &flag("model", "config.json"),
            &flag("html", "plan.html"),
            &flag("manifest", "graph.yaml"),
        ]);
        assert!(plan.ended().await.success(), "{}", plan.log());
        let page = std::fs::read_to_string(path("plan.html")).unwrap();
        assert!(page.contains("<svg") && page.contains("tp1"), "{page}");

        let graph = read(&path("graph.yaml")).remove(0);
        let place = format!("/apis/{OURS}/v1beta1/namespaces/{}", namespace.name);
        let path = format!(
            "{place}/dynamographdeployments/{form}?fieldManager=tests&fieldValidation=Strict"
        );
        let media = "application/apply-patch+yaml";
        let reply = namespace.api.send(Method::PATCH, &path, media, graph.to_string()).await;
        assert_eq!(reply.status, StatusCode::CREATED, "{:?}", reply.json());

        // Its planner asks for what the graph has, by step times of its own.
        let planner = bed.object("apps/v1", "Deployment", &format!("{form}-planner"));
        let planner = namespace.api.until(&planner, "a planner", |_| true).await;
        let words = planner["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        let worker = if form == "aggregated" { "worker" } else { "decode" };
        let scaled = format!("dgdsa/{form}-{worker}");
        for word in [&scaled, "--optimization-target=sla", "--timing={", "--ttft-ms=2000"] {
            assert!(words.contains(word), "{word} is not in {words}");
        }
        // What it asks for is done: the workers scale out and back.
        let adapters = format!("{place}/dynamographdeploymentscalingadapters/{form}-{worker}");
        let kind = "DynamoGraphDeploymentScalingAdapter";
        let adapter = bed.object("nvidia.com/v1beta1", kind, &format!("{form}-{worker}"));
        let now = namespace.api.until(&adapter, "an adapter", |_| true).await;
        let planned = now["spec"]["replicas"].as_u64().unwrap();
        for replicas in [planned + 1, planned] {
            let scale = json!({ "spec": { "replicas": replicas } }).to_string();
            let media = "application/merge-patch+json";
            let path = format!("{adapters}/scale");
            let reply = namespace.api.send(Method::PATCH, &path, media, scale).await;
            assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.json());
            let component = format!("a graph with {replicas} of {worker}");
            let graph = bed.object("nvidia.com/v1beta1", "DynamoGraphDeployment", form);
            namespace
                .api
                .until(&graph, &component, |graph| {
                    graph["status"]["components"][worker]["replicas"] == replicas
                })
                .await;
        }
    }
}

#[tokio::test]
async fn an_adapter_has_a_scale() {
    let Some(cluster) = Cluster::shared().await else { return };
    define_ours(cluster).await;
    let namespace = cluster.namespace().await;
    let kind = "DynamoGraphDeploymentScalingAdapter";
    let mut adapter = reference("nvidia.com/v1beta1", kind, &namespace.name, "a");
    adapter["spec"] = json!({ "replicas": 1, "dgdRef": { "name": "g", "componentName": "C" } });
    namespace.apply(adapter.clone()).await;
    let plural = "dynamographdeploymentscalingadapters";
    // Autoscalers may still use the older version, which must not lose what the newer one has.
    for (version, replicas) in [("v1beta1", 4), ("v1alpha1", 5)] {
        let place = &namespace.name;
        let path = format!("/apis/nvidia.com/{version}/namespaces/{place}/{plural}/a/scale");
        let scale = json!({ "spec": { "replicas": replicas } }).to_string();
        let reply =
            namespace.api.send(Method::PATCH, &path, "application/merge-patch+json", scale).await;
        assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.json());
        let scaled = namespace.api.get(&adapter).await.unwrap();
        assert_eq!(scaled["spec"]["replicas"], replicas);
        assert_eq!(scaled["spec"]["dgdRef"], adapter["spec"]["dgdRef"]);
    }
}
