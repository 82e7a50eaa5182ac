//! The Helm chart, by the real `helm`: what it makes of each example is accepted by a real API server,
//! strictly, and is as Kubernetes' users expect.

mod accepted;
mod expected;
mod refused;

use serde::Deserialize;
use serde_json::Value;
use stator_tests::tooling::installed;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Name of the releases, after which the examples call what they scale.
const RELEASE: &str = "stator";

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/helm/stator")
}

/// The examples of values, by path; that of the chart's own defaults is none.
fn examples() -> Vec<PathBuf> {
    let files = std::fs::read_dir(chart().join("examples")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    files
}

/// The real helm; `None`, and said so, where there is none.
struct Helm {
    program: PathBuf,
}

impl Helm {
    fn installed() -> Option<Self> {
        let folder = installed("STATOR_TEST_CHARTS", "helm")?;
        Some(Self { program: folder.join("helm") })
    }

    fn run(&self, args: &[&str]) -> Output {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(&self.program);
        command.args(args).env("HOME", home.path()).env_remove("KUBECONFIG");
        command.output().unwrap()
    }

    /// Output of the command.
    fn prints(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The objects of a release in a namespace.
    fn objects(&self, namespace: &str, args: &[&str]) -> Vec<Value> {
        let chart = chart().display().to_string();
        let line = ["template", RELEASE, &chart, "--namespace", namespace];
        // What the API server of a cluster would tell.
        let versions = ["--kube-version", "1.36.0"];
        documents(&self.prints(&[&line[..], &versions, args].concat()))
    }
}

fn documents(text: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let documents = documents.map(|one| Value::deserialize(one).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The name in a path, for messages.
fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}
