//! Objects are as Kubernetes' users expect: they are probed, spread, budgeted, walled off, and those
//! of the chart have no rights that the plain manifests do not give.

use super::{Helm, ObjectSet, chart, documents, list, stator_args, text};
use serde_json::{Value, json};
use stator_tests::process::binary;
use std::process::Command;

/// Whether a selector of labels selects these.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().into_iter().flatten();
    let wanted: Vec<_> = wanted.collect();
    !wanted.is_empty() && wanted.iter().all(|(name, value)| labels[*name] == **value)
}

#[test]
fn every_container_is_probed_and_may_do_little() {
    for set in ObjectSet::all() {
        for workload in set.workloads() {
            let whose = &workload.whose;
            let pod = &workload.template["spec"];
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{whose}");
            assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
            for container in workload.containers() {
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
    for set in ObjectSet::all() {
        for workload in set.workloads() {
            let whose = &workload.whose;
            let labels = &workload.template["metadata"]["labels"];
            let is_walled = set
                .of(&["NetworkPolicy"])
                .any(|policy| selects(&policy["spec"]["podSelector"]["matchLabels"], labels));
            assert!(is_walled, "{whose} has no network policy");
            // One planner works at a time, and of elected pickers one is ready: a budget would only
            // hold up drains.
            let update = &workload.owner["spec"]["strategy"];
            let is_alone =
                update["type"] == "Recreate" || update["rollingUpdate"]["maxUnavailable"] == "100%";
            if workload.owner["kind"] == "DaemonSet" || is_alone {
                continue;
            }
            let budgets: Vec<_> = set
                .of(&["PodDisruptionBudget"])
                .filter(|budget| selects(&budget["spec"]["selector"]["matchLabels"], labels))
                .collect();
            assert_eq!(budgets.len(), 1, "{whose}");
            let spread = list(&workload.template["spec"]["topologySpreadConstraints"]);
            let keys: Vec<_> = spread.iter().map(|one| text(&one["topologyKey"])).collect();
            let expected = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"];
            assert_eq!(keys, expected, "{whose}");
            for selector in spread.iter().map(|one| &one["labelSelector"]["matchLabels"]) {
                assert!(selects(selector, labels), "{whose} is spread by others' labels");
            }
        }
    }
}

#[test]
fn named_objects_are_applied_together() {
    for set in ObjectSet::all() {
        let name = &set.name;
        let has = |kind: &str, name: &Value| {
            set.of(&[kind]).any(|object| object["metadata"]["name"] == *name)
        };
        for workload in set.workloads() {
            let pod = &workload.template["spec"];
            let account = &pod["serviceAccountName"];
            assert!(account.is_null() || has("ServiceAccount", account), "{name}: {account}");
            for map in list(&pod["volumes"]).iter().filter_map(|of| of["configMap"].get("name")) {
                assert!(has("ConfigMap", map), "{name}: {map}");
            }
        }
        for binding in set.of(&["RoleBinding", "ClusterRoleBinding"]) {
            let role = &binding["roleRef"];
            assert!(has(text(&role["kind"]), &role["name"]), "{name}: {role}");
        }
        for service in set.of(&["Service"]) {
            let selector = &service["spec"]["selector"];
            let is_selected =
                |of: &super::Workload| selects(selector, &of.template["metadata"]["labels"]);
            let shown = &service["metadata"]["name"];
            assert!(set.workloads().iter().any(is_selected), "{name}: {shown} selects nothing");
        }
        let pools = set.of(&["InferencePool"]);
        for picker in pools.map(|pool| &pool["spec"]["endpointPickerRef"]) {
            let service = set
                .of(&["Service"])
                .find(|service| service["metadata"]["name"] == picker["name"])
                .unwrap_or_else(|| panic!("{name}: no Service {picker}"));
            let ports = list(&service["spec"]["ports"]);
            let has_port = ports.iter().any(|port| port["port"] == picker["port"]["number"]);
            assert!(has_port, "{name}: {ports:?} lack the picker's port");
        }
    }
}

/// A route leads to a pool in another namespace where that namespace allows it.
#[test]
fn routes_lead_to_pools_that_let_them() {
    let mut routes = 0;
    for set in ObjectSet::all() {
        for route in set.of(&["HTTPRoute"]) {
            let from = &route["metadata"]["namespace"];
            let backend = &route["spec"]["rules"][0]["backendRefs"][0];
            let to = backend.get("namespace").unwrap_or(from);
            let is_meant = |object: &&Value| {
                object["metadata"]["name"] == backend["name"]
                    && object["metadata"]["namespace"] == *to
            };
            assert!(
                set.of(&["InferencePool"]).any(|pool| is_meant(&pool)),
                "{}: {route:#}",
                set.name
            );
            if to == from {
                continue;
            }
            routes += 1;
            let mut grants = set.of(&["ReferenceGrant"]).map(|grant| &grant["spec"]);
            let source = json!([{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": from }]);
            let target = json!([{ "group": backend["group"], "kind": backend["kind"],
                                  "name": backend["name"] }]);
            assert!(
                grants.any(|spec| spec["from"] == source && spec["to"] == target),
                "{}: nothing lets {from} lead to {to}",
                set.name
            );
        }
    }
    assert!(routes >= 1, "no route crosses namespaces");
}

/// The binary itself reads the flags: it stops at `--help` unless one before it is unknown or bad.
#[test]
fn command_lines_are_understood() {
    for set in ObjectSet::all() {
        for workload in set.workloads() {
            for mut args in workload.containers().iter().filter_map(stator_args) {
                args.truncate(args.iter().position(|arg| arg == "--").unwrap_or(args.len()));
                let output = Command::new(binary()).args(&args).arg("--help").output().unwrap();
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {args:?}: {error}", workload.whose);
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
    let Some(secured) = ObjectSet::of_chart().into_iter().find(|of| of.name == "secured") else {
        return;
    };
    let made = roles(&secured.objects);
    for (name, rules) in roles(&plain) {
        assert!(made.contains(&(name, rules)), "{name}: {rules:#} is not in {made:#?}");
    }
    // A further namespace of the picker's gives no other rights.
    let there = documents(include_str!("../../../manifests/epp/further-namespace/role.yaml"));
    assert!(roles(&plain).contains(&roles(&there)[0]), "{there:#?}");
    let planner = made.iter().find(|(name, _)| *name == "stator-planner").unwrap().1;
    let scale = json!({
        "apiGroups": ["apps"], "resources": ["deployments/scale"],
        "resourceNames": ["stator-spare"], "verbs": ["get", "update"],
    });
    assert!(list(planner).contains(&scale), "{planner:#}");
    assert_eq!(made.len(), roles(&plain).len() + 1, "{made:#?}");
}

/// The picker may read the pools of further namespaces, and nothing else there.
#[test]
fn further_pools_give_rights_in_their_namespaces() {
    let Some(helm) = Helm::installed() else { return };
    let values = chart().join("examples/gateway.yaml").display().to_string();
    let pool = |at: usize, name: &str, port: u16| {
        let of = format!("epp.furtherPools[{at}]");
        format!("{of}.namespace=there,{of}.name={name},{of}.port={port}")
    };
    let pools = [pool(0, "a", 9012), pool(1, "b", 9013)].join(",");
    let objects = helm.objects("n", &["--values", &values, "--set", &pools]);
    let set = ObjectSet { name: "further pools".to_owned(), objects };
    let there = |kind: &'static str| -> Vec<&Value> {
        let all = set.objects.iter().filter(|of| of["kind"] == kind);
        all.filter(|of| of["metadata"]["namespace"] == "there").collect()
    };
    let plain = documents(include_str!("../../../manifests/epp/further-namespace/role.yaml"));
    assert_eq!(
        there("Role").iter().map(|role| &role["rules"]).collect::<Vec<_>>(),
        [&plain[0]["rules"]]
    );
    let subjects: Vec<_> = there("RoleBinding").iter().map(|of| &of["subjects"][0]).collect();
    let picker = json!({ "kind": "ServiceAccount", "name": "stator-epp", "namespace": "n" });
    assert_eq!(subjects, [&picker]);
    let workloads = set.workloads();
    let args = stator_args(&workloads[0].containers()[0]).unwrap();
    for pool in ["--pool=there/a=9012", "--pool=there/b=9013"] {
        assert!(args.iter().any(|arg| arg == pool), "{args:?}");
    }
}
