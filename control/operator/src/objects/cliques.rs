//! A graph as a PodCliqueSet of Grove's: all components in one object, whose pods start as a gang.

use super::instance::Instance;
use super::multinode::node_templates;
use super::provider::NodeSets;
use super::workload::{pods, services};
use super::{OperatorSettings, WantedObjects, label, object, strings};
use crate::translate::Note;
use serde_json::{Map, Value, json};

/// Longest name of a set, of one of its scaling groups and of a clique in that, together.
const NAMES_BYTES_MAX: usize = 45;
/// Bytes that a name needs at least to be shortened.
const SHORT_NAME_BYTES_MIN: usize = 6;
/// Time after which a gang that lost pods is ended as a whole.
const TERMINATION_DELAY: &str = "15m0s";

/// The components of a graph without a generation in their names: Grove replaces pods in place.
pub(crate) fn unversioned(graph: &Value, mut components: Vec<Value>) -> Vec<Value> {
    let graph = graph["metadata"]["name"].as_str().unwrap_or_default();
    for component in &mut components {
        let name = component["spec"]["name"].as_str().unwrap_or_default().to_lowercase();
        component["metadata"]["name"] = json!(format!("{graph}-{name}"));
    }
    components
}

/// The set of a graph's components, and their Services.
///
/// # Errors
///
/// The field that is wrong.
pub(crate) fn objects(
    document: &Value,
    components: &[Value],
    settings: &OperatorSettings,
) -> Result<WantedObjects, String> {
    let (mut cliques, mut groups) = (Vec::new(), Vec::new());
    let (mut notes, mut others) = (Vec::new(), Vec::new());
    let mut longest = 0;
    for component in components {
        let of = Instance::read(component)?;
        let (template, lost) = pods(&of, settings);
        notes.extend(lost);
        others.extend(services(&of));
        let name = of.component.to_lowercase();
        let copies = of.shape.replicas.unwrap_or(1);
        let least = of.shape.min_available.unwrap_or(1);
        let place = of.shape.topology_constraint.as_ref().and_then(|of| of.0.get("packDomain"));
        let place = place.and_then(|domain| topology(document, domain));
        if !is_group(&of) {
            longest = longest.max(name.len());
            cliques.push(placed(clique(&of, &name, &template, copies, least), place));
            continue;
        }
        let names = cliques_of(&of);
        longest = longest.max(2 * name.len() + "-ldr".len());
        let templates = match of.is_multinode() {
            true => node_templates(&of, &template, NodeSets::Cliques, &mut notes).to_vec(),
            false => vec![template],
        };
        let sizes = [1, of.nodes() - 1];
        let nodes = names.iter().zip(&templates).zip(sizes);
        cliques
            .extend(nodes.map(|((name, template), size)| clique(&of, name, template, size, size)));
        let group = json!({
            "name": name, "cliqueNames": names, "replicas": copies, "minAvailable": least,
        });
        groups.push(placed(group, place));
    }
    let graph = document["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = document["metadata"]["namespace"].as_str().unwrap_or("default");
    let mut set =
        object("grove.io/v1alpha1", "PodCliqueSet", namespace, &short_name(graph, longest)?);
    set["spec"] = json!({ "replicas": 1, "template": {
        "cliques": cliques,
        "cliqueStartupType": "CliqueStartupTypeAnyOrder",
        "headlessServiceConfig": { "publishNotReadyAddresses": true },
        "terminationDelay": TERMINATION_DELAY,
    } });
    if !groups.is_empty() {
        set["spec"]["template"]["podCliqueScalingGroups"] = groups.into();
    }
    if let Some(class) = document["spec"]["priorityClassName"].as_str() {
        set["spec"]["template"]["priorityClassName"] = class.into();
    }
    let template = set["spec"]["template"].take();
    let domain = &document["spec"]["topologyConstraint"]["packDomain"];
    set["spec"]["template"] = placed(template, topology(document, domain));
    let strategy = &document["metadata"]["annotations"][label("grove-update-strategy")];
    if strategy.is_string() {
        set["spec"]["updateStrategy"] = json!({ "type": strategy });
    }
    forget_obeyed(&mut notes);
    Ok(WantedObjects { objects: [set].into_iter().chain(others).collect(), notes })
}

/// Fields that only a graph of cliques obeys.
const OBEYED: [&str; 3] = ["spec.topologyConstraint", "topologyConstraint", "experimental.grove"];

/// Forgets the notes on fields that a graph of cliques obeys.
pub(crate) fn forget_obeyed(notes: &mut Vec<Note>) {
    notes.retain(|note| !OBEYED.contains(&note.subject.as_str()));
}

/// The place of pods that a graph or one of its components asks for, in Grove's words.
fn topology(graph: &Value, domain: &Value) -> Option<Value> {
    let name = &graph["spec"]["topologyConstraint"]["clusterTopologyName"];
    let constraint = json!({ "topologyName": name, "pack": { "required": domain } });
    (!domain.is_null() && !name.is_null()).then_some(constraint)
}

/// Kind and name of the object by which Grove scales a component, in the set of this name.
pub(crate) fn scaled(of: &Instance, set: &str) -> Value {
    let kind = if is_group(of) { "PodCliqueScalingGroup" } else { "PodClique" };
    let name = format!("{set}-0-{}", of.component.to_lowercase());
    object("grove.io/v1alpha1", kind, &of.namespace, &name)
}

fn placed(mut part: Value, place: Option<Value>) -> Value {
    if let Some(place) = place {
        part["topologyConstraint"] = place;
    }
    part
}

/// Whether several cliques make one copy of a component, or it is to be scaled as if they did.
fn is_group(of: &Instance) -> bool {
    let experimental = of.shape.experimental.as_ref();
    let is_forced = experimental.and_then(|all| all.0.get("grove"));
    of.is_multinode() || is_forced.is_some_and(|grove| grove["forceScalingGroup"] == true)
}

fn cliques_of(of: &Instance) -> Vec<String> {
    let name = of.component.to_lowercase();
    match of.is_multinode() {
        true => vec![format!("{name}-ldr"), format!("{name}-wkr")],
        false => vec![name],
    }
}

fn clique(of: &Instance, name: &str, template: &Value, replicas: i32, least: i32) -> Value {
    let annotations = annotations(of, template);
    let mut clique = json!({
        "name": name,
        "labels": strings(&template["metadata"], "labels"),
        "annotations": annotations,
        "spec": {
            "roleName": name,
            "replicas": replicas,
            "minAvailable": least,
            "podSpec": template["spec"],
        },
    });
    if let Some(queue) = annotations.get(&label("kai-scheduler-queue")) {
        clique["labels"]["kai.scheduler/queue"] = queue.clone();
        clique["spec"]["podSpec"]["schedulerName"] = "kai-scheduler".into();
    }
    clique
}

/// Annotations of the pods, with those that say how they were made.
fn annotations(of: &Instance, template: &Value) -> Map<String, Value> {
    let mut annotations = strings(&template["metadata"], "annotations");
    annotations.insert(label("dynamo-discovery-backend"), "kubernetes".into());
    let origin = label("dynamo-operator-origin-version");
    let metadata = of.shape.pod_template.as_ref().and_then(|said| said.0.get("metadata"));
    if let Some(version) = metadata.and_then(|metadata| metadata["annotations"].get(&origin)) {
        annotations.insert(origin, version.clone());
    }
    annotations
}

/// The graph's name, or its beginning and a hash where the names of its pods leave less room.
fn short_name(graph: &str, others: usize) -> Result<String, String> {
    let room = NAMES_BYTES_MAX.saturating_sub(others);
    if graph.len() <= room {
        return Ok(graph.to_owned());
    }
    if room < SHORT_NAME_BYTES_MIN {
        let limit = NAMES_BYTES_MAX - SHORT_NAME_BYTES_MIN;
        return Err(format!("spec.components: names of {others} bytes, the limit is {limit}"));
    }
    let hash = graph
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let start = graph[..graph.floor_char_boundary(room - 5)].trim_end_matches(['-', '.']);
    Ok(format!("{start}-{:04x}", hash & 0xffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shortened_to_what_its_pods_leave() {
        assert_eq!(short_name("graph", 40).as_deref(), Ok("graph"));
        let short = short_name("a-graph-with-a-long-name", 30).expect("there is room");
        assert_eq!(short, "a-graph-wi-14b5");
        assert!(short.len() + 30 <= NAMES_BYTES_MAX);
        let other = short_name("a-graph-with-a-longer-name", 30).expect("there is room");
        assert_ne!(other, short);
        assert!(short_name("a-graph-with-a-long-name", 40).is_err());
    }
}
