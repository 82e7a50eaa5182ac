//! The answer of `GET /fleet`: the workers of every model at a glance.

use serde_json::{Value, json};
use stator_placement::{Role, WorkerState};

/// A model and its workers.
pub(super) struct ModelGlance {
    /// The model's name.
    pub name: String,
    /// Prompts that wait for a worker.
    pub waiting: u64,
    /// Its workers, in order.
    pub workers: Vec<Value>,
}

/// The answer's body.
pub(super) fn fleet(models: Vec<ModelGlance>) -> Vec<u8> {
    let models = models.into_iter().map(|ModelGlance { name, waiting, workers }| {
        json!({"model": name, "waiting": waiting, "workers": workers})
    });
    json!({"models": models.collect::<Vec<_>>()}).to_string().into_bytes()
}

/// One worker, with the load that it reported last; numbers are null before its first report.
pub(super) fn worker(state: &WorkerState) -> Value {
    let (worker, load) = (&state.worker, state.load);
    let role = match state.profile.role {
        Role::Aggregated => "aggregated",
        Role::Prefill => "prefill",
        Role::Decode | Role::DecodeOnly => "decode",
        Role::Encode => "encode",
    };
    json!({
        "worker": worker.worker.to_string(),
        "role": role,
        "accepting": worker.accepting,
        "running": load.map(|load| load.running),
        "waiting": load.map(|load| load.waiting),
        "used_blocks": load.map(|load| load.used_blocks),
        "cached_blocks": load.map(|load| load.cached_blocks),
        "total_blocks": worker.total_blocks,
    })
}
