//! The Helm chart on a cluster whose pods run: the real helm installs, upgrades and removes it, and
//! clients are answered all the while.

use crate::bed::{answer, chat};
use serde_json::Value;
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
    space: &'a PodSpace<'a>,
}

impl Helm<'_> {
    /// Runs it until what it changes is ready.
    async fn run(&self, args: &[&str]) {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(&self.program);
        command.args(args).args(["--wait", "--timeout", "3m"]);
        command.args(["--namespace", &self.space.namespace.name]).env("HOME", home.path());
        let output = command.env("KUBECONFIG", &self.kubeconfig).output().await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {errors}");
    }
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
    let Some(charts) = installed("STATOR_TEST_CHARTS", "helm") else { return };
    let Some(cluster) = PodCluster::shared().await else { return };
    let space = cluster.space().await;
    let kubeconfig = cluster.cluster().kubeconfig();
    let helm = Helm { program: charts.join("helm"), kubeconfig, space: &space };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/helm/stator");
    let chart = chart.display().to_string();
    let values = format!("{chart}/examples/simulated.yaml");
    helm.run(&["install", "stator", &chart, "--values", &values]).await;

    let client = Client::new(space.endpoints("stator-proxy", 1).await[0]);
    let models: Value = client.get("/v1/models").await.json();
    let model = models["data"][0]["id"].as_str().unwrap().to_owned();
    let (end, ends) = watch::channel(false);
    let asking: Vec<_> =
        (0..4).map(|_| tokio::spawn(ask(client.clone(), model.clone(), ends.clone()))).collect();

    // Other workers, one more of them, while requests run.
    let change = ["--set", "workers.simulated.replicas=3,workers.simulated.drainSeconds=20"];
    let line = ["upgrade", "stator", &chart, "--values", &values];
    helm.run(&[&line[..], &change].concat()).await;
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
