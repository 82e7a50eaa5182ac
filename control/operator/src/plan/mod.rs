//! Steps from what a cluster has to what a graph wants. A pass takes no step back to look: it plans
//! from what it sees, and so does the next, whatever became of the steps of this one.

mod cliques;
mod readiness;
mod restart;
mod rollout;
mod status;
mod view;

pub(crate) use view::{ClusterView, key};

use crate::condition::translated;
use crate::objects::{
    Instance, OperatorSettings, WantedObjects, graph, hash_of, label, of_older_form, planner,
    workload,
};
use crate::translate::Note;
use readiness::WorkloadReadiness;
use rollout::{ComponentCopies, GenerationCopies};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use view::{COMPONENT, ObservedObjects};

/// Annotation with the hash of the object as it was applied.
pub(crate) const APPLIED: &str = "nvidia.com/last-applied-hash";
/// Label of all objects of one document; its value is of [`owner_label`].
pub(crate) const OWNER: &str = "stator.dev/owner";
/// Kinds that stay when nothing wants them any more: what users have stored in them.
const KEPT: [&str; 1] = ["PersistentVolumeClaim"];
const ADAPTER: &str = "DynamoGraphDeploymentScalingAdapter";

/// Step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObjectStep {
    /// Create the object, or change it to be like this.
    Apply(Value),
    /// Delete the object.
    Delete(Value),
    /// Ask the object, which is somebody else's, for this many copies.
    Scale(Value, i32),
}

impl ObjectStep {
    /// The object.
    pub(crate) fn object(&self) -> &Value {
        match self {
            Self::Apply(object) | Self::Delete(object) | Self::Scale(object, _) => object,
        }
    }

    /// Word for the change of the object.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Apply(_) => "apply",
            Self::Delete(_) => "delete",
            Self::Scale(..) => "scale",
        }
    }
}

/// Steps, and the state to report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DocumentPlan {
    /// In the order in which they are taken.
    pub(crate) steps: Vec<ObjectStep>,
    /// Status of the document.
    pub(crate) status: Value,
    /// Status of each component of a graph, and of each adapter, with its document.
    pub(crate) components: Vec<(Value, Value)>,
}

impl DocumentPlan {
    /// No steps, for a document that cannot be understood: what runs stays.
    pub(crate) fn failed(document: &Value) -> Self {
        let part = status::ComponentState {
            component: document,
            readiness: WorkloadReadiness::default(),
            kind: "Deployment",
            obstacle: None,
        };
        let mut status = match document["kind"] == COMPONENT {
            true => status::of_component(document, &part),
            false => status::of_graph(document, &[], translated(&[])),
        };
        if let Some(status) = status.as_object_mut() {
            let known = document["status"].get("components").cloned();
            status.remove("components");
            status.extend(known.map(|known| ("components".to_owned(), known)));
        }
        Self { steps: Vec::new(), status, components: Vec::new() }
    }
}

/// Value of the label that all objects of a document have.
pub(crate) fn owner_label(document: &Value) -> String {
    hash_of(&json!([document["kind"], document["metadata"]["name"]]), 32)
}

/// Objects that a graph wants, and the states of its components.
struct GraphDraft {
    wanted: Vec<Value>,
    notes: Vec<Note>,
    /// Each component with the kind and the readiness of its workload.
    parts: Vec<(Value, &'static str, WorkloadReadiness)>,
    /// Steps beside those to the wanted objects.
    steps: Vec<ObjectStep>,
    is_rolling: bool,
    restart: Value,
}

/// Plans for a graph of `v1beta1`. The view is of all objects with the graph's [`OWNER`] label.
///
/// # Errors
///
/// The field that is wrong. Nothing that runs is touched then.
pub(crate) fn plan_graph(
    document: &Value,
    view: &ClusterView,
    settings: &OperatorSettings,
) -> Result<DocumentPlan, String> {
    let mut document = match settings.translates {
        true => planner::with_adapters(document.clone()),
        false => document.clone(),
    };
    let there = ObservedObjects::new(view);
    there.scale(&mut document);
    let WantedObjects { objects, mut notes } = graph::objects(&document, settings)?;
    let (new, mut wanted): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object["kind"] == COMPONENT);
    let mut draft = match there.wants_cliques(&document)? {
        true => {
            crate::objects::cliques::forget_obeyed(&mut notes);
            cliques::draft(&there, &document, new, settings)?
        }
        false => components(&there, &document, new, settings)?,
    };
    // A scaler's number is the scaler's once it is there.
    wanted.retain(|object| object["kind"] != ADAPTER || there.find(object).is_none());
    let kept = there.of_kind(ADAPTER).filter(|adapter| is_wanted_adapter(adapter, &document));
    let kept: Vec<_> = kept.cloned().collect();
    wanted.extend(draft.wanted);
    notes.extend(draft.notes);
    notes.dedup();
    let mut steps = there.steps(wanted, &kept, &document);
    steps.append(&mut draft.steps);
    let mut plan = there.report(&document, &draft.parts, &notes, steps);
    status::roll(&mut plan.status, &document["status"]["rollingUpdate"], draft.is_rolling);
    if !draft.restart.is_null() {
        plan.status["restart"] = draft.restart;
    }
    plan.components.extend(kept.into_iter().map(|adapter| {
        let status = status::of_adapter(&adapter);
        (adapter, status)
    }));
    Ok(plan)
}

