//! What the manifests promise: least privilege, and a cluster's hardening rules.

use super::{ELECTION, REVIEWS, Resource, TOPOLOGY, WATCHED};
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/epp")
}

/// The objects of a file.
fn objects(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the file is there");
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).expect("the file is YAML"))
        .collect()
}

/// The only object of a kind in a file.
fn object(file: &str, kind: &str) -> Value {
    let mut found = objects(&root().join(file));
    found.retain(|object| object["kind"] == kind);
    assert_eq!(found.len(), 1, "{kind} in {file}");
    found.remove(0)
}

/// All YAML files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
    found
}

fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect()
}

/// A role's rules grant these verbs on these resources, and nothing else on anything.
fn check_role(role: &Value, resources: &[Resource], verbs: &[&str]) {
    let mut granted = BTreeMap::new();
    for rule in role["rules"].as_array().expect("a role has rules") {
        for group in texts(&rule["apiGroups"]) {
            for plural in texts(&rule["resources"]) {
                let verbs: BTreeSet<_> = texts(&rule["verbs"]).into_iter().collect();
                assert_eq!(granted.insert((group, plural), verbs), None, "{group} {plural}");
            }
        }
    }
    let verbs: BTreeSet<_> = verbs.iter().copied().collect();
    let needed =
        resources.iter().map(|resource| ((resource.group, resource.plural), verbs.clone()));
    assert_eq!(granted, needed.collect());
}

#[test]
fn the_picker_may_do_what_it_does_and_nothing_else() {
    for file in ["base/role.yaml", "further-namespace/role.yaml"] {
        check_role(&object(file, "Role"), &WATCHED, &["get", "list", "watch"]);
    }
    let role = object("components/leader-election/role.yaml", "Role");
    check_role(&role, &ELECTION, &["get", "create", "update"]);
    let roles = objects(&root().join("components/metrics-auth/cluster-role.yaml"));
    let role = roles.iter().find(|role| role["metadata"]["name"] == "stator-epp-metrics-auth");
    check_role(role.expect("the role is there"), &REVIEWS, &["create"]);
    let role = object("components/node-topology/cluster-role.yaml", "ClusterRole");
    check_role(&role, &TOPOLOGY, &["get", "list", "watch"]);
}

#[test]
fn no_other_file_grants_anything() {
    let roles = |path: &PathBuf| {
        let kind = |object: &Value| object["kind"].as_str().is_some_and(|k| k.ends_with("Role"));
        objects(path).iter().any(kind)
    };
    let granting: BTreeSet<_> = files(&root()).into_iter().filter(roles).collect();
    let known = [
        "base/role.yaml",
        "components/leader-election/role.yaml",
        "components/metrics-auth/cluster-role.yaml",
        "components/node-topology/cluster-role.yaml",
        "further-namespace/role.yaml",
    ];
    assert_eq!(granting, known.map(|file| root().join(file)).into());
}

#[test]
fn bindings_are_to_the_roles_beside_them() {
    for path in files(&root()) {
        let objects = objects(&path);
        for binding in &objects {
            if binding["kind"].as_str().is_some_and(|kind| kind.ends_with("Binding")) {
                let role = &binding["roleRef"]["name"];
                assert!(objects.iter().any(|o| &o["metadata"]["name"] == role), "{role}");
                assert_eq!(binding["subjects"][0]["name"], "stator-epp");
            }
        }
    }
}

#[test]
fn the_pod_is_confined() {
    let deployment = object("base/deployment.yaml", "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(pod["serviceAccountName"], "stator-epp");
    let containers = pod["containers"].as_array().expect("a list");
    assert_eq!(containers.len(), 1);
    let container = &containers[0];
    let expected = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(container["securityContext"], expected);
    assert!(container["resources"]["limits"]["memory"].is_string());
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[field].is_null(), "{field}");
    }
}

#[test]
fn probes_and_services_name_ports_that_the_picker_opens() {
    let deployment = object("base/deployment.yaml", "Deployment");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let opened: BTreeMap<_, _> = container["ports"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|port| (port["name"].to_string(), port["containerPort"].to_string()))
        .collect();
    let args = texts(&container["args"]);
    for (flag, name) in [
        ("--grpc-port", "ext-proc"),
        ("--grpc-health-port", "health"),
        ("--metrics-port", "metrics"),
        ("--peers-port", "peers"),
    ] {
        let port = &opened[&json!(name).to_string()];
        assert!(args.contains(&format!("{flag}={port}").as_str()), "{flag}={port}");
    }
    for (probe, service) in [
        ("startupProbe", "liveness"),
        ("livenessProbe", "liveness"),
        ("readinessProbe", "readiness"),
    ] {
        assert_eq!(container[probe]["grpc"], json!({"port": 9003, "service": service}));
    }
    for file in ["base/service.yaml", "base/peers.yaml"] {
        for port in object(file, "Service")["spec"]["ports"].as_array().expect("a list") {
            let target = opened.get(&port["targetPort"].to_string());
            assert_eq!(target, Some(&port["port"].to_string()), "{file}");
        }
    }
    let peers = object("base/peers.yaml", "Service");
    let name = peers["metadata"]["name"].as_str().expect("a name");
    assert!(args.contains(&format!("--peers={name}:9004").as_str()), "{name}");
}

