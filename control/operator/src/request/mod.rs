//! Requests for a graph that meets objectives: from a document to a deployed graph, phase by phase.
//!
//! [`plan_request`] is the state machine: a document, the state of its profile and the graph that
//! is there, in; a status and steps, out. A pass moves a request by one phase at most, and the
//! status is all that is remembered, so that another process goes on where one has ended. `question`
//! turns a document into a question to `stator plan`, `graph` its answer into a graph.

mod graph;
mod hardware;
mod question;

pub(crate) use graph::{REQUEST_LABEL, generated, graph_faults, graph_name, without_effect};
pub(crate) use hardware::{of_nodes, of_sku};
pub(crate) use question::{MODEL_CONFIG, RequestSurroundings, question};

use crate::condition::bounded;
use serde_json::{Value, json};

/// Annotation of a request with the graph that was generated for it.
const GENERATED: &str = "nvidia.com/generated-dgd-spec";

/// State of a request's profile in this process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestProfile {
    /// Nobody began it.
    Absent,
    /// Layouts are compared.
    Running,
    /// The graph, or why there is none.
    Done(Result<Value, String>),
}

/// Everything that a step of a request depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestScene<'a> {
    /// The request.
    pub(crate) document: &'a Value,
    /// Faults of the request.
    pub(crate) faults: &'a [String],
    /// Its profile.
    pub(crate) profile: &'a RequestProfile,
    /// The graph of its graph's name.
    pub(crate) graph: Option<&'a Value>,
}

/// Step of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestStep {
    /// Begin the profile.
    Profile,
    /// Create the graph.
    Apply(Value),
    /// Set these annotations of the request.
    Annotate(Value),
}

/// Status and steps of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RequestPlan {
    /// Steps, in the order in which they are taken.
    pub(crate) steps: Vec<RequestStep>,
    /// Status of the request.
    pub(crate) status: Value,
}

/// A status that is being written.
struct StatusWriter {
    status: Value,
    generation: Value,
}

impl StatusWriter {
    fn new(document: &Value) -> Self {
        let mut status = document["status"].clone();
        if !status.is_object() {
            status = json!({});
        }
        let generation = document["metadata"]["generation"].clone();
        status["observedGeneration"] = generation.clone();
        Self { status, generation }
    }

    fn condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        if !self.status["conditions"].is_array() {
            self.status["conditions"] = json!([]);
        }
        let conditions = self.status["conditions"].as_array_mut().into_iter().flatten();
        let known = conditions.into_iter().find(|of| of["type"] == kind);
        let mut condition = json!({
            "type": kind, "status": status, "reason": reason, "message": bounded(message),
        });
        if !self.generation.is_null() {
            condition["observedGeneration"] = self.generation.clone();
        }
        match known {
            Some(known) => *known = condition,
            None => {
                if let Some(all) = self.status["conditions"].as_array_mut() {
                    all.push(condition);
                }
            }
        }
    }

    fn reason(&self, kind: &str) -> Option<&str> {
        let mut all = self.status["conditions"].as_array().into_iter().flatten();
        all.find(|of| of["type"] == kind)?["reason"].as_str()
    }

    /// Enters a phase that goes on, or that is an end.
    fn phase(&mut self, phase: &str, reason: &str, message: &str) {
        self.status["phase"] = phase.into();
        if let Some(status) = self.status.as_object_mut().filter(|_| phase != "Profiling") {
            status.remove("profilingPhase");
        }
        let succeeded = if matches!(phase, "Ready" | "Deployed") { "True" } else { "False" };
        self.condition("Succeeded", succeeded, reason, message);
    }

    /// Ends a request with the condition that failed.
    fn fail(&mut self, kind: &str, reason: &str, message: &str) {
        self.condition(kind, "False", reason, message);
        self.phase("Failed", reason, message);
    }

    fn profiles(&mut self, part: &str) {
        self.status["profilingPhase"] = part.into();
        self.condition("Profiling", "False", part, "layouts are compared in virtual time");
        self.phase("Profiling", "Profiling", "layouts are compared");
    }
}

/// The next status of a request, and the steps to it.
pub(crate) fn plan_request(scene: RequestScene<'_>) -> RequestPlan {
    let mut status = StatusWriter::new(scene.document);
    let phase = scene.document["status"]["phase"].as_str().unwrap_or_default();
    let steps = match phase {
        "" => validate(&mut status, scene.faults),
        "Pending" => {
            status.profiles("Initializing");
            vec![RequestStep::Profile]
        }
        "Profiling" => profile(&mut status, scene),
        "Ready" => ready(&mut status, scene),
        "Deploying" | "Deployed" => deploy(&mut status, scene, phase),
        // A request that failed stays as it is.
        _ => Vec::new(),
    };
    RequestPlan { steps, status: status.status }
}