/// A graph whose components have documents and workloads of their own, in generations.
fn components(
    there: &ObservedObjects<'_>,
    document: &Value,
    new: Vec<Value>,
    settings: &OperatorSettings,
) -> Result<GraphDraft, String> {
    let wanted_number = new.len();
    let mut all = there.generations(new)?;
    let is_rolling = all.len() > wanted_number;
    // The wanted generation stands first.
    let restart = restart::restart(there, document, &mut all[..wanted_number], is_rolling)?;
    let (mut wanted, mut notes, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for component in all {
        let of = Instance::read(&component)?;
        let objects = workload::objects(&of, settings, there.node_sets(&of))?;
        parts.push((component.clone(), there.workload_kind(&of), there.readiness(&of)));
        wanted.push(component);
        wanted.extend(objects.objects);
        notes.extend(objects.notes);
    }
    Ok(GraphDraft { wanted, notes, parts, steps: Vec::new(), is_rolling, restart })
}

/// Plans for a component by itself. The view is of all objects with its [`OWNER`] label.
///
/// # Errors
///
/// The field that is wrong.
pub(crate) fn plan_component(
    document: &Value,
    view: &ClusterView,
    settings: &OperatorSettings,
) -> Result<DocumentPlan, String> {
    let there = ObservedObjects::new(view);
    let of = Instance::read(document)?;
    let mut wanted = workload::objects(&of, settings, there.node_sets(&of))?;
    wanted.notes.extend(of_older_form(document));
    let part = [(document.clone(), there.workload_kind(&of), there.readiness(&of))];
    let steps = there.steps(wanted.objects, &[], document);
    let mut plan = there.report(document, &part, &wanted.notes, steps);
    if let Some((_, status)) = plan.components.pop() {
        plan.status = status;
    }
    plan.status["conditions"]
        .as_array_mut()
        .into_iter()
        .for_each(|all| all.push(translated(&wanted.notes)));
    Ok(plan)
}

impl ObservedObjects<'_> {
    /// Gives the components the numbers of their adapters.
    fn scale(&self, document: &mut Value) {
        let components = document["spec"]["components"].as_array_mut().into_iter().flatten();
        for component in components.filter(|component| component["scalingAdapter"].is_object()) {
            let mut adapters = self.of_kind(ADAPTER);
            let adapter =
                adapters.find(|of| of["spec"]["dgdRef"]["componentName"] == component["name"]);
            if let Some(adapter) = adapter {
                component["replicas"] = adapter["spec"]["replicas"].clone();
            }
        }
    }

    /// Components of the wanted generation and of those that still serve, with their numbers.
    fn generations(&self, mut new: Vec<Value>) -> Result<Vec<Value>, String> {
        let wanted: BTreeSet<_> = new.iter().map(key).collect();
        let mut old: Vec<_> = self
            .of_kind(COMPONENT)
            .filter(|component| hash(component).is_some() && !wanted.contains(&key(component)))
            .cloned()
            .collect();
        // Components of one generation stand side by side, whatever second each was made in.
        let mut first: BTreeMap<String, String> = BTreeMap::new();
        for component in &old {
            let made = component["metadata"]["creationTimestamp"].to_string();
            let known = first
                .entry(hash(component).unwrap_or_default().to_owned())
                .or_insert_with(|| made.clone());
            *known = made.min(known.clone());
        }
        old.sort_by_cached_key(|component| {
            let generation = hash(component).unwrap_or_default().to_owned();
            (first[&generation].clone(), generation)
        });
        let mut all: BTreeMap<String, ComponentCopies> = BTreeMap::new();
        for component in new.iter().filter(|component| hash(component).is_some()) {
            let copies = all.entry(name(component)).or_default();
            copies.desired = replicas(component);
            copies.new = self.copies(component)?;
        }
        let is_serving = |copies: &ComponentCopies| copies.desired == 0 || copies.new.available > 0;
        let needed = match all.values().all(is_serving) {
            true => None,
            false => self.last_serving(&old)?,
        };
        for component in &old {
            let is_needed = hash(component) == needed.as_deref();
            let copies = GenerationCopies { is_needed, ..self.copies(component)? };
            all.entry(name(component)).or_default().old.push(copies);
        }
        if all.values().all(ComponentCopies::is_updated) {
            old.clear();
            all.values_mut().for_each(|copies| copies.old.clear());
        }
        let targets: BTreeMap<_, _> =
            all.iter().map(|(name, copies)| (name.clone(), copies.targets())).collect();
        for component in new.iter_mut().filter(|component| hash(component).is_some()) {
            component["spec"]["replicas"] = targets[&name(component)].new.into();
        }
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        for component in &mut old {
            let at = taken.entry(name(component)).or_default();
            component["spec"]["replicas"] = targets[&name(component)].old[*at].into();
            *at += 1;
            *component = bare(component);
        }
        new.extend(old);
        Ok(new)
    }

    /// The newest generation of these components that serves: one that was made whole.
    fn last_serving(&self, old: &[Value]) -> Result<Option<String>, String> {
        let mut available: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for component in old {
            let is_available = self.copies(component)?.available > 0;
            available.entry(hash(component).unwrap_or_default()).or_default().push(is_available);
        }
        let whole = available.values().map(Vec::len).max();
        let serves = |generation: &&str| {
            let components = &available[generation];
            Some(components.len()) == whole && components.iter().all(|is_available| *is_available)
        };
        Ok(old.iter().rev().filter_map(hash).find(serves).map(str::to_owned))
    }

    /// Copies of a component, as its workload says; none of one that is not there.
    fn copies(&self, component: &Value) -> Result<GenerationCopies, String> {
        let WorkloadReadiness { asked, available, .. } =
            self.readiness(&Instance::read(component)?);
        Ok(GenerationCopies { asked, available, is_needed: false })
    }

    /// Steps to the wanted objects, then away from those that nobody wants.
    fn steps(&self, wanted: Vec<Value>, kept: &[Value], document: &Value) -> Vec<ObjectStep> {
        let mut names: BTreeSet<_> = wanted.iter().chain(kept).map(key).collect();
        names
            .extend(self.objects.keys().filter(|(kind, _)| KEPT.contains(&kind.as_str())).cloned());
        let applied = wanted.into_iter().map(|object| owned(object, document)).filter(|object| {
            let there = self.find(object);
            there.is_none_or(|there| annotation(there) != annotation(object))
        });
        let mut steps: Vec<_> = applied.map(ObjectStep::Apply).collect();
        let unwanted = self.objects.iter().filter(|(key, _)| !names.contains(key));
        steps.extend(unwanted.map(|(_, object)| ObjectStep::Delete((*object).clone())));
        steps
    }

    fn report(
        &self,
        document: &Value,
        components: &[(Value, &'static str, WorkloadReadiness)],
        notes: &[Note],
        steps: Vec<ObjectStep>,
    ) -> DocumentPlan {
        let parts: Vec<_> = components
            .iter()
            .map(|(component, kind, readiness)| status::ComponentState {
                component,
                readiness: *readiness,
                kind,
                obstacle: self.obstacle(component),
            })
            .collect();
        let status = status::of_graph(document, &parts, translated(notes));
        let observed = |part: &status::ComponentState<'_>| {
            // A status is of the generation that the server has.
            let there = self.find(part.component).unwrap_or(part.component);
            (there.clone(), status::of_component(there, part))
        };
        let there = |part: &&status::ComponentState<'_>| {
            self.find(part.component).is_some() || key(part.component) == key(document)
        };
        let components = parts.iter().filter(there).map(observed).collect();
        DocumentPlan { steps, status, components }
    }
}

