//! Objects of the chart are as Kubernetes' users expect: they are probed, spread, budgeted, walled
//! off, and have no rights that the plain manifests do not give.

use super::{Helm, documents, examples, list, text};
use serde_json::{Value, json};
use stator_tests::process::binary;
use std::path::Path;
use std::process::Command;

/// Objects of an example, and its name.
struct Example {
    name: String,
    objects: Vec<Value>,
}

impl Example {
    fn all() -> Vec<Self> {
        let Some(helm) = Helm::installed() else { return Vec::new() };
        let example = |file: &Path| {
            let objects = helm.objects("n", &["--values", &file.display().to_string()]);
            Self { name: super::stem(file), objects }
        };
        examples().iter().map(|file| example(file)).collect()
    }

    fn of<'a>(&'a self, kinds: &'a [&'a str]) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| kinds.contains(&text(&object["kind"])))
    }

    /// Kinds that run pods.
    fn workloads(&self) -> impl Iterator<Item = &Value> {
        self.of(&["Deployment", "DaemonSet"])
    }
}

/// Whether a selector of labels selects these.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().into_iter().flatten();
    let wanted: Vec<_> = wanted.collect();
    !wanted.is_empty() && wanted.iter().all(|(name, value)| labels[*name] == **value)
}

#[test]
fn every_container_is_probed_and_may_do_little() {
    for example in Example::all() {
        for workload in example.workloads() {
            let whose = format!("{}: {}", example.name, workload["metadata"]["name"]);
            let pod = &workload["spec"]["template"]["spec"];
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{whose}");
            assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
            for container in list(&pod["containers"]) {
                let may = &container["securityContext"];
                assert_eq!(may["readOnlyRootFilesystem"], true, "{whose}");
                assert_eq!(may["allowPrivilegeEscalation"], false, "{whose}");
                assert_eq!(may["capabilities"]["drop"], json!(["ALL"]), "{whose}");
                assert!(container["resources"]["requests"].is_object(), "{whose}");
                if list(&container["ports"]).is_empty() {
                    continue;
                }
                for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                    assert!(container[probe].is_object(), "{whose} has no {probe}");
                }
            }
        }
    }
}

#[test]
fn pods_are_spread_budgeted_and_walled_off() {
    for example in Example::all() {
        for workload in example.workloads() {
            let whose = format!("{}: {}", example.name, workload["metadata"]["name"]);
            let template = &workload["spec"]["template"];
            let labels = &template["metadata"]["labels"];
            let is_walled = example
                .of(&["NetworkPolicy"])
                .any(|policy| selects(&policy["spec"]["podSelector"]["matchLabels"], labels));
            assert!(is_walled, "{whose} has no network policy");
            // One operator or planner works at a time: a budget would only hold up drains.
            let is_alone = workload["spec"]["strategy"]["type"] == "Recreate";
            if workload["kind"] == "DaemonSet" || is_alone {
                continue;
            }
            let budgets: Vec<_> = example
                .of(&["PodDisruptionBudget"])
                .filter(|budget| selects(&budget["spec"]["selector"]["matchLabels"], labels))
                .collect();
            assert_eq!(budgets.len(), 1, "{whose}");
            let keys = list(&template["spec"]["topologySpreadConstraints"]).iter();
            let keys: Vec<_> = keys.map(|one| text(&one["topologyKey"])).collect();
            let expected = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"];
            assert_eq!(keys, expected, "{whose}");
        }
    }
}

#[test]
fn named_objects_are_in_the_release() {
    for example in Example::all() {
        let has = |kind: &str, name: &Value| {
            example.of(&[kind]).any(|object| object["metadata"]["name"] == *name)
        };
        for workload in example.workloads() {
            let pod = &workload["spec"]["template"]["spec"];
            let account = &pod["serviceAccountName"];
            assert!(has("ServiceAccount", account), "{}: {account}", example.name);
            for map in list(&pod["volumes"]).iter().filter_map(|of| of["configMap"].get("name")) {
                assert!(has("ConfigMap", map), "{}: {map}", example.name);
            }
        }
        for binding in example.of(&["RoleBinding", "ClusterRoleBinding"]) {
            let role = &binding["roleRef"];
            assert!(has(text(&role["kind"]), &role["name"]), "{}: {role}", example.name);
            assert_eq!(binding["subjects"][0]["namespace"], "n", "{}", example.name);
        }
        for service in example.of(&["Service"]) {
            let selector = &service["spec"]["selector"];
            let selected = example.workloads().any(|workload| {
                selects(selector, &workload["spec"]["template"]["metadata"]["labels"])
            });
            assert!(selected, "{}: {} selects nothing", example.name, service["metadata"]["name"]);
        }
        let pickers = example.of(&["InferencePool"]);
        for picker in pickers.map(|pool| &pool["spec"]["endpointPickerRef"]["name"]) {
            assert!(has("Service", picker), "{}: {picker}", example.name);
        }
    }
}

/// The binary itself reads the flags: it stops at `--help` unless one before it is unknown or bad.
#[test]
fn command_lines_are_understood() {
    for example in Example::all() {
        for workload in example.workloads() {
            let containers = list(&workload["spec"]["template"]["spec"]["containers"]);
            for container in containers {
                let mut args: Vec<_> = list(&container["args"]).iter().map(text).collect();
                args.truncate(args.iter().position(|arg| *arg == "--").unwrap_or(args.len()));
                let args: Vec<_> =
                    args.iter().map(|arg| arg.replace("$(POD_IP)", "10.0.0.1")).collect();
                let output = Command::new(binary()).args(&args).arg("--help").output().unwrap();
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {args:?}: {error}", example.name);
            }
        }
    }
}

/// Names and rules of the roles in a text of manifests.
fn roles(objects: &[Value]) -> Vec<(&Value, &Value)> {
    let roles = objects.iter().filter(|of| matches!(text(&of["kind"]), "Role" | "ClusterRole"));
    roles.map(|role| (&role["metadata"]["name"], &role["rules"])).collect()
}

#[test]
fn rights_are_those_of_the_plain_manifests() {
    let plain = [
        include_str!("../../../manifests/agents/role.yaml"),
        include_str!("../../../manifests/epp/base/role.yaml"),
        include_str!("../../../manifests/operator/operator.yaml"),
        include_str!("../../../manifests/operator/webhooks.yaml"),
    ];
    let plain = documents(&plain.join("\n---\n"));
    let Some(secured) = Example::all().into_iter().find(|of| of.name == "secured") else { return };
    let made = roles(&secured.objects);
    for (name, rules) in roles(&plain) {
        assert!(made.contains(&(name, rules)), "{name}: {rules:#} is not in {made:#?}");
    }
    let planner = made.iter().find(|(name, _)| *name == "stator-planner").unwrap().1;
    let scale = json!({
        "apiGroups": ["apps"], "resources": ["deployments/scale"],
        "resourceNames": ["stator-spare"], "verbs": ["get", "update"],
    });
    assert!(list(planner).contains(&scale), "{planner:#}");
    assert_eq!(made.len(), roles(&plain).len() + 1, "{made:#?}");
}
