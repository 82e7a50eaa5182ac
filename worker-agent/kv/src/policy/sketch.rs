//! Estimated counts of uses, in little memory.

use super::ghosts::hash_of;
use stator_protos::name::BlockName;

const ROWS: usize = 4;
const COUNT_MAX: u8 = 15;
/// Fewer columns would make blocks that were used once look like blocks used often.
const COLUMNS_PER_BLOCK: usize = 16;

/// Counts of uses by name, never too low, which lose half of their value from time to time.
///
/// Source: Cormode and Muthukrishnan, count-min sketch; aging as in Einziger, Friedman and Manes,
/// "TinyLFU: a highly efficient cache admission policy".
#[derive(Debug)]
pub(super) struct UseSketch {
    counts: Vec<u8>,
    columns: usize,
    uses: usize,
}

impl UseSketch {
    /// A sketch for a cache of this many blocks.
    pub(super) fn new(blocks: usize) -> Self {
        let columns = blocks.max(16).next_power_of_two() * COLUMNS_PER_BLOCK;
        Self { counts: vec![0; ROWS * columns], columns, uses: 0 }
    }

    /// Counts a use.
    pub(super) fn add(&mut self, name: BlockName) {
        for at in self.places(name) {
            self.counts[at] = (self.counts[at] + 1).min(COUNT_MAX);
        }
        self.uses += 1;
        if self.uses >= self.columns {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.uses /= 2;
        }
    }

    pub(super) fn count(&self, name: BlockName) -> u8 {
        self.places(name).map(|at| self.counts[at]).into_iter().min().unwrap_or(0)
    }

    fn places(&self, name: BlockName) -> [usize; ROWS] {
        let hash = hash_of(name);
        let step = (hash >> 32) as usize | 1;
        std::array::from_fn(|row| {
            let column = (hash as usize).wrapping_add(row.wrapping_mul(step)) & (self.columns - 1);
            row * self.columns + column
        })
    }
}
