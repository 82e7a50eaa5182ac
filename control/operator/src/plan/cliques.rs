//! Graphs whose pods come from Grove: one set of cliques, which Grove's operator rolls by itself.

use super::view::{CLIQUES, ObservedObjects};
use super::{GraphDraft, ObjectStep, WorkloadReadiness};
use crate::objects::{Instance, OperatorSettings, WantedObjects, cliques, label};
use serde_json::{Value, json};

/// The set of a graph and the Services of its components.
///
/// # Errors
///
/// The field that is wrong.
pub(super) fn draft(
    there: &ObservedObjects<'_>,
    document: &Value,
    components: Vec<Value>,
    settings: &OperatorSettings,
) -> Result<GraphDraft, String> {
    let mut components = cliques::unversioned(document, components);
    if let Some(mark) = restart_mark(there, document) {
        for component in &mut components {
            let metadata = &mut component["spec"]["podTemplate"]["metadata"];
            metadata["annotations"][label("restartAt")] = mark.clone();
        }
    }
    let WantedObjects { objects, notes } = cliques::objects(document, &components, settings)?;
    let name = objects[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let (mut parts, mut steps) = (Vec::new(), Vec::new());
    for component in components {
        let of = Instance::read(&component)?;
        let reference = cliques::scaled(&of, &name);
        let found = there.clique(&reference);
        let copies = of.shape.replicas.unwrap_or(1);
        if found.is_some_and(|found| found["spec"]["replicas"] != copies) {
            steps.push(ObjectStep::Scale(reference.clone(), copies));
        }
        let kind = match reference["kind"] == "PodClique" {
            true => "PodClique",
            false => "PodCliqueScalingGroup",
        };
        parts.push((component, kind, WorkloadReadiness::of(found)));
    }
    let is_ready = parts.iter().all(|(_, _, readiness)| readiness.is_ready());
    let restart = restart_state(document, is_ready);
    Ok(GraphDraft { wanted: objects, notes, parts, steps, is_rolling: false, restart })
}

/// The annotation of pods that a restart asks for; the one that they have where none does.
fn restart_mark(there: &ObservedObjects<'_>, document: &Value) -> Option<Value> {
    let asked = &document["spec"]["restart"]["id"];
    if asked.is_string() {
        return Some(asked.clone());
    }
    let set = there.of_kind(CLIQUES).next()?;
    let clique = &set["spec"]["template"]["cliques"][0];
    Some(clique["annotations"][label("restartAt")].clone()).filter(|mark| !mark.is_null())
}

fn restart_state(document: &Value, is_ready: bool) -> Value {
    let known = &document["status"]["restart"];
    let asked = &document["spec"]["restart"]["id"];
    if !asked.is_string() || known["observedID"] == *asked && known["phase"] == "Completed" {
        return known.clone();
    }
    // What was asked for only now shows in no status yet.
    let is_new = known["observedID"] != *asked;
    let phase = if is_ready && !is_new { "Completed" } else { "Restarting" };
    json!({ "observedID": asked, "phase": phase })
}
