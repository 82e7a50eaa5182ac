//! Fields of documents that have no effect here.

use super::instance::Instance;
use crate::kinds::beta::GraphSpec;
use crate::translate::Note;

/// Notes on a graph's own fields.
pub(super) fn of_graph(spec: &GraphSpec) -> Vec<Note> {
    let policy = spec.experimental.as_ref().and_then(|all| all.kv_transfer_policy.as_ref());
    let fields = [
        ("spec.topologyConstraint", spec.topology_constraint.is_some()),
        ("spec.providerOverride", spec.provider_override.is_some()),
        ("spec.experimental.kvTransferPolicy", policy.is_some()),
    ];
    notes("", &fields)
}

/// Notes on a component's fields.
pub(super) fn of_component(of: &Instance) -> Vec<Note> {
    let experiment =
        |name: &str| of.shape.experimental.as_ref().is_some_and(|all| all.0.contains_key(name));
    let fields = [
        ("topologyConstraint", of.shape.topology_constraint.is_some()),
        ("providerOverride", of.shape.provider_override.is_some()),
        ("experimental.checkpoint", experiment("checkpoint")),
        ("experimental.failover", experiment("failover")),
        ("experimental.gpuMemoryService", experiment("gpuMemoryService")),
        ("experimental.grove", experiment("grove")),
    ];
    notes(&of.component, &fields)
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
