//! Engines on several nodes without a controller beside Kubernetes' own: each engine has a StatefulSet
//! for its leader and one for its workers, and a PodGroup by which all of its pods are bound together.
//!
//! Pods have the variables that a LeaderWorkerSet gives, so that the same command lines do.

use super::instance::Instance;
use super::multinode::{NodeKind, node_templates};
use super::provider::NodeSets;
use super::{label, object};
use crate::translate::Note;
use serde_json::{Value, json};

/// Longest name of a StatefulSet: its pods' label with the hash of their revision has 11 bytes more.
const NAME_BYTES_MAX: usize = 52;
/// Label of a StatefulSet's pod with the pod's number.
const POD_NUMBER: &str = "apps.kubernetes.io/pod-index";
/// Label of pods with the number of their engine in its component.
const ENGINE: &str = "stator.dev/engine";
/// Annotation of both StatefulSets of an engine with the engine's number.
const ENGINE_NUMBER: &str = "stator.dev/engine-number";

/// The objects of a component whose engines span nodes: StatefulSets first.
///
/// # Errors
///
/// For a name that is too long.
pub(super) fn objects(
    of: &Instance,
    template: &Value,
    version: Option<&str>,
    notes: &mut Vec<Note>,
) -> Result<Vec<Value>, String> {
    let templates = node_templates(of, template, NodeSets::Stateful(None), notes);
    let mut sets = Vec::new();
    let mut others = vec![service(of)];
    for number in 0..of.shape.replicas.unwrap_or(1) {
        let class = &template["spec"]["priorityClassName"];
        others.extend(version.map(|version| pod_group(of, version, number, class)));
        for (template, node) in templates.iter().zip([NodeKind::Leader, NodeKind::Worker]) {
            sets.push(set(of, template.clone(), node, number, version.is_some())?);
        }
    }
    sets.extend(others);
    Ok(sets)
}

/// Name of the StatefulSet of an engine's leader, by which a component's first engine is known.
pub(crate) fn leader_name(component: &str, number: i32) -> String {
    format!("{component}-{number}-ldr")
}

/// Number of the engine to which a StatefulSet belongs.
pub(crate) fn engine_number(set: &Value) -> Option<&str> {
    set["metadata"]["annotations"][ENGINE_NUMBER].as_str()
}

fn group_name(of: &Instance, number: i32) -> String {
    // The number of pods of a group never changes: another number is another group.
    format!("{}-{number}-of-{}", of.name, of.nodes())
}

fn service_name(of: &Instance) -> String {
    format!("{}-nodes", of.name)
}

fn set(
    of: &Instance,
    mut template: Value,
    node: NodeKind,
    number: i32,
    is_gang: bool,
) -> Result<Value, String> {
    let leader = leader_name(&of.name, number);
    let (name, replicas, first) = match node {
        NodeKind::Leader => (leader.clone(), 1, 0),
        NodeKind::Worker => (format!("{}-{number}-wkr", of.name), of.nodes() - 1, 1),
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("{name}: has {} bytes, the limit is {NAME_BYTES_MAX}", name.len()));
    }
    let selector =
        json!({ label("selector"): of.name, ENGINE: number.to_string(), "role": role(node) });
    template["metadata"]["labels"][ENGINE] = json!(number.to_string());
    let leader = format!("{leader}-0.{}.{}.svc", service_name(of), of.namespace);
    give_variables(&mut template, &leader, of.nodes());
    if is_gang {
        template["spec"]["schedulingGroup"] = json!({ "podGroupName": group_name(of, number) });
    }
    let mut set = object("apps/v1", "StatefulSet", &of.namespace, &name);
    set["metadata"]["labels"] = super::pod::labels(of).into();
    set["metadata"]["annotations"] = json!({ ENGINE_NUMBER: number.to_string() });
    set["spec"] = json!({
        "replicas": replicas,
        "serviceName": service_name(of),
        // An engine starts when all of its nodes are there.
        "podManagementPolicy": "Parallel",
        "ordinals": { "start": first },
        "selector": { "matchLabels": selector },
        "template": template,
    });
    Ok(set)
}

fn role(node: NodeKind) -> &'static str {
    match node {
        NodeKind::Leader => "leader",
        NodeKind::Worker => "worker",
    }
}

/// Gives all containers the variables of a LeaderWorkerSet, first, so that others may name them.
fn give_variables(template: &mut Value, leader: &str, nodes: i32) {
    let number = json!({ "fieldRef": { "fieldPath": format!("metadata.labels['{POD_NUMBER}']") } });
    let variables = [
        json!({ "name": "LWS_LEADER_ADDRESS", "value": leader }),
        json!({ "name": "LWS_GROUP_SIZE", "value": nodes.to_string() }),
        json!({ "name": "LWS_WORKER_INDEX", "valueFrom": number }),
    ];
    for list in ["initContainers", "containers"] {
        let containers = template["spec"][list].as_array_mut();
        for container in containers.into_iter().flatten() {
            let said = container["env"].as_array().cloned().unwrap_or_default();
            container["env"] = variables.iter().cloned().chain(said).collect();
        }
    }
}

/// The Service that gives the nodes of all engines names, before they are ready.
fn service(of: &Instance) -> Value {
    let mut service = object("v1", "Service", &of.namespace, &service_name(of));
    service["spec"] = json!({
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": { label("selector"): of.name },
    });
    service
}

/// The group of one engine's pods: the scheduler binds all of them or none.
fn pod_group(of: &Instance, version: &str, number: i32, class: &Value) -> Value {
    let api_version = format!("scheduling.k8s.io/{version}");
    let mut group = object(&api_version, "PodGroup", &of.namespace, &group_name(of, number));
    group["spec"] = json!({ "schedulingPolicy": { "gang": { "minCount": of.nodes() } } });
    // The earlier version has it behind a gate of its own.
    if version == "v1beta1" && class.is_string() {
        group["spec"]["priorityClassName"] = class.clone();
    }
    group
}
