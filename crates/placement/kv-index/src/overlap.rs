//! Leading blocks of a request that each worker holds.

use stator_protos::WorkerRank;
use stator_protos::kv_event::Medium;

/// Leading blocks of a request that a worker holds, by the nearest medium that has each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    by_medium: [u32; Medium::ALL.len()],
}

impl Overlap {
    /// An overlap of so many blocks on each medium, nearest first.
    pub fn new(by_medium: [u32; Medium::ALL.len()]) -> Self {
        Self { by_medium }
    }

    /// Blocks whose nearest copy is on `medium`.
    #[inline]
    pub fn on(&self, medium: Medium) -> u32 {
        self.by_medium[medium as usize]
    }

    /// Blocks on any medium: as many of the request as stand without a gap from its start.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.by_medium.iter().sum()
    }

    /// An overlap of `blocks` blocks on one medium.
    #[inline]
    pub(crate) fn of(medium: Medium, blocks: u32) -> Self {
        let on = |other| if other == medium { blocks } else { 0 };
        Self { by_medium: Medium::ALL.map(on) }
    }

    /// Counts more blocks.
    #[inline]
    pub(crate) fn count(&mut self, medium: Medium, blocks: u32) {
        self.by_medium[medium as usize] += blocks;
    }

    /// The farthest medium that has any of the blocks.
    pub(crate) fn farthest(&self) -> Medium {
        let far = Medium::ALL.into_iter().rev().find(|&medium| self.on(medium) > 0);
        far.unwrap_or_default()
    }
}

/// A worker and what it holds.
#[derive(Clone, Copy)]
pub(crate) struct WorkerOverlap {
    pub(crate) worker: WorkerRank,
    pub(crate) overlap: Overlap,
    /// Blocks up to the deepest that it holds.
    pub(crate) depth: u32,
    /// Its element of the first set in which it was found.
    pub(crate) element: u32,
}
