//! Restarts of components, all at once or one after another.
//!
//! A component restarts when its pods' annotation changes. How far a restart has come is in the
//! workloads themselves: a component has restarted once its workload has the annotation and is ready.
//! So a pass that failed, or an operator that was replaced, loses nothing.

use super::{ObservedObjects, name};
use crate::objects::{Instance, label};
use serde_json::{Value, json};

/// Restart that a graph asks for.
struct WantedRestart<'a> {
    id: &'a str,
    is_parallel: bool,
    /// Names of components, first to last; the others follow by name.
    order: Vec<&'a str>,
}

/// State of one component's restart.
#[derive(Clone, Copy, PartialEq)]
enum RestartStep {
    /// Its pods are as they were.
    Waiting,
    /// Its pods are being replaced.
    Running,
    Done,
}

/// Phases after which a restart is not taken up again.
const ENDED: [&str; 3] = ["Completed", "Failed", "Superseded"];

/// Gives components of the wanted generation the annotations of their restarts, and returns the
/// state to report; null where none was ever asked for.
pub(super) fn restart(
    there: &ObservedObjects<'_>,
    document: &Value,
    new: &mut [Value],
    is_rolling: bool,
) -> Result<Value, String> {
    let known = &document["status"]["restart"];
    for component in new.iter_mut() {
        let before = annotation_of(there.find(component)).cloned();
        if let Some(before) = before {
            mark(component, before);
        }
    }
    let Some(wanted) = WantedRestart::of(document) else { return Ok(known.clone()) };
    let phase = known["phase"].as_str().unwrap_or_default();
    if known["observedID"] == wanted.id && ENDED.contains(&phase) {
        return Ok(known.clone());
    }
    if is_rolling {
        return Ok(json!({ "observedID": wanted.id, "phase": "Superseded" }));
    }
    let mut running = Vec::new();
    new.sort_by_cached_key(|component| wanted.place(&name(component)));
    for component in new.iter_mut() {
        let step = step(there, component, wanted.id)?;
        let begins = running.is_empty() || wanted.is_parallel;
        if step == RestartStep::Running || (step == RestartStep::Waiting && begins) {
            mark(component, wanted.id.into());
            running.push(name(component));
        } else if step == RestartStep::Waiting {
            // Its turn comes.
            running.push(String::new());
        }
    }
    let phase = if running.is_empty() { "Completed" } else { "Restarting" };
    let mut state = json!({ "observedID": wanted.id, "phase": phase });
    running.retain(|name| !name.is_empty());
    if !running.is_empty() {
        state["inProgress"] = running.into();
    }
    Ok(state)
}

impl<'a> WantedRestart<'a> {
    fn of(document: &'a Value) -> Option<Self> {
        let restart = &document["spec"]["restart"];
        let id = restart["id"].as_str().filter(|id| !id.is_empty())?;
        let strategy = &restart["strategy"];
        let order = strategy["order"].as_array().into_iter().flatten();
        Some(Self {
            id,
            is_parallel: strategy["type"] == "Parallel",
            order: order.filter_map(Value::as_str).collect(),
        })
    }

    /// Place of a component in the order.
    fn place(&self, component: &str) -> (usize, String) {
        let at = self.order.iter().position(|name| *name == component);
        (at.unwrap_or(self.order.len()), component.to_owned())
    }
}

fn step(there: &ObservedObjects<'_>, component: &Value, id: &str) -> Result<RestartStep, String> {
    let of = Instance::read(component)?;
    let is_marked = there.workload(&of).is_some_and(|of| pod_annotation(of) == id);
    Ok(match is_marked {
        true if there.readiness(&of).is_ready() => RestartStep::Done,
        true => RestartStep::Running,
        // Of a component that was begun, only the workload may be behind.
        false if annotation_of(there.find(component)).is_some_and(|mark| mark == id) => {
            RestartStep::Running
        }
        false => RestartStep::Waiting,
    })
}

fn annotation() -> String {
    label("restartAt")
}

/// The annotation of a component's pods, if the component is there and has been restarted.
fn annotation_of(component: Option<&Value>) -> Option<&Value> {
    let metadata = &component?["spec"]["podTemplate"]["metadata"];
    Some(&metadata["annotations"][annotation()]).filter(|mark| !mark.is_null())
}

/// The annotation of a workload's pods.
fn pod_annotation(workload: &Value) -> &Value {
    let spec = &workload["spec"];
    let set = &spec["leaderWorkerTemplate"]["workerTemplate"];
    let template = if set.is_object() { set } else { &spec["template"] };
    &template["metadata"]["annotations"][annotation()]
}

fn mark(component: &mut Value, id: Value) {
    component["spec"]["podTemplate"]["metadata"]["annotations"][annotation()] = id;
}
