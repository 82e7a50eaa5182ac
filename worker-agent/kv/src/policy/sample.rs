//! A small, steady share of all sequences.

use super::ghosts::hash_of;
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;

/// Questions between two halvings of all counts.
const AGE: u32 = 1024;
/// A block is common if it is in more than one of so many questions.
const COMMON: u32 = 16;

/// Chooses one of `2^shift` sequences. Those that begin alike are chosen alike, so that what one of
/// them reuses of another is seen. Blocks that many sequences share, like a system prompt, do not
/// count as a beginning: otherwise the choice would be all or nothing.
#[derive(Debug)]
pub(super) struct SequenceSample {
    shift: u32,
    /// Questions with a block, for common blocks and those right behind them.
    questions_with: FxHashMap<BlockName, u32>,
    questions: u32,
}

impl SequenceSample {
    pub(super) fn new(shift: u32) -> Self {
        Self { shift, questions_with: FxHashMap::default(), questions: 0 }
    }

    /// Whether the sequence is in the sample.
    pub(super) fn has(&mut self, names: &[BlockName]) -> bool {
        if self.shift == 0 {
            return true;
        }
        let Some(beginning) = self.beginning(names) else { return false };
        hash_of(beginning).trailing_zeros() >= self.shift
    }

    /// The first block that is not common, or the last block.
    fn beginning(&mut self, names: &[BlockName]) -> Option<BlockName> {
        self.questions += 1;
        if self.questions >= AGE {
            self.questions /= 2;
            self.questions_with.values_mut().for_each(|count| *count /= 2);
            self.questions_with.retain(|_, count| *count > 0);
        }
        let common = self.questions.max(COMMON) / COMMON;
        for name in names {
            let with = self.questions_with.entry(*name).or_default();
            *with += 1;
            if *with <= common {
                return Some(*name);
            }
        }
        names.last().copied()
    }
}
