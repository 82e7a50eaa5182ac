//! Sizes, for metrics.

use crate::index::Index;
use std::sync::atomic::Ordering::Relaxed;

/// Sizes of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Distinct blocks, reported or predicted.
    pub blocks: usize,
    /// Reported entries: a block counts once for each worker that holds it.
    pub held: usize,
    /// Predicted entries: a block counts once for each worker that should hold it.
    pub predicted: usize,
    /// Entries dropped so far for want of memory.
    pub dropped: u64,
    /// Distinct sets of holders.
    pub sets: usize,
    /// Bytes of the tables of blocks and of the sets.
    pub bytes: usize,
    /// Former states of workers that [`Index::maintain`] has yet to take out of the tables.
    pub sweeping: usize,
}

impl Index {
    /// Sizes, for metrics: takes each lane's lock in turn.
    pub fn stats(&self) -> IndexStats {
        let predicted = self.predictions.lock().blocks();
        let (slots, sweeping): (Vec<u32>, usize) = {
            let tenancy = self.tenancy.read();
            (tenancy.lives().map(|life| life.slot).collect(), tenancy.retired().len())
        };
        let (sets, set_bytes) = self.shared.sets.size();
        let table_bytes = self.shared.table_bytes.load(Relaxed);
        let mut stats = IndexStats {
            predicted,
            sets,
            bytes: set_bytes + table_bytes,
            sweeping,
            ..IndexStats::default()
        };
        for lane in &self.lanes {
            let lane = lane.lock();
            stats.blocks += lane.blocks();
            stats.held += slots.iter().map(|&slot| lane.held(slot)).sum::<usize>();
            stats.dropped += lane.dropped();
        }
        stats
    }
}
