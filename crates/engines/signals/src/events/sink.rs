//! Who is told what engines hold.

use stator_fleet::KvSink;
use stator_protos::{Generation, WorkerRank};

/// Learns which KV blocks workers hold; a [`KvSink`] that is told of lives too.
///
/// Blocks are named by our own sequence hashes, whoever reports them, and the stored events of
/// engines carry no tokens. Calls are short, never block for long, and come from one task per
/// worker, so that what one engine says arrives in its order.
pub trait WorkerSink: KvSink {
    /// A life of a worker begins, with no blocks, and its events are followed from here on; before
    /// the first life nothing is reported, and what a worker holds can only be predicted. The same
    /// life may be announced again; a later one has a larger number.
    fn life(&self, worker: WorkerRank, generation: Generation);
}
