//! `stator doctor`: on this machine, on a real engine, and on a real API server.

use serde::Deserialize;
use serde_json::{Value, json};
use stator_tests::kube::Cluster;
use stator_tests::kube_objects::reference;
use stator_tests::process::binary;
use stator_tests::soon;
use stator_tests::tooling::installed;
use std::path::Path;
use tokio::process::Command;

/// Exit status and report of an examination.
async fn examine(args: &[&str]) -> (i32, Value) {
    let mut command = Command::new(binary());
    let output = command.arg("doctor").args(args).arg("--json").output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    for finding in report["findings"].as_array().unwrap() {
        let is_fine = finding["severity"] == "fine";
        assert!(is_fine || finding["advice"] != "", "{finding:#} says nothing to do");
    }
    (output.status.code().unwrap(), report)
}

/// The findings of an area, as severity and text.
fn findings<'a>(report: &'a Value, area: &str) -> Vec<(&'a str, &'a str)> {
    let all = report["findings"].as_array().unwrap();
    let ours = all.iter().filter(|finding| finding["area"] == area);
    ours.map(|finding| (finding["severity"].as_str().unwrap(), finding["says"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn this_machine_and_the_bundled_model_are_examined() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-agent/tiny-model");
    let model = model.display().to_string();
    let (_, report) = examine(&["--ports=0", "--model", &model]).await;
    assert_eq!(findings(&report, "ports"), [("fine", "port 0 is free")]);
    assert_eq!(findings(&report, "tokenizer")[0].0, "fine", "{report:#}");
    assert_eq!(findings(&report, "weights")[0].0, "fine", "{report:#}");
    for area in ["gpu", "rdma", "shm", "memory", "limits", "hugepages"] {
        assert!(!findings(&report, area).is_empty(), "{area} is missing in {report:#}");
    }
}

#[tokio::test]
async fn a_taken_port_and_a_missing_model_end_with_status_1() {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (status, report) =
        examine(&["--ports", &port.to_string(), "--model", "/nowhere/at/all"]).await;
    assert_eq!(status, 1);
    assert_eq!(findings(&report, "ports")[0].0, "wrong");
    assert_eq!(findings(&report, "model")[0].0, "wrong");
    assert!(report["wrong"].as_u64().unwrap() >= 2, "{report:#}");
}

#[tokio::test]
async fn an_installed_vllm_tells_its_version() {
    let Some(program) = installed("STATOR_TEST_VLLM", "vLLM") else { return };
    let program = program.display().to_string();
    let args = ["--ports=0", "--engine=vllm", "--engine-program", &program];
    let (_, report) = examine(&args).await;
    let (severity, says) = findings(&report, "engine")[0];
    assert_eq!(severity, "fine", "{says}");
    assert!(says.starts_with("vllm 0."), "{says}");
}

#[tokio::test]
async fn a_cluster_is_examined_with_the_rights_of_a_role() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let place = ["cluster", "--kubeconfig", &kubeconfig, "--namespace", &namespace.name];
    let (status, report) = examine(&place).await;
    assert_eq!(status, 0, "{report:#}");
    assert!(findings(&report, "api")[0].1.starts_with("Kubernetes v"), "{report:#}");
    assert_eq!(findings(&report, "clock")[0].0, "fine");
    assert_eq!(findings(&report, "namespace")[0].0, "fine");
    let kinds = findings(&report, "kinds");
    assert!(kinds.contains(&("fine", "inference.networking.k8s.io v1")), "{kinds:?}");
    assert!(findings(&report, "rights")[0].1.starts_with("this account has all"), "{report:#}");

    // The picker's account has no rights yet, then all but one, then all.
    let asked = [&place[..], &["--roles=epp", "--account=stator-epp"]].concat();
    let (status, report) = examine(&asked).await;
    assert_eq!(status, 1);
    let expected = ("wrong", "stator-epp may not get, list, watch pods");
    assert!(findings(&report, "rights").contains(&expected), "{report:#}");
    let text = include_str!("../../manifests/epp/base/role.yaml");
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let mut object = Value::deserialize(document).unwrap();
        if let Some(subjects) = object.get_mut("subjects").and_then(Value::as_array_mut) {
            subjects[0]["namespace"] = json!(namespace.name);
        }
        namespace.apply(object).await;
    }
    // The server learns of roles by watching them.
    let account = reference("v1", "ServiceAccount", &namespace.name, "stator-epp");
    cluster.api().apply(&account).await;
    soon("the account has the rights", async {
        while examine(&asked).await.0 != 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (_, report) = examine(&asked).await;
    assert!(findings(&report, "rights")[0].1.starts_with("stator-epp has all"), "{report:#}");
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_one_finding() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("config");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": { "server": "http://127.0.0.1:1" } }],
        "users": [{ "name": "a", "user": {} }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let file = file.display().to_string();
    let (status, report) = examine(&["cluster", "--kubeconfig", &file]).await;
    assert_eq!(status, 1);
    assert_eq!(report["findings"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(findings(&report, "api")[0].0, "wrong");
}
