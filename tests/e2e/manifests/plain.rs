//! The plain manifests, and what their comments offer: other agents in place of the built-in ones, and
//! components.

use super::{ObjectSet, documents};
use serde_json::{Value, json};
use stator_tests::tooling::installed;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Agents that go into `manifests/agents` in place of its own, with components.
const AGENTS: [(&str, &[&str]); 6] = [
    ("agent.yaml", &[]),
    ("agent.yaml", &["planner"]),
    ("agent.yaml", &["planner", "https", "tls", "zmq"]),
    ("vllm", &["planner", "tls", "zmq"]),
    ("roles", &["planner", "tls", "zmq"]),
    ("leader-worker-set.yaml", &["tls"]),
];

/// Folders of `manifests/epp`, with components.
const PICKERS: [(&str, &[&str]); 8] = [
    ("base", &[]),
    ("envoy-gateway", &[]),
    (
        "istio",
        &["components/leader-election", "components/metrics-auth", "components/node-topology"],
    ),
    ("kgateway", &["components/agent-tls", "configs"]),
    ("agentgateway", &[]),
    ("disaggregated", &[]),
    ("across-namespaces", &[]),
    ("further-namespace", &[]),
];

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests")
}

/// The objects of the plain manifests; none, and said so, without kubectl.
pub(super) fn sets() -> &'static [ObjectSet] {
    static SETS: OnceLock<Vec<ObjectSet>> = OnceLock::new();
    SETS.get_or_init(made)
}

fn made() -> Vec<ObjectSet> {
    let Some(kubectl) = installed("STATOR_TEST_KUBE", "the Kubernetes API server") else {
        return Vec::new();
    };
    let kubectl = kubectl.join("kubectl");
    let agents = AGENTS.map(|(agents, components)| {
        let copy = Copy::of("agents");
        copy.change("agents", |of| {
            let resources = of["resources"].as_array_mut().expect("there are resources");
            let own = resources.iter_mut().find(|of| **of == "agent.yaml");
            *own.expect("it has agents") = json!(agents);
            let names = components.iter().map(|name| format!("components/{name}"));
            of["components"] = names.collect();
        });
        let name = format!("agents/{agents} {components:?}");
        ObjectSet { name, objects: copy.made(&kubectl, "agents") }
    });
    let pickers = PICKERS.map(|(folder, components)| {
        let copy = Copy::of("epp");
        if !components.is_empty() {
            let names = components.iter().map(|name| format!("../{name}"));
            copy.change(folder, |of| of["components"] = names.collect());
        }
        let name = format!("epp/{folder} {components:?}");
        ObjectSet { name, objects: copy.made(&kubectl, folder) }
    });
    let operator = Copy::of("operator");
    operator.change("operator", |of| {
        of["resources"] = json!(["operator.yaml", "webhooks.yaml"]);
        of["components"] = json!(["components/webhooks", "components/cert-manager"]);
    });
    let objects = operator.made(&kubectl, "operator");
    let operator = ObjectSet { name: "operator with webhooks".to_owned(), objects };
    let own = ObjectSet {
        name: "operator".to_owned(),
        objects: Copy::of("operator").made(&kubectl, "operator"),
    };
    agents.into_iter().chain(pickers).chain([operator, own]).collect()
}

/// A copy of a folder of manifests, in which kustomizations may be changed.
struct Copy {
    folder: tempfile::TempDir,
}

impl Copy {
    fn of(folder: &str) -> Self {
        let copy = tempfile::tempdir().unwrap();
        let from = manifests().join(folder);
        let to = copy.path();
        // Pickers' kustomizations are in folders of theirs, the others in the folder itself.
        let to = if folder == "epp" { to.to_owned() } else { to.join(folder) };
        copy_files(&from, &to);
        Self { folder: copy }
    }

    /// Changes the kustomization of a folder.
    fn change(&self, folder: &str, change: impl FnOnce(&mut Value)) {
        let path = self.folder.path().join(folder).join("kustomization.yaml");
        let mut of: Value =
            serde_yaml_ng::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut of);
        // JSON is YAML too.
        std::fs::write(path, of.to_string()).unwrap();
    }

    fn made(&self, kubectl: &Path, folder: &str) -> Vec<Value> {
        let folder = self.folder.path().join(folder);
        let output = Command::new(kubectl).arg("kustomize").arg(&folder).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl kustomize {}: {errors}", folder.display());
        let objects = documents(&String::from_utf8(output.stdout).unwrap());
        assert!(!objects.is_empty(), "{} has no objects", folder.display());
        objects
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copied = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy_files(&path, &copied),
            false => drop(std::fs::copy(&path, copied).unwrap()),
        }
    }
}

