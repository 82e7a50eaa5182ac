//! Leaves out what peers were told a moment ago: many requests share the beginning of a prompt.

use crate::gauges::GaugeKey;
use rustc_hash::FxHashSet;
use stator_protos::hash::SequenceHash;

/// Blocks remembered per half of the window; about 60 bytes each.
const REMEMBERED_MAX: usize = 1 << 19;

/// The blocks told of within a window of two turns.
///
/// A peer's prediction of a block must last longer than the window, or it would run out between
/// two tellings.
#[derive(Default)]
pub(crate) struct Recent {
    present: FxHashSet<(GaugeKey, SequenceHash)>,
    before: FxHashSet<(GaugeKey, SequenceHash)>,
}

impl Recent {
    /// The end of `sequence` that was not told in the window; it counts as told from now on.
    ///
    /// A peer that was told a block was told all blocks before it, so that a binary search finds
    /// the end. If that does not hold, because too much was told, peers learn a little more or
    /// less.
    pub(crate) fn untold<'a>(
        &mut self,
        key: GaugeKey,
        sequence: &'a [SequenceHash],
    ) -> &'a [SequenceHash] {
        let told = sequence.partition_point(|&hash| {
            self.present.contains(&(key, hash)) || self.before.contains(&(key, hash))
        });
        let untold = &sequence[told..];
        if self.present.len() + untold.len() > REMEMBERED_MAX {
            self.turn();
        }
        self.present.extend(untold.iter().map(|&hash| (key, hash)));
        untold
    }

    /// Half a window passed.
    pub(crate) fn turn(&mut self) {
        std::mem::swap(&mut self.present, &mut self.before);
        self.present.clear();
    }

    /// Somebody listens who was told of nothing.
    pub(crate) fn clear(&mut self) {
        self.present.clear();
        self.before.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolId;
    use proptest::{collection::vec, prelude::*};
    use stator_protos::{WorkerId, WorkerRank};
    use std::collections::HashSet;

    fn key(worker: u64) -> GaugeKey {
        (PoolId(0), WorkerRank { worker: WorkerId(worker), rank: 0 })
    }

    /// Blocks of conversation `number`: the first four are those of all conversations.
    fn conversation(number: u64, blocks: u64) -> Vec<SequenceHash> {
        let own = |n| if n < 4 { n } else { 1000 * (number + 1) + n };
        (0..blocks).map(|n| SequenceHash(own(n))).collect()
    }

    #[test]
    fn a_shared_beginning_is_told_once_in_a_window() {
        let mut recent = Recent::default();
        let (one, two) = (conversation(1, 6), conversation(2, 6));
        assert_eq!(recent.untold(key(1), &one), one);
        assert_eq!(recent.untold(key(1), &two), &two[4..]);
        assert_eq!(recent.untold(key(2), &two), two, "another worker was not told of");
        recent.turn();
        assert_eq!(recent.untold(key(1), &two), []);
        recent.turn();
        assert_eq!(recent.untold(key(1), &two), two, "the window has passed");
        recent.clear();
        assert_eq!(recent.untold(key(1), &two), two);
    }

    proptest! {
        /// Within one window, what is told is exactly what was sent and not told yet.
        #[test]
        fn tells_what_an_obvious_set_tells(
            sent in vec((0..2u64, 0..3u64, 0..12u64), 0..60),
        ) {
            let (mut recent, mut model) = (Recent::default(), HashSet::new());
            for (worker, number, blocks) in sent {
                let sequence = conversation(number, blocks);
                let expected: Vec<_> =
                    sequence.iter().copied().filter(|hash| model.insert((worker, *hash))).collect();
                prop_assert_eq!(recent.untold(key(worker), &sequence), expected);
            }
        }
    }
}