fn validate(status: &mut StatusWriter, faults: &[String]) -> Vec<RequestStep> {
    if faults.is_empty() {
        status.condition("Validation", "True", "ValidationPassed", "");
        status.phase("Pending", "Pending", "");
    } else {
        status.fail("Validation", "ValidationFailed", &faults.join("\n"));
    }
    Vec::new()
}

fn profile(status: &mut StatusWriter, scene: RequestScene<'_>) -> Vec<RequestStep> {
    let graph = match scene.profile {
        // The process that profiled has ended, or the document changed since its validation.
        RequestProfile::Absent if scene.faults.is_empty() => {
            status.profiles("Initializing");
            return vec![RequestStep::Profile];
        }
        RequestProfile::Absent => {
            status.fail("Validation", "ValidationFailed", &scene.faults.join("\n"));
            return Vec::new();
        }
        RequestProfile::Running => {
            status.profiles("SelectingConfig");
            return Vec::new();
        }
        RequestProfile::Done(Err(fault)) => {
            status.fail("Profiling", "SelectingConfigFailed", fault);
            return Vec::new();
        }
        RequestProfile::Done(Ok(graph)) => graph,
    };
    status.condition("Profiling", "True", "ProfilingCompleted", "");
    let notes = without_effect(scene.document).join("\n");
    status.condition("SpecGenerated", "True", "SpecGenerated", &notes);
    status.status["profilingResults"] = json!({ "selectedConfig": graph });
    status.status["dgdName"] = graph["metadata"]["name"].clone();
    match scene.document["spec"]["autoApply"] == false {
        true => status.phase("Ready", "SpecGenerated", "the graph is in status.profilingResults"),
        false => status.phase("Deploying", "Deploying", "the graph is created"),
    }
    vec![RequestStep::Annotate(json!({ GENERATED: graph.to_string() }))]
}

fn ready(status: &mut StatusWriter, scene: RequestScene<'_>) -> Vec<RequestStep> {
    if scene.document["spec"]["autoApply"] != false {
        status.phase("Deploying", "Deploying", "the graph is created");
    } else if let Some(graph) = scene.graph.filter(|graph| is_of(graph, scene.document)) {
        status.status["deploymentInfo"] = copies(graph);
    }
    Vec::new()
}

fn deploy(status: &mut StatusWriter, scene: RequestScene<'_>, phase: &str) -> Vec<RequestStep> {
    let name = scene.document["status"]["dgdName"].as_str().unwrap_or_default();
    let seen = status.reason("DeploymentReady").is_some();
    let Some(graph) = scene.graph else {
        if seen {
            let message = format!("the graph {name} was deleted");
            status.fail("DeploymentReady", "DeploymentDeleted", &message);
            return Vec::new();
        }
        let generated = &scene.document["status"]["profilingResults"]["selectedConfig"];
        return vec![RequestStep::Apply(generated.clone())];
    };
    if !is_of(graph, scene.document) {
        let message = format!("there is a graph {name} that is not of this request");
        status.fail("DeploymentReady", "DeploymentFailed", &message);
        return Vec::new();
    }
    status.status["deploymentInfo"] = copies(graph);
    let state = graph["status"]["state"].as_str().unwrap_or("initializing");
    if state == "successful" {
        status.condition("DeploymentReady", "True", "DeploymentReady", "");
        status.phase("Deployed", "Deployed", "");
        return Vec::new();
    }
    let message = format!("the graph {name} is {state}");
    let degraded =
        phase == "Deployed" || status.reason("DeploymentReady") == Some("DeploymentDegraded");
    let reason = if degraded { "DeploymentDegraded" } else { "DeploymentInProgress" };
    status.condition("DeploymentReady", "False", reason, &message);
    status.phase("Deploying", "Deploying", &message);
    Vec::new()
}

/// Whether a graph was made for a request.
fn is_of(graph: &Value, document: &Value) -> bool {
    graph["metadata"]["labels"][REQUEST_LABEL] == document["metadata"]["name"]
}

/// Copies of all components of a graph.
fn copies(graph: &Value) -> Value {
    let sum = |field: &str| -> i64 {
        let components = graph["status"]["components"].as_object().into_iter().flatten();
        components.map(|(_, component)| component[field].as_i64().unwrap_or(0)).sum()
    };
    json!({ "replicas": sum("replicas"), "availableReplicas": sum("availableReplicas") })
}

#[cfg(test)]
mod tests;
