//! Events of Kubernetes: what happened to a document, for `kubectl describe`.

use crate::plan::{APPLIED, ObjectStep, key};
use serde_json::{Value, json};

/// Longest message of an event: the API server's limit.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Phases of a change of generations and of a restart, and what is told when each begins.
const PHASES: [(&str, &str, &str); 5] = [
    ("rollingUpdate", "InProgress", "RollingUpdateStarted"),
    ("rollingUpdate", "Completed", "RollingUpdateCompleted"),
    ("restart", "Restarting", "RestartStarted"),
    ("restart", "Completed", "RestartCompleted"),
    ("restart", "Superseded", "RestartSuperseded"),
];
/// Kinds that a user scales by, whose coming and going have names of their own.
const ADAPTER: &str = "DynamoGraphDeploymentScalingAdapter";

/// Something that happened to a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentEvent {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Whether somebody should look.
    pub(crate) is_warning: bool,
}

impl DocumentEvent {
    fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), is_warning: false }
    }

    /// A step that was taken. One that only sets an object again tells nothing.
    pub(crate) fn of_step(step: &ObjectStep, observed: &[Value]) -> Option<Self> {
        let (kind, name) = key(step.object());
        let known = observed.iter().find(|object| key(object) == key(step.object()));
        let word = match (step, known) {
            (ObjectStep::Delete(_), _) => "Delete",
            (ObjectStep::Scale(..), _) => "Scale",
            (ObjectStep::Apply(_), None) => "Create",
            (ObjectStep::Apply(_), Some(known)) => {
                known["metadata"]["annotations"][APPLIED].as_str()?;
                "Update"
            }
        };
        let reason = match kind == ADAPTER {
            true => format!("Adapter{word}d"),
            false => format!("{word}{kind}"),
        };
        Some(Self::normal(reason, format!("{kind} {name}")))
    }

    /// The changes from one status of a document to the next.
    pub(crate) fn of_status(known: &Value, new: &Value) -> Vec<Self> {
        let mut events = Vec::new();
        for (part, phase, reason) in PHASES {
            let is_in = |status: &Value| status[part]["phase"] == phase;
            if is_in(new) && !is_in(known) {
                events.push(Self::normal(reason, format!("{part}: {phase}")));
            }
        }
        let components = new["components"].as_object();
        for (name, component) in components.into_iter().flatten() {
            let (old, new) = (&known["components"][name]["replicas"], &component["replicas"]);
            // During a change of generations the sum is nobody's wish.
            let is_rolling = known["rollingUpdate"]["phase"] == "InProgress";
            // Copies of one that is only now made are not scaled.
            let is_there = *old != 0 || known["conditions"][0]["status"] == "True";
            if old.is_i64() && old != new && is_there && !is_rolling {
                events.push(Self::normal("Scaled", format!("{name}: {old} to {new} copies")));
            }
        }
        let ready = |status: &Value| status["conditions"][0].clone();
        let (old, new) = (ready(known), ready(new));
        let is_failed = new["reason"] == "failed_to_reconcile_the_resources";
        let is_news = ["reason", "message"].iter().any(|name| old[name] != new[name]);
        if is_failed && is_news {
            let message = new["message"].as_str().unwrap_or_default().to_owned();
            events.push(Self { is_warning: true, ..Self::normal("ReconcileFailed", message) });
        }
        events
    }

    /// The event as an object of the API, called after the document and `name`.
    pub(crate) fn object(&self, document: &Value, name: &str, time: &str) -> Value {
        let metadata = &document["metadata"];
        let of = metadata["name"].as_str().unwrap_or_default();
        let mut message = self.message.clone();
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": format!("{of}.{name}"), "namespace": metadata["namespace"] },
            "involvedObject": {
                "apiVersion": document["apiVersion"],
                "kind": document["kind"],
                "name": of,
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "reason": self.reason,
            "message": message,
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "source": { "component": "stator-operator" },
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(events: &[DocumentEvent]) -> Vec<&str> {
        events.iter().map(|event| event.reason.as_str()).collect()
    }

    #[test]
    fn steps_are_told_once() {
        let object = |hash: Option<&str>| {
            json!({
                "kind": "Service",
                "metadata": { "name": "s", "annotations": { APPLIED: hash } },
            })
        };
        let check = |step: ObjectStep, observed: &[Value], expected: Option<&str>| {
            let event = DocumentEvent::of_step(&step, observed);
            assert_eq!(event.as_ref().map(|event| event.reason.as_str()), expected);
        };
        let new = object(Some("new"));
        check(ObjectStep::Apply(new.clone()), &[], Some("CreateService"));
        check(ObjectStep::Apply(new.clone()), &[object(Some("old"))], Some("UpdateService"));
        check(ObjectStep::Apply(new.clone()), &[object(None)], None);
        check(ObjectStep::Delete(new.clone()), &[new], Some("DeleteService"));
        let adapter = json!({ "kind": ADAPTER, "metadata": { "name": "a" } });
        check(ObjectStep::Apply(adapter), &[], Some("AdapterCreated"));
    }

    #[test]
    fn changes_of_a_status_are_told_when_they_begin() {
        let status = |phase: &str, replicas: i64, reason: &str| {
            json!({
                "conditions": [{ "type": "Ready", "reason": reason, "message": "why" }],
                "restart": { "phase": phase },
                "components": { "w": { "replicas": replicas } },
            })
        };
        let (ready, failed) = ("all_resources_are_ready", "failed_to_reconcile_the_resources");
        let first = status("Restarting", 1, ready);
        assert_eq!(reasons(&DocumentEvent::of_status(&json!({}), &first)), ["RestartStarted"]);
        assert!(DocumentEvent::of_status(&first, &first).is_empty());
        let second = status("Completed", 2, failed);
        let events = DocumentEvent::of_status(&first, &second);
        assert_eq!(reasons(&events), ["RestartCompleted", "Scaled", "ReconcileFailed"]);
        assert!(events[2].is_warning && events[2].message == "why");
    }

    #[test]
    fn an_event_is_of_its_document_and_as_long_as_the_server_takes() {
        let document = json!({ "kind": "K", "metadata": { "name": "g", "namespace": "n" } });
        let event = DocumentEvent::normal("Scaled", "é".repeat(2000));
        let object = event.object(&document, "1", "now");
        assert_eq!(object["metadata"]["name"], "g.1");
        assert_eq!(object["involvedObject"]["kind"], "K");
        assert_eq!(object["message"].as_str().expect("a text").len(), MESSAGE_BYTES_MAX);
    }
}
