//! The operator's webhooks, which a real API server asks over TLS before it stores a document.

use super::{data, documents, files, operator, read};
use hyper::{Method, StatusCode};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_api::Api;
use stator_tests::kube_objects::reference;
use stator_tests::kube_schema::holds;
use stator_tests::process::Process;
use std::path::PathBuf;

const OPERATOR: &str = include_str!("../../../manifests/operator/operator.yaml");
const WEBHOOKS: &str = include_str!("../../../manifests/operator/webhooks.yaml");
const GRAPH: &str = include_str!("../../../manifests/operator/graphs/simulated.yaml");
const OLDER: &str = include_str!("../../../manifests/operator/graphs/older.yaml");
/// Namespace in the manifest of webhooks.
const WRITTEN: &str = "graphs";

/// A cluster of its own, since definitions and webhooks are the whole cluster's, with an operator that
/// has the rights of the manifests, and no more.
struct Bed {
    cluster: Cluster,
    namespace: Namespace,
    kubeconfig: PathBuf,
}

impl Bed {
    async fn new() -> Option<Self> {
        let cluster = Cluster::start().await?;
        for definition in operator(&["crds"]) {
            cluster.define(&serde_yaml_ng::to_string(&definition).unwrap()).await;
        }
        let namespace = cluster.namespace().await;
        for mut object in documents(OPERATOR) {
            if object["kind"] == "RoleBinding" {
                object["subjects"][0]["namespace"] = json!(namespace.name);
            }
            namespace.apply(object).await;
        }
        for object in documents(&WEBHOOKS.replace(WRITTEN, &namespace.name)) {
            cluster.api().apply(&object).await;
        }
        let file = cluster.kubeconfig_for(&namespace.name, "stator-operator").await;
        let mut kubeconfig = read(&file).remove(0);
        kubeconfig["contexts"][0]["context"]["namespace"] = json!(namespace.name);
        let kubeconfig_file = file.with_extension("namespaced");
        std::fs::write(&kubeconfig_file, kubeconfig.to_string()).unwrap();
        Some(Self { cluster, namespace, kubeconfig: kubeconfig_file })
    }

    async fn operator(&self, more: &[&str]) -> Process {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let mut args = vec!["operator", "run", &kubeconfig, "--metrics-port=0"];
        args.extend(["--webhooks", "--webhook-port=0", "--webhook-host=127.0.0.1"]);
        args.extend(more);
        let mut process = Process::start(&args);
        process.event("webhooks are served").await;
        process
    }

    fn path(&self, version: &str, kind: &str) -> String {
        let plural = kind.to_lowercase() + "s";
        format!("/apis/{version}/namespaces/{}/{plural}", self.namespace.name)
    }

    /// The API server's answer to a new document, whose unknown fields it refuses.
    async fn create(&self, document: &Value, query: &str) -> (StatusCode, Value) {
        let text = |name: &str| document[name].as_str().unwrap();
        let path = self.path(text("apiVersion"), text("kind"));
        let path = format!("{path}?fieldValidation=Strict{query}");
        let body = document.to_string();
        let reply = self.namespace.api.send(Method::POST, &path, "application/json", body).await;
        (reply.status, reply.json())
    }
}

fn api(bed: &Bed) -> &Api {
    &bed.namespace.api
}

