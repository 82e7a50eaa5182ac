//! The pools of this process, as peers learn of them and tell them news.

use stator_placement::PeerLoad;
use stator_placement::WorkerHoldings;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;

/// Number of a shared name: a pool of this process or of a peer, another index of prefixes, or
/// sessions, each of which is told as a prompt of one block. [`Replica::pools`] are numbered first,
/// [`crate::Peers::share`] numbers the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

/// The pools of a process, as far as replicas share them.
///
/// Calls are short and never block for long; they come under a lock of this crate and must not
/// call back into it. Pools that are not here and workers that the pool does not know are passed
/// over.
pub trait Replica: Blocks {
    /// Names of what is shared from the start, all different; they are numbered in this order, from
    /// 0 on.
    fn pools(&self) -> Vec<String>;

    /// Appends what was sent from here to each worker of a pool and has not ended. A worker that
    /// is left out has nothing. `seen` is the version that the caller has, at first 0, when nothing
    /// was in flight anywhere: where it is the present one, nothing is appended and the answer is
    /// false; otherwise it is set to the present one.
    fn own(&self, pool: PoolId, seen: &mut u64, out: &mut Vec<(WorkerRank, PeerLoad)>) -> bool;

    /// Replaces the sums of all other replicas' load in flight at these workers. Repeated now and
    /// then for workers that came since.
    fn set_others(&self, pool: PoolId, others: &[(WorkerRank, PeerLoad)]);

    /// Notes that other replicas' load changed, so that waiting requests may have room. Called
    /// without any lock of this crate; may take longer.
    fn may_have_room(&self, pool: PoolId);

    /// Another replica sent blocks of a prompt to a worker. The blocks before them were told of
    /// within the last second, or not at all.
    fn sent(&self, pool: PoolId, worker: WorkerRank, sequence: &[SequenceHash]);
}

/// Blocks of each worker: given to a starting replica, and taken by it.
pub trait Blocks: Send + Sync + 'static {
    /// The workers of a pool that report what they hold.
    fn workers(&self, pool: PoolId) -> Vec<WorkerRank>;

    /// Reported blocks of `workers`, without workers of unknown state. May take long.
    fn held(&self, pool: PoolId, workers: &[WorkerRank]) -> Vec<(WorkerRank, WorkerHoldings)>;

    /// A part of what is only predicted, at most `most` entries from position `from` on; `None`
    /// at the end. Entries may be missed or come twice where they change meanwhile.
    fn predicted(
        &self,
        pool: PoolId,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>>;

    /// A peer knows this of a worker's blocks. The pool decides whether it does not know better:
    /// it must refuse for a worker whose own event feed has told of its state. True if taken.
    fn restore(&self, pool: PoolId, worker: WorkerRank, held: WorkerHoldings) -> bool;
}
