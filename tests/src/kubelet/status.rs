//! The status of a pod, from the states of its containers.

use super::environment::{items, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// A container as its runner reports it.
#[derive(Clone, Debug)]
pub(super) struct ContainerState {
    pub(super) phase: ContainerPhase,
    /// The last end of a process of the container.
    pub(super) last: Option<Termination>,
    pub(super) restarts: u32,
    /// Whether the startup probe has succeeded.
    pub(super) started: bool,
    pub(super) ready: bool,
    /// Objection of the readiness probe.
    pub(super) unready_because: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ContainerPhase {
    Waiting { reason: &'static str, message: String },
    Running { since: String },
    Ended(Termination),
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Termination {
    pub(super) code: i32,
    pub(super) since: String,
    pub(super) until: String,
}

impl Default for ContainerState {
    fn default() -> Self {
        Self {
            phase: ContainerPhase::Waiting { reason: "ContainerCreating", message: String::new() },
            last: None,
            restarts: 0,
            started: false,
            ready: false,
            unready_because: String::new(),
        }
    }
}

impl ContainerState {
    /// Whether the container has done its work and will not be started again.
    pub(super) fn is_done(&self) -> bool {
        matches!(&self.phase, ContainerPhase::Ended(end) if end.code == 0)
    }
}

/// Whether an init container keeps running beside those that follow.
pub(super) fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// The status of a pod.
///
/// `known` are the conditions that it has, whose times stay while they stay; `is_over` says that no
/// container will be started again.
pub(super) fn pod_status(
    pod: &Value,
    states: &BTreeMap<String, ContainerState>,
    address: Option<Ipv4Addr>,
    now: &str,
    is_over: bool,
) -> Value {
    let spec = &pod["spec"];
    let none = ContainerState::default();
    let state = |container: &Value| states.get(&text(&container["name"])).unwrap_or(&none);
    let initialized = items(spec, "initContainers").all(|container| match is_sidecar(container) {
        true => state(container).started,
        false => state(container).is_done(),
    });
    let sidecars = items(spec, "initContainers").filter(|container| is_sidecar(container));
    let mut running = items(spec, "containers").chain(sidecars);
    let unready: Vec<_> = running
        .by_ref()
        .filter(|container| !state(container).ready)
        .map(|container| {
            format!("{}: {}", text(&container["name"]), state(container).unready_because)
        })
        .collect();
    let gates = items(spec, "readinessGates").all(|gate| {
        items(&pod["status"], "conditions")
            .any(|one| one["type"] == gate["conditionType"] && one["status"] == "True")
    });
    let is_ready = unready.is_empty() && initialized && !is_over;
    let conditions = [
        ("PodReadyToStartContainers", address.is_some(), String::new()),
        ("Initialized", initialized, String::new()),
        ("ContainersReady", is_ready, unready.join("; ")),
        ("Ready", is_ready && gates, unready.join("; ")),
    ];
    let statuses = |list: &str| -> Value {
        items(spec, list).map(|container| container_status(container, state(container))).collect()
    };
    let mut status = json!({
        "observedGeneration": pod["metadata"]["generation"],
        "phase": phase(spec, &state, initialized, is_over),
        "conditions": conditions.map(|(kind, holds, message)| {
            condition(pod, kind, holds, &message, now)
        }),
        "initContainerStatuses": statuses("initContainers"),
        "containerStatuses": statuses("containers"),
    });
    if let Some(address) = address {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{ "ip": address }]);
    }
    status
}

fn phase<'a>(
    spec: &Value,
    state: &impl Fn(&Value) -> &'a ContainerState,
    initialized: bool,
    is_over: bool,
) -> &'static str {
    let mut own = items(spec, "containers").map(state);
    if is_over {
        return if own.all(ContainerState::is_done) { "Succeeded" } else { "Failed" };
    }
    let has_started = |state: &ContainerState| {
        !matches!(state.phase, ContainerPhase::Waiting { .. }) || state.last.is_some()
    };
    if initialized && own.all(has_started) { "Running" } else { "Pending" }
}

fn condition(pod: &Value, kind: &str, holds: bool, message: &str, now: &str) -> Value {
    let status = if holds { "True" } else { "False" };
    let known = items(&pod["status"], "conditions")
        .find(|known| known["type"] == kind && known["status"] == status);
    let since = known.and_then(|known| known["lastTransitionTime"].as_str()).unwrap_or(now);
    let mut condition = json!({ "type": kind, "status": status, "lastTransitionTime": since });
    if !holds {
        condition["reason"] = json!("ContainersNotReady");
        condition["message"] = json!(message);
    }
    condition
}

fn container_status(container: &Value, state: &ContainerState) -> Value {
    let ended = |end: &Termination| {
        let reason = if end.code == 0 { "Completed" } else { "Error" };
        json!({ "terminated": { "exitCode": end.code, "reason": reason,
            "startedAt": end.since, "finishedAt": end.until } })
    };
    let now = match &state.phase {
        ContainerPhase::Waiting { reason, message } => {
            json!({ "waiting": { "reason": reason, "message": message } })
        }
        ContainerPhase::Running { since } => json!({ "running": { "startedAt": since } }),
        ContainerPhase::Ended(end) => ended(end),
    };
    let is_running = matches!(state.phase, ContainerPhase::Running { .. });
    json!({
        "name": container["name"],
        "image": container["image"],
        "imageID": container["image"],
        "ready": state.ready || (state.is_done() && !is_running),
        "started": state.started,
        "restartCount": state.restarts,
        "state": now,
        "lastState": state.last.as_ref().filter(|_| is_running).map_or(json!({}), ended),
    })
}
