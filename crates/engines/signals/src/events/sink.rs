//! Receivers of engines' blocks.

use stator_events::KvSink;
use stator_protos::{Generation, WorkerRank};

/// Learns which KV blocks workers hold; a [`KvSink`] that also hears of lives.
///
/// Blocks are named by our own sequence hashes, whoever reports them, and the stored events of
/// engines carry no tokens. Calls are short, never block for long, and come from one task per
/// worker, so that each engine's events arrive in order.
pub trait WorkerSink: KvSink {
    /// Announces a new life of a worker, without blocks; events follow from here on. Before the
    /// first life nothing is reported, and a worker's blocks can only be predicted. A life may be
    /// announced twice; a later one has a larger number.
    fn life(&self, worker: WorkerRank, generation: Generation);
}