/// A webhook is known to an API server a moment after its configuration was written.
async fn until_refused(bed: &Bed, document: &Value) -> Value {
    stator_tests::soon("the webhooks are asked", async {
        loop {
            let (status, answer) = bed.create(document, "&dryRun=All").await;
            if status != StatusCode::CREATED {
                assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn documents_are_checked_filled_in_and_converted() {
    let Some(bed) = Bed::new().await else { return };
    let _operator = bed.operator(&[]).await;

    // All faults of a document come at once.
    let graph = documents(GRAPH).remove(0);
    let mut bad = graph.clone();
    bad["spec"]["components"][0]["frontendSidecar"] = json!("door");
    bad["spec"]["components"][1]["sharedMemorySize"] = json!("-1Gi");
    let refusal = until_refused(&bed, &bad).await;
    let causes = refusal["details"]["causes"].as_array().unwrap();
    let fields: Vec<_> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    let expected =
        ["spec.components[Frontend].frontendSidecar", "spec.components[Prefill].sharedMemorySize"];
    assert_eq!(fields, expected, "{refusal:#}");

    // What is missing is filled in.
    let mut sparse = graph.clone();
    for component in sparse["spec"]["components"].as_array_mut().unwrap() {
        component.as_object_mut().unwrap().remove("replicas");
    }
    let (status, stored) = bed.create(&sparse, "").await;
    assert_eq!(status, StatusCode::CREATED, "{stored:#}");
    let annotations = &stored["metadata"]["annotations"];
    assert_eq!(annotations["nvidia.com/dynamo-operator-origin-version"], "1.5.0");
    // What is installed decides it, unless the graph does.
    assert!(annotations["nvidia.com/workload-provider"].is_null(), "{annotations:#}");
    assert_eq!(stored["spec"]["components"][0]["replicas"], 1);

    // A change of what is immutable is refused.
    let object =
        reference("nvidia.com/v1beta1", "DynamoGraphDeployment", &bed.namespace.name, "simulated");
    let patch = json!({ "spec": { "backendFramework": "sglang" } }).to_string();
    let path = format!("{}/simulated", bed.path("nvidia.com/v1beta1", "DynamoGraphDeployment"));
    let media = "application/merge-patch+json";
    let reply = api(&bed).send(Method::PATCH, &path, media, patch).await;
    assert!(reply.json()["message"].to_string().contains("spec.backendFramework: is immutable"));
    assert!(api(&bed).get(&object).await.unwrap()["spec"]["backendFramework"].is_null());

    // A document of the older version is stored in the newer, and comes back as it was.
    let older = documents(OLDER).remove(0);
    let (status, stored) = bed.create(&older, "").await;
    assert_eq!(status, StatusCode::CREATED, "{stored:#}");
    assert!(holds(&stored["spec"], &older["spec"]), "{stored:#}");
    let newer =
        reference("nvidia.com/v1beta1", "DynamoGraphDeployment", &bed.namespace.name, "older");
    let newer = api(&bed).get(&newer).await.unwrap();
    assert!(newer["spec"]["components"].is_array(), "{newer:#}");
    assert!(newer["spec"].get("services").is_none(), "{newer:#}");
    // The operator reads it as it was written.
    let deployment = reference("apps/v1", "Deployment", &bed.namespace.name, "older-frontend");
    api(&bed).until(&deployment, "its objects appear", |_| true).await;
}

/// Every manifest that Dynamo's operator takes is taken, the webhooks being asked.
#[tokio::test]
async fn manifests_of_dynamo_pass_the_webhooks() {
    let Some(folder) = data("dynamo-manifests") else { return };
    let Some(bed) = Bed::new().await else { return };
    let _operator = bed.operator(&[]).await;
    let mut bad = documents(GRAPH).remove(0);
    bad["spec"]["components"] = json!([]);
    until_refused(&bed, &bad).await;
    let manifests = [files(&folder.join("examples")), files(&folder.join("deploy/utils"))].concat();
    assert_eq!(manifests.len(), 26);
    for file in manifests {
        for document in
            read(&file).iter().filter(|one| one["kind"].as_str().unwrap().starts_with("Dynamo"))
        {
            let (status, stored) = bed.create(document, "").await;
            assert_eq!(status, StatusCode::CREATED, "{}: {stored:#}", file.display());
            assert!(holds(&stored["spec"], &document["spec"]), "{}: {stored:#}", file.display());
            let text = |name: &str| document[name].as_str().unwrap();
            let name = document["metadata"]["name"].as_str().unwrap();
            let path = format!("{}/{name}", bed.path(text("apiVersion"), text("kind")));
            api(&bed).send(Method::DELETE, &path, "application/json", "").await;
        }
    }
}

/// Files of somebody else's making, as cert-manager mounts them, are shown and trusted.
#[tokio::test]
async fn certificates_may_be_somebody_elses() {
    let Some(bed) = Bed::new().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let trusted = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let own = own.signed_by(&key, &issuer).unwrap().pem();
    for (name, text) in [("ca.crt", &trusted), ("tls.crt", &own), ("tls.key", &key.serialize_pem())]
    {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let flag = format!("--webhook-certificates={}", folder.path().display());
    let _operator = bed.operator(&[&flag]).await;
    let mut bad = documents(GRAPH).remove(0);
    bad["spec"]["components"] = json!([]);
    until_refused(&bed, &bad).await;
    let secret = reference("v1", "Secret", &bed.namespace.name, "stator-operator");
    assert!(bed.cluster.api().get(&secret).await.is_none(), "no authority is made");
}

/// Each replica shows a certificate of the same authority, and a second operator leaves the first
/// one's conversion alone.
#[tokio::test]
async fn replicas_share_an_authority() {
    let Some(bed) = Bed::new().await else { return };
    let mut first = bed.operator(&[]).await;
    let name = &bed.namespace.name;
    let secret = reference("v1", "Secret", name, "stator-operator");
    let made = bed.cluster.api().get(&secret).await.unwrap();
    first.terminate();
    assert!(first.ended().await.success());
    let _second = bed.operator(&[]).await;
    let found = bed.cluster.api().get(&secret).await.unwrap();
    assert_eq!(found["data"], made["data"]);
    let definition = reference(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "",
        "dynamographdeployments.nvidia.com",
    );
    let definition = bed.cluster.api().get(&definition).await.unwrap();
    let client = &definition["spec"]["conversion"]["webhook"]["clientConfig"];
    assert_eq!(client["caBundle"], made["data"]["ca.crt"]);
    assert_eq!(definition["metadata"]["annotations"]["stator.dev/conversion"], "https://127.0.0.1");
}
