//! Outbox between the request path and the peers.

use crate::PoolId;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Blocks of one prompt that peers are told of: what is longer is cut. 131,072 tokens at 16 tokens
/// a block.
pub const SEQUENCE_MAX: usize = 8192;

/// Prompts that wait for the next round.
const ITEMS_MAX: usize = 16_384;

/// Their blocks together, 2 MiB.
const HASHES_MAX: usize = 1 << 18;

/// The outbox in which the request path leaves the prompts that it sent. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Outbox(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Whether anybody listens. A replica without peers pays nothing.
    listened: AtomicBool,
    /// Set when there is something to tell.
    stirred: Notify,
    letters: Mutex<Letters>,
    dropped: Counter,
}

/// Prompts that were sent, one after the other in memory that is used again.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    items: Vec<Item>,
    hashes: Vec<SequenceHash>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    pool: PoolId,
    worker: WorkerRank,
    /// End of its hashes.
    end: usize,
}

impl Outbox {
    /// An outbox that counts in `dropped` what it has no room for.
    pub(crate) fn new(dropped: Counter) -> Self {
        Self(Arc::new(Inner { dropped, ..Inner::default() }))
    }

    /// A request with this prompt was sent to a worker, which the next [`Outbox::stir`] tells. Never
    /// waits: copies at most [`SEQUENCE_MAX`] hashes into memory that is there, and drops them where
    /// it is full.
    pub fn sent(&self, pool: PoolId, worker: WorkerRank, sequence: &[SequenceHash]) {
        if sequence.is_empty() || !self.0.listened.load(Ordering::Relaxed) {
            return;
        }
        let sequence = &sequence[..sequence.len().min(SEQUENCE_MAX)];
        let mut letters = self.0.letters.lock();
        let end = letters.hashes.len() + sequence.len();
        if letters.items.len() == ITEMS_MAX || end > HASHES_MAX {
            drop(letters);
            self.0.dropped.inc();
            return;
        }
        letters.hashes.extend_from_slice(sequence);
        letters.items.push(Item { pool, worker, end });
    }

    /// Notes that the load in flight changed: the next message tells peers, of prompts too.
    pub fn stir(&self) {
        if self.0.listened.load(Ordering::Relaxed) {
            self.0.stirred.notify_one();
        }
    }

    /// Waits until there is something to tell, since it last returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn stirred(&self) {
        self.0.stirred.notified().await;
    }

    /// Whether anybody listens from now on.
    pub(crate) fn set_listened(&self, listened: bool) {
        self.0.listened.store(listened, Ordering::Relaxed);
    }

    /// Leaves in `out` what was sent since the last time; what was there is forgotten.
    pub(crate) fn take(&self, out: &mut Letters) {
        out.items.clear();
        out.hashes.clear();
        std::mem::swap(out, &mut self.0.letters.lock());
    }
}

impl Letters {
    /// The prompts, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, WorkerRank, &[SequenceHash])> {
        let mut start = 0;
        self.items.iter().map(move |item| {
            let hashes = &self.hashes[start..item.end];
            start = item.end;
            (item.pool, item.worker, hashes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: 0 };

    fn sequence(from: u64, blocks: u64) -> Vec<SequenceHash> {
        (from..from + blocks).map(SequenceHash).collect()
    }

    fn taken(outbox: &Outbox) -> Vec<Vec<SequenceHash>> {
        let mut letters = Letters::default();
        outbox.take(&mut letters);
        letters.iter().map(|(_, _, hashes)| hashes.to_vec()).collect()
    }

    #[test]
    fn what_was_sent_comes_out_once_and_in_order() {
        let outbox = Outbox::default();
        outbox.set_listened(true);
        outbox.sent(PoolId(0), WORKER, &sequence(1, 3));
        outbox.sent(PoolId(0), WORKER, &[]);
        outbox.sent(PoolId(0), WORKER, &sequence(9, 1));
        assert_eq!(taken(&outbox), [sequence(1, 3), sequence(9, 1)]);
        assert_eq!(taken(&outbox), Vec::<Vec<_>>::new());
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let outbox = Outbox::default();
        outbox.sent(PoolId(0), WORKER, &sequence(1, 3));
        assert_eq!(taken(&outbox).len(), 0);
    }

    #[test]
    fn what_has_no_room_is_dropped_and_counted() {
        let dropped = Counter::default();
        let outbox = Outbox::new(dropped.clone());
        outbox.set_listened(true);
        let long = sequence(1, SEQUENCE_MAX as u64 + 5);
        let fits = HASHES_MAX / SEQUENCE_MAX;
        for _ in 0..fits + 3 {
            outbox.sent(PoolId(0), WORKER, &long);
        }
        assert_eq!(dropped.get(), 3);
        let taken = taken(&outbox);
        assert_eq!(taken.len(), fits);
        assert_eq!(taken[0], long[..SEQUENCE_MAX], "a long prompt is cut");
        for _ in 0..ITEMS_MAX + 2 {
            outbox.sent(PoolId(0), WORKER, &long[..1]);
        }
        assert_eq!(dropped.get(), 5);
    }
}
