//! Rules of graphs.

use super::component::{self, ComponentChange};
use super::defaults::ORIGIN;
use super::faults::{DocumentChange, Faults};
use crate::objects::{PROVIDER, label};
use serde_json::Value;
use std::collections::BTreeSet;

/// Fields that stay as they were created: path for people, and pointer.
const FIXED: [(&str, &str); 5] = [
    ("spec.backendFramework", "/spec/backendFramework"),
    ("spec.topologyConstraint", "/spec/topologyConstraint"),
    ("spec.providerOverride.apiVersion", "/spec/providerOverride/apiVersion"),
    ("spec.providerOverride.target", "/spec/providerOverride/target"),
    ("spec.experimental.kvTransferPolicy", "/spec/experimental/kvTransferPolicy"),
];
/// Most components of a graph.
const COMPONENTS_MAX: usize = 25;

pub(super) fn check(change: DocumentChange<'_>, faults: &mut Faults) {
    let spec = &change.new["spec"];
    check_annotations(change, faults);
    check_names(spec, faults);
    check_restart(change, faults);
    check_transfer_policy(spec, faults);
    let old = change.old.map(|old| components(&old["spec"])).unwrap_or_default();
    for new in components(spec) {
        let name = new["name"].as_str().unwrap_or_default();
        let component = ComponentChange {
            path: format!("spec.components[{name}]"),
            new,
            old: old.iter().find(|old| old["name"] == new["name"]),
            framework: &spec["backendFramework"],
            is_by_scaler: change.is_by_scaler,
        };
        component::check(&component, faults);
    }
    if let Some(old) = change.old {
        check_fixed(old, change.new, faults);
    }
}

fn components(spec: &Value) -> &[Value] {
    spec["components"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn check_fixed(old: &Value, new: &Value, faults: &mut Faults) {
    let absent = Value::Null;
    for (path, pointer) in FIXED {
        let find = |document: &Value| document.pointer(pointer).unwrap_or(&absent).clone();
        faults.check_same(path, &find(old), &find(new));
    }
    let names = |document: &Value| -> BTreeSet<String> {
        let all = components(&document["spec"]).iter();
        all.filter_map(|component| component["name"].as_str().map(str::to_owned)).collect()
    };
    let (old, new) = (names(old), names(new));
    for gone in old.difference(&new) {
        faults
            .add("spec.components", format!("{gone:?} is missing: the set of names is immutable"));
    }
    for added in new.difference(&old) {
        faults.add("spec.components", format!("{added:?} is new: the set of names is immutable"));
    }
}

fn check_names(spec: &Value, faults: &mut Faults) {
    let all = components(spec);
    faults.check(!all.is_empty(), "spec.components", "at least one is needed");
    let (number, most) = (all.len(), COMPONENTS_MAX);
    if number > most {
        faults.add("spec.components", format!("{number} are too many, the limit is {most}"));
    }
    let pickers = all.iter().filter(|component| component["type"] == "epp").count();
    faults.check(pickers <= 1, "spec.components", "at most one may have the type epp");
    let mut known = BTreeSet::new();
    for (at, component) in all.iter().enumerate() {
        let Some(name) = component["name"].as_str() else {
            faults.add(format!("spec.components[{at}].name"), "is missing");
            continue;
        };
        if !known.insert(name.to_lowercase()) {
            let message = format!("{name:?} is there twice, letters of either case being the same");
            faults.add("spec.components", message);
        }
    }
}

fn check_restart(change: DocumentChange<'_>, faults: &mut Faults) {
    let restart = &change.new["spec"]["restart"];
    if restart.is_null() {
        return;
    }
    let Some(old) = change.old else {
        faults.add("spec.restart", "nothing can be restarted that is only now created");
        return;
    };
    faults.check(restart["id"] != "", "spec.restart.id", "is empty");
    let phase = old["status"]["rollingUpdate"]["phase"].as_str().unwrap_or_default();
    if ["Pending", "InProgress"].contains(&phase) && restart["id"] != old["spec"]["restart"]["id"] {
        faults.add("spec.restart.id", "cannot change during a rolling update");
    }
    let Some(order) = restart["strategy"]["order"].as_array() else { return };
    let path = "spec.restart.strategy.order";
    if restart["strategy"]["type"] == "Parallel" && !order.is_empty() {
        faults.add(path, "a parallel restart has no order");
    }
    let names = components(&change.new["spec"]).iter().map(|component| &component["name"]);
    let names: Vec<_> = names.collect();
    for (at, said) in order.iter().enumerate() {
        if !names.contains(&said) {
            faults.add(format!("{path}[{at}]"), format!("{said} is no component of the graph"));
        }
        if order[..at].contains(said) {
            faults.add(format!("{path}[{at}]"), format!("{said} is there twice"));
        }
    }
    for missing in names.into_iter().filter(|name| !order.contains(name) && !order.is_empty()) {
        faults.add(path, format!("{missing} is missing: an order names all components"));
    }
}

fn check_transfer_policy(spec: &Value, faults: &mut Faults) {
    let policy = &spec["experimental"]["kvTransferPolicy"];
    if policy.is_null() {
        return;
    }
    let path = "spec.experimental.kvTransferPolicy";
    let sources = ["labelKey", "clusterTopologyName"].map(|name| !policy[name].is_null());
    let message = "needs exactly one of labelKey and clusterTopologyName";
    faults.check(sources[0] != sources[1], path, message);
    let is_preferred = policy["enforcement"] == "preferred";
    let has_weight = !policy["preferredWeight"].is_null();
    let message = "goes with the enforcement preferred, and only with that";
    faults.check(is_preferred == has_weight, format!("{path}.preferredWeight"), message);
}

fn check_annotations(change: DocumentChange<'_>, faults: &mut Faults) {
    let annotations = &change.new["metadata"]["annotations"];
    let is_version = |text: &str| {
        let core = text.split(['-', '+']).next().unwrap_or_default();
        let parts: Vec<_> = core.trim_start_matches('v').split('.').collect();
        parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    let choices: [(&str, &[&str]); 4] = [
        ("vllm-distributed-executor-backend", &["mp", "ray"]),
        ("grove-update-strategy", &["RollingRecreate", "OnDelete"]),
        ("dynamo-kube-discovery-mode", &["pod", "container"]),
        (PROVIDER, &["component", "grove"]),
    ];
    let path = |name: &str| format!("metadata.annotations[{}]", label(name));
    for (name, choices) in choices {
        let Some(said) = annotations[label(name)].as_str() else { continue };
        if !choices.contains(&said) {
            faults.add(path(name), format!("{said:?} is not one of {}", choices.join(", ")));
        }
    }
    if let Some(said) = annotations[label(ORIGIN)].as_str()
        && !is_version(said)
    {
        faults.add(path(ORIGIN), format!("{said:?} is not a semantic version"));
    }
    let limit = "dynamo.nvidia.com/gpu-power-limit";
    if let Some(said) = annotations[limit].as_str()
        && !said.parse::<u32>().is_ok_and(|watts| watts > 0)
    {
        let message = format!("{said:?} is not a positive number of watts");
        faults.add(format!("metadata.annotations[{limit}]"), message);
    }
    if let Some(old) = change.old {
        let old = &old["metadata"]["annotations"];
        for name in [label(PROVIDER), limit.to_owned()] {
            if !old[&name].is_null() {
                let path = format!("metadata.annotations[{name}]");
                faults.check_same(path, &old[&name], &annotations[&name]);
            }
        }
    }
}