#[test]
fn nobody_reaches_a_port_that_is_not_theirs() {
    let policy = object("base/network-policy.yaml", "NetworkPolicy");
    let rules = policy["spec"]["ingress"].as_array().expect("a list");
    // A rule without ports is for all of them.
    let ports = |rule: &Value| rule["ports"].as_array().expect("a list").clone();
    let reached: Vec<_> = rules.iter().map(ports).collect();
    assert_eq!(json!(reached), json!([9002, 9003, 9090, 9004].map(|port| [json!({"port": port})])));
}

#[test]
fn the_pod_outlives_its_draining() {
    let deployment = object("base/deployment.yaml", "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let args = texts(&pod["containers"][0]["args"]);
    let drain = args.iter().find_map(|arg| arg.strip_prefix("--drain-timeout=")?.strip_suffix('s'));
    let drain: u64 = drain.expect("the flag is there").parse().expect("seconds");
    assert!(pod["terminationGracePeriodSeconds"].as_u64().is_some_and(|grace| grace > drain));
}

#[test]
fn everything_selects_the_same_pods() {
    let deployment = object("base/deployment.yaml", "Deployment");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&object("base/service.yaml", "Service")["spec"]["selector"], labels);
    let budget = object("base/disruption-budget.yaml", "PodDisruptionBudget");
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
    let policy = object("base/network-policy.yaml", "NetworkPolicy");
    assert_eq!(&policy["spec"]["podSelector"]["matchLabels"], labels);
}

#[test]
fn the_pool_the_route_and_the_picker_know_each_other() {
    let pool = object("pool/pool.yaml", "InferencePool");
    let service = object("base/service.yaml", "Service");
    let picker = &pool["spec"]["endpointPickerRef"];
    assert_eq!(picker["name"], service["metadata"]["name"]);
    assert_eq!(picker["port"]["number"], service["spec"]["ports"][0]["port"]);
    let name = pool["metadata"]["name"].as_str().expect("a name");
    let route = object("route/http-route.yaml", "HTTPRoute");
    assert_eq!(route["spec"]["rules"][0]["backendRefs"][0]["name"], name);
    let deployment = object("base/deployment.yaml", "Deployment");
    let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    assert!(texts(args).contains(&format!("--pool-name={name}").as_str()));
    let read = super::objects::pool(&pool.to_string()).expect("a pool").expect("it is there");
    assert_eq!(read.target_ports, [8000]);
    let host = object("istio/destination-rule.yaml", "DestinationRule")["spec"]["host"].clone();
    assert_eq!(host, service["metadata"]["name"]);
}

#[test]
fn every_kustomization_names_files_that_are_there() {
    let is_kustomization = |path: &PathBuf| path.ends_with("kustomization.yaml");
    let kustomizations: Vec<_> = files(&root()).into_iter().filter(is_kustomization).collect();
    assert_eq!(kustomizations.len(), 18);
    for path in kustomizations {
        let folder = path.parent().expect("a file has a folder");
        let kustomization = &objects(&path)[0];
        let resources = texts(&kustomization["resources"]);
        for resource in &resources {
            assert!(folder.join(resource).exists(), "{resource} in {}", path.display());
        }
        let beside = files(folder).into_iter().filter(|file| {
            *file != path && file.parent() == Some(folder) && !folder.ends_with("configs")
        });
        let named: BTreeSet<_> = resources.iter().map(|file| folder.join(file)).collect();
        for file in beside {
            let generated = file.ends_with("base/config.yaml");
            assert!(generated || named.contains(&file), "{} is named nowhere", file.display());
        }
    }
}

#[test]
fn components_change_what_they_mean_to_change() {
    let deployment = object("base/deployment.yaml", "Deployment");
    let mut tested = 0;
    for path in files(&root().join("components")) {
        let kustomization = &objects(&path)[0];
        let patches = kustomization["patches"].as_array().map(Vec::as_slice).unwrap_or_default();
        for patch in patches.iter().filter(|patch| patch["target"]["kind"] == "Deployment") {
            let text = patch["patch"].as_str().expect("a patch is text");
            let operations: Vec<Value> = serde_yaml_ng::from_str(text).expect("it is YAML");
            for operation in operations {
                let pointer = operation["path"].as_str().expect("a path");
                let found = deployment.pointer(pointer.trim_end_matches("/-"));
                assert!(found.is_some(), "{pointer} in {}", path.display());
                if operation["op"] == "test" {
                    assert_eq!(found, operation.get("value"), "{pointer} in {}", path.display());
                    tested += 1;
                }
            }
        }
    }
    assert_eq!(tested, 1);
}

#[test]
fn a_body_that_envoy_gateway_holds_fits_a_message() {
    let policy = object("envoy-gateway/client-traffic-policy.yaml", "ClientTrafficPolicy");
    let held = policy["spec"]["connection"]["bufferLimit"].as_str().expect("a quantity");
    let text = std::fs::read_to_string(root().join("envoy-gateway/kustomization.yaml"));
    let text = text.expect("the file is there");
    let taken =
        text.split_once("--grpc-max-recv-msg-size=").and_then(|(_, rest)| rest.lines().next());
    let mebibytes = |size: &str| size.strip_suffix("Mi").and_then(|n| n.parse::<u32>().ok());
    let (held, taken) = (mebibytes(held), mebibytes(taken.expect("the flag is there")));
    assert!(held.is_some() && held < taken, "{held:?} MiB in a message of {taken:?}");
}

#[test]
fn the_picker_runs_with_a_configuration_that_is_tested() {
    let configuration = &objects(&root().join("base/config.yaml"))[0];
    assert_eq!(configuration, &objects(&root().join("configs/kv-aware.yaml"))[0]);
}
