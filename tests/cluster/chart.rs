//! The Helm chart on a cluster whose pods run: the real helm installs, upgrades and removes it, and
//! clients are answered all the while.

use crate::bed::{GraphBed, answer, chat, documents};
use hyper::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::nodes::{PodCluster, PodSpace};
use stator_tests::tooling::installed;
use std::path::{Path, PathBuf};
use tokio::process::Command;
use tokio::sync::watch;

/// The real helm, for one namespace.
struct Helm<'a> {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: &'a str,
}

impl<'a> Helm<'a> {
    /// Helm for the namespace of a test; `None`, and said so, where there is none.
    fn installed(cluster: &PodCluster, space: &'a PodSpace<'_>) -> Option<Self> {
        let program = installed("STATOR_TEST_CHARTS", "helm")?.join("helm");
        let kubeconfig = cluster.cluster().kubeconfig();
        Some(Self { program, kubeconfig, namespace: &space.namespace.name })
    }

    /// Installs the chart with the values of simulated workers, and others.
    async fn install(&self, values: &str) {
        let simulated = format!("{}/examples/simulated.yaml", chart());
        self.run(&["install", "stator", &chart(), "--values", &simulated, "--set", values]).await;
    }

    /// Runs it until what it changes is ready.
    async fn run(&self, args: &[&str]) {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(&self.program);
        command.args(args).args(["--wait", "--timeout", "3m"]);
        command.args(["--namespace", self.namespace]).env("HOME", home.path());
        let output = command.env("KUBECONFIG", &self.kubeconfig).output().await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {errors}");
    }
}

fn chart() -> String {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/helm/stator");
    chart.display().to_string()
}

/// Asks again and again until the test has what it wants; returns the number of answers.
///
/// # Panics
///
/// For an answer that fails, or is another than the first.
async fn ask(client: Client, model: String, mut ends: watch::Receiver<bool>) -> usize {
    let request = chat(&model, "Tell me a story", 50);
    let first = answer(&client, &request).await.unwrap();
    let mut answers = 1;
    while !*ends.borrow_and_update() {
        assert_eq!(answer(&client, &request).await, Ok(first.clone()));
        answers += 1;
    }
    answers
}

#[tokio::test]
async fn an_installed_chart_answers_is_upgraded_under_load_and_removed() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let space = cluster.space().await;
    let Some(helm) = Helm::installed(cluster, &space) else { return };
    helm.install("logFormat=json").await;

    let client = Client::new(space.endpoints("stator-proxy", 1).await[0]);
    let models: Value = client.get("/v1/models").await.json();
    let model = models["data"][0]["id"].as_str().unwrap().to_owned();
    let (end, ends) = watch::channel(false);
    let asking: Vec<_> =
        (0..4).map(|_| tokio::spawn(ask(client.clone(), model.clone(), ends.clone()))).collect();

    // Other workers, one more of them, while requests run.
    let change = "workers.simulated.replicas=3,workers.simulated.drainSeconds=20";
    helm.run(&["upgrade", "stator", &chart(), "--reuse-values", "--set", change]).await;
    let labels = "stator.dev/workers%3Dsimulated";
    let are_new = |pods: &[Value]| {
        let grace = |pod: &Value| pod["spec"]["terminationGracePeriodSeconds"] == 80;
        pods.len() == 3 && pods.iter().all(grace)
    };
    space.pods(labels, "the new workers alone", are_new).await;
    end.send(true).unwrap();
    for answers in asking {
        assert!(answers.await.unwrap() > 1);
    }

    helm.run(&["uninstall", "stator"]).await;
    space.pods(labels, "no worker", <[Value]>::is_empty).await;
}

/// Secrets with certificates of one authority, as cert-manager would keep them.
async fn certificates(space: &PodSpace<'_>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    for of in ["agent", "proxy"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([format!("stator-{of}")]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let mut secret = space.object("v1", "Secret", &format!("stator-{of}-tls"));
        secret["type"] = "kubernetes.io/tls".into();
        secret["stringData"] = json!({
            "ca.crt": authority, "tls.crt": certificate, "tls.key": key.serialize_pem(),
        });
        space.namespace.api.apply(&secret).await;
    }
}

#[tokio::test]
async fn a_chart_with_certificates_and_keys_answers_only_who_has_a_key() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let space = cluster.space().await;
    let Some(helm) = Helm::installed(cluster, &space) else { return };
    certificates(&space).await;
    let mut keys = space.object("v1", "Secret", "keys");
    keys["stringData"] = json!({ "keys": "a-key-of-a-client\n" });
    space.namespace.api.apply(&keys).await;
    let mut fleet = space.object("v1", "Secret", "fleet");
    fleet["stringData"] = json!({ "secret": "a-secret-of-all-agents-0123456789" });
    space.namespace.api.apply(&fleet).await;
    let closed = "requestTls.enabled=true,requestTls.certManager.enabled=false,\
                  proxy.apiKeysSecret=keys,fleetSecret=fleet,workers.simulated.engine=builtin";
    helm.install(closed).await;

    let client = Client::new(space.endpoints("stator-proxy", 1).await[0]);
    let request = chat("stator-tiny", "Hello", 5);
    let refused = client.post("/v1/chat/completions", &request).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let client = client.with_header("authorization", "Bearer a-key-of-a-client");
    assert!(!answer(&client, &request).await.unwrap().is_empty());
}

/// The way of a user with graphs: install the chart, apply a graph, ask.
#[tokio::test]
async fn the_operator_of_a_chart_makes_a_graph_that_answers() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let bed = GraphBed { space: cluster.space().await };
    let Some(helm) = Helm::installed(cluster, &bed.space) else { return };
    helm.install("operator.enabled=true,proxy.enabled=false,workers.simulated=null").await;
    let graph = include_str!("../../manifests/operator/graphs/simulated.yaml");
    bed.run(&documents(graph)[0]).await;
    let client = bed.frontend("simulated").await;
    assert!(!answer(&client, &chat("org/model", "Hello", 20)).await.unwrap().is_empty());
}