impl ObjectSet {
    /// The set of this name's beginning.
    pub(super) fn plain(name: &str) -> Option<&'static Self> {
        sets().iter().find(|set| set.name.starts_with(name))
    }
}

/// Every kind of agent takes the components: flags stand before an engine's own, volumes beside its volumes.
#[test]
fn components_add_to_every_kind_of_agent() {
    for set in sets() {
        let has = |component: &str| set.name.contains(component);
        for workload in set.workloads() {
            let labels = &workload.template["metadata"]["labels"];
            if labels["app"] != "stator-agent" {
                continue;
            }
            let whose = &workload.whose;
            let agent = &workload.containers()[0];
            let args: Vec<_> = super::list(&agent["args"]).iter().map(super::text).collect();
            let own = args.split(|arg| *arg == "--").next().unwrap();
            assert_eq!(has("\"tls\""), own.contains(&"--request-tls-client-auth"), "{whose}");
            assert_eq!(has("\"zmq\""), own.contains(&"--events-open"), "{whose}");
            let mounts: Vec<_> = super::list(&agent["volumeMounts"]).iter().collect();
            let mounted = |name: &str| mounts.iter().any(|mount| mount["name"] == name);
            assert_eq!(has("\"tls\""), mounted("certificates"), "{whose}");
            assert_eq!(args[1..].contains(&"--engine=vllm"), mounted("models"), "{whose}");
            let replicas = workload.owner["spec"].get("replicas");
            assert_eq!(has("\"planner\""), replicas.is_none(), "{whose}");
        }
    }
}

#[test]
fn roles_are_two_deployments_of_one_fleet() {
    let Some(set) = ObjectSet::plain("agents/roles") else { return };
    for role in ["prefill", "decode"] {
        let name = format!("stator-{role}");
        let found = set.of(&["Deployment"]).find(|of| of["metadata"]["name"] == *name).unwrap();
        let (pod, flag) = (&found["spec"]["template"], format!("--role={role}"));
        assert_eq!(found["spec"]["selector"]["matchLabels"]["stator.dev/workers"], role);
        assert_eq!(pod["metadata"]["labels"]["app"], "stator-agent");
        let args = super::list(&pod["spec"]["containers"][0]["args"]);
        assert!(args.contains(&json!(flag)), "{args:?}");
    }
}

/// Each part of the sidecars' manifest has the role that the picker's configuration knows.
#[test]
fn sidecars_stand_beside_those_that_answer() {
    let Some(set) = ObjectSet::plain("epp/disaggregated") else { return };
    let config = set.of(&["ConfigMap"]).next().unwrap()["data"]["config.yaml"].as_str().unwrap();
    assert!(config.contains("disagg-profile-handler"), "{config}");
    let pool = set.of(&["InferencePool"]).next().unwrap();
    for (role, containers) in [("prefill", 1), ("decode", 2)] {
        let of_role =
            |of: &&super::Workload| of.template["metadata"]["labels"]["llm-d.ai/role"] == role;
        let workloads = set.workloads();
        let workload = workloads.iter().find(of_role).unwrap();
        assert_eq!(workload.containers().len(), containers, "{role}");
        let labels = &workload.template["metadata"]["labels"];
        assert_eq!(labels["app"], pool["spec"]["selector"]["matchLabels"]["app"]);
        let ports = super::list(&workload.containers()[0]["ports"]);
        assert_eq!(ports[0]["containerPort"], pool["spec"]["targetPorts"][0]["number"], "{role}");
    }
}

#[test]
fn a_gateway_of_its_class_routes_to_the_pool() {
    for class in ["envoy-gateway", "istio", "kgateway", "agentgateway"] {
        let Some(set) = ObjectSet::plain(&format!("epp/{class}")) else { return };
        let gateway = set.of(&["Gateway"]).next().unwrap();
        assert_eq!(gateway["spec"]["gatewayClassName"], class);
        let route = set.of(&["HTTPRoute"]).next().unwrap();
        assert_eq!(route["spec"]["parentRefs"][0]["name"], gateway["metadata"]["name"]);
    }
}
