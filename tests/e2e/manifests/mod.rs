//! The Helm chart, by the real `helm`, and the plain manifests, by the real `kubectl kustomize`: all
//! objects are accepted by a real API server, strictly, and are as Kubernetes' users expect.

mod accepted;
mod expected;
mod plain;
mod refused;
mod started;

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

/// Objects that are applied together, and where they come from.
#[derive(Clone)]
struct ObjectSet {
    name: String,
    objects: Vec<Value>,
}

impl ObjectSet {
    /// Objects of the chart's examples, in the namespace `n`.
    fn of_chart() -> Vec<Self> {
        let Some(helm) = Helm::installed() else { return Vec::new() };
        let example = |file: &PathBuf| {
            let objects = helm.objects("n", &["--values", &file.display().to_string()]);
            Self { name: stem(file), objects }
        };
        examples().iter().map(example).collect()
    }

    /// Objects of the chart's examples and of the plain manifests.
    fn all() -> Vec<Self> {
        let mut all = Self::of_chart();
        all.extend_from_slice(plain::sets());
        all
    }

    fn of<'a>(&'a self, kinds: &'a [&'a str]) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| kinds.contains(&text(&object["kind"])))
    }

    /// Pods that the objects run, with their owners.
    fn workloads(&self) -> Vec<Workload<'_>> {
        let usual = self.of(&["Deployment", "DaemonSet"]).map(|owner| {
            let whose = format!("{}: {}", self.name, owner["metadata"]["name"]);
            Workload { whose, owner, template: &owner["spec"]["template"] }
        });
        let groups = self.of(&["LeaderWorkerSet"]).flat_map(|owner| {
            ["leaderTemplate", "workerTemplate"].map(|part| {
                let whose = format!("{}: {} {part}", self.name, owner["metadata"]["name"]);
                let template = &owner["spec"]["leaderWorkerTemplate"][part];
                Workload { whose, owner, template }
            })
        });
        usual.chain(groups).collect()
    }
}

/// Pods of one template.
struct Workload<'a> {
    /// Its name, for messages.
    whose: String,
    /// Object that makes the pods.
    owner: &'a Value,
    template: &'a Value,
}

impl Workload<'_> {
    fn containers(&self) -> &[Value] {
        list(&self.template["spec"]["containers"])
    }
}

/// Arguments of a container that runs stator, with values in place of the pod's own; `None` for other
/// programs.
fn stator_args(container: &Value) -> Option<Vec<String>> {
    let args: Vec<_> = list(&container["args"]).iter().map(text).collect();
    let roles = ["agent", "epp", "operator", "planner", "proxy", "sidecar"];
    if !roles.contains(args.first()?) {
        return None;
    }
    let values = [("$(POD_IP)", "10.0.0.1"), ("$(NAMESPACE)", "n"), ("$(LWS_LEADER_ADDRESS)", "a")];
    let filled =
        |arg: &&str| values.iter().fold((*arg).to_owned(), |a, (of, by)| a.replace(of, by));
    Some(args.iter().map(filled).collect())
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
