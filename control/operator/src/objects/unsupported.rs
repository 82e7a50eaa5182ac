//! Fields of documents that have no effect here.

use super::instance::Instance;
use super::nearness;
use crate::convert::{FormVersion, convert};
use crate::kinds::beta::GraphSpec;
use crate::translate::Note;
use serde_json::Value;

/// Fields that only services of `v1alpha1` have. A document of `v1beta1` keeps them in an annotation.
const OLDER: [&str; 3] = ["autoscaling", "dynamoNamespace", "serviceName"];

/// Notes on a graph's own fields.
pub(super) fn of_graph(spec: &GraphSpec) -> Vec<Note> {
    let policy = spec.experimental.as_ref().and_then(|all| all.kv_transfer_policy.as_ref());
    let fields = [
        ("spec.topologyConstraint", spec.topology_constraint.is_some()),
        ("spec.providerOverride", spec.provider_override.is_some()),
        (
            "spec.experimental.kvTransferPolicy.preferredWeight",
            policy.is_some_and(|policy| policy.preferred_weight.is_some()),
        ),
    ];
    let mut notes = notes("", &fields);
    let fault = policy.and_then(|policy| nearness::annotation(policy).err());
    notes.extend(fault.map(|message| Note {
        component: String::new(),
        container: String::new(),
        subject: "spec.experimental.kvTransferPolicy".to_owned(),
        message,
    }));
    notes
}

/// Notes on a component's fields.
pub(super) fn of_component(of: &Instance) -> Vec<Note> {
    let experiment =
        |name: &str| of.shape.experimental.as_ref().is_some_and(|all| all.0.contains_key(name));
    let nodes = of.shape.multinode.as_ref();
    let fields = [
        ("topologyConstraint", of.shape.topology_constraint.is_some()),
        ("providerOverride", of.shape.provider_override.is_some()),
        ("multinode.leader", nodes.is_some_and(|nodes| nodes.leader.is_some())),
        ("multinode.worker", nodes.is_some_and(|nodes| nodes.worker.is_some())),
        ("experimental.checkpoint", experiment("checkpoint")),
        ("experimental.failover", experiment("failover")),
        ("experimental.gpuMemoryService", experiment("gpuMemoryService")),
        ("experimental.grove", experiment("grove")),
    ];
    notes(&of.component, &fields)
}

/// Notes on the fields of a service of `v1alpha1`.
pub(super) fn of_service(name: &str, service: &Value) -> Vec<Note> {
    notes(name, &OLDER.map(|field| (field, !service[field].is_null())))
}

/// Notes on the fields of a component by itself that it keeps from `v1alpha1`.
pub(crate) fn of_older_form(component: &Value) -> Vec<Note> {
    let service = &convert(component, FormVersion::Alpha)["spec"];
    let name = component["metadata"]["name"].as_str().unwrap_or_default();
    let mut notes = of_service(name, service);
    notes.extend(self::notes(name, &[("ingress", !service["ingress"].is_null())]));
    notes
}

fn notes(component: &str, fields: &[(&str, bool)]) -> Vec<Note> {
    let given = fields.iter().filter(|(_, is_given)| *is_given);
    given
        .map(|(field, _)| Note {
            component: component.to_owned(),
            container: String::new(),
            subject: (*field).to_owned(),
            message: "has no effect".to_owned(),
        })
        .collect()
}
