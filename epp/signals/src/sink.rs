//! Receivers of endpoints' reports: the pool, which applies all of them under its lock.
//!
//! Calls are short, never block for long, and come from one task per endpoint, so that reports of
//! one endpoint arrive in order. A receiver ignores workers that it does not know: they may have
//! left while a report was on its way.

pub use stator_signals::events::WorkerSink;

use stator_epp_scheduler::{EngineLoad, Equipment};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};

/// Receives the load of endpoints.
pub trait LoadSink: Send + Sync + 'static {
    /// Load on an engine's metrics page. `load.updated` is not set: the receiver has the clock.
    /// Called once for each page that has all that is needed, changed or not.
    fn load(&self, worker: WorkerRank, load: &EngineLoad);

    /// The engine was silent for as long as its last report counts, or its agent is gone. Called
    /// once.
    fn load_unknown(&self, worker: WorkerRank);

    /// Equipment of an agent's worker, before any load of it. May be repeated.
    fn agent_equipment(&self, worker: WorkerRank, equipment: Equipment);

    /// Load of an agent's worker, about once a second and at once after a change.
    fn agent_load(&self, worker: WorkerRank, generation: Generation, load: Load);

    /// Whether the endpoint takes new requests: not while its agent drains or cannot be reached,
    /// and, where it has no agent, not while its engine sleeps. May be said again.
    fn accepting(&self, worker: WorkerRank, accepting: bool);
}
