//! The receiver of what feeds tell of workers.

use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::{Generation, WorkerRank};

/// Learns which KV blocks workers hold. Block hashes are sequence hashes of ours.
///
/// Calls are short and never block for long; what one worker did is told in its order.
pub trait KvSink: Send + Sync + 'static {
    /// These events happened, one after the other.
    fn apply(&self, worker: WorkerRank, generation: Generation, events: &[KvEvent]);

    /// These are all blocks that the worker holds; one that is named twice is there twice. What
    /// it holds is known from here on.
    fn replace(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: Vec<(SequenceHash, Medium)>,
    );

    /// The worker's blocks are unknown until they are replaced.
    fn unknown(&self, worker: WorkerRank);
}