fn is_wanted_adapter(adapter: &Value, document: &Value) -> bool {
    let components = document["spec"]["components"].as_array().into_iter().flatten();
    components.into_iter().any(|component| {
        component["name"] == adapter["spec"]["dgdRef"]["componentName"]
            && component["scalingAdapter"].is_object()
    })
}

fn annotation(object: &Value) -> &Value {
    &object["metadata"]["annotations"][APPLIED]
}

/// Generation of a worker component.
fn hash(component: &Value) -> Option<&str> {
    component["metadata"]["labels"][label("dynamo-worker-hash")].as_str()
}

/// Name of a component in its graph.
fn name(component: &Value) -> String {
    component["spec"]["name"].as_str().unwrap_or_default().to_owned()
}

fn replicas(component: &Value) -> i32 {
    component["spec"]["replicas"].as_i64().map_or(1, |number| number as i32)
}

/// An object as it was applied, without what the server added.
fn bare(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut labels = metadata["labels"].clone();
    if let Some(labels) = labels.as_object_mut() {
        labels.remove(OWNER);
    }
    json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": labels,
        },
        "spec": object["spec"],
    })
}

/// An object with its owner and its hash.
fn owned(mut object: Value, document: &Value) -> Value {
    let metadata = &document["metadata"];
    object["metadata"]["labels"][OWNER] = owner_label(document).into();
    let is_kept = KEPT.iter().any(|kept| object["kind"] == *kept);
    if metadata["uid"].is_string() && !is_kept {
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": true,
        }]);
    }
    let hash = hash_of(&object, 32);
    object["metadata"]["annotations"][APPLIED] = hash.into();
    object
}

#[cfg(test)]
mod tests;
