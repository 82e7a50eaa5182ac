//! Who is told what endpoints say: the pool, under whose lock all of it is applied.
//!
//! Calls are short, never block for long, and come from one task per endpoint, so that what one
//! endpoint says arrives in its order. A receiver ignores workers that it does not know: they may
//! have left while something was on its way.

pub use stator_signals::events::WorkerSink;

use stator_epp_scheduler::{EngineLoad, Equipment};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};

/// Learns how busy endpoints are.
pub trait LoadSink: Send + Sync + 'static {
    /// What an engine's metrics page says now. `load.updated` is not set: the receiver has the
    /// clock. Called once for each page that has all that is needed, changed or not.
    fn load(&self, worker: WorkerRank, load: &EngineLoad);

    /// Nothing was heard of the engine for as long as its last report counts, or its agent is
    /// gone. Said once.
    fn load_unknown(&self, worker: WorkerRank);

    /// What an agent says that its worker has, before it says anything of its load. May be said
    /// again.
    fn agent_equipment(&self, worker: WorkerRank, equipment: Equipment);

    /// What an agent says of its worker, about once a second and at once after a change.
    fn agent_load(&self, worker: WorkerRank, generation: Generation, load: Load);

    /// Whether the endpoint takes new requests: not while its agent drains or cannot be reached,
    /// and, where it has no agent, not while its engine sleeps. May be said again.
    fn accepting(&self, worker: WorkerRank, accepting: bool);
}
