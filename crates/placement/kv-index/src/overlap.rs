//! Leading blocks of a request that each worker holds.

use stator_protos::WorkerRank;
use stator_protos::kv_event::Medium;
use std::fmt;

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

/// Overlaps of one request with every worker that holds its first block. Keep one and pass it
/// again: its memory is reused.
#[derive(Default)]
pub struct Overlaps {
    pub(crate) found: Vec<Found>,
    pub(crate) scratch: crate::lookup::Scratch,
}

/// A worker and what it holds.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) worker: WorkerRank,
    pub(crate) overlap: Overlap,
    /// Blocks up to the deepest that it holds.
    pub(crate) depth: u32,
    /// Its element of the first set in which it was found.
    pub(crate) element: u32,
}

impl Overlaps {
    /// The workers that hold at least one block, in no order, each once.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerRank, Overlap)> {
        self.found.iter().map(|found| (found.worker, found.overlap))
    }

    /// The overlap of one worker, all zero if it holds nothing. Takes a look at each in turn.
    pub fn of(&self, worker: WorkerRank) -> Overlap {
        self.iter().find(|(found, _)| *found == worker).map_or_else(Overlap::default, |(_, o)| o)
    }
}

impl fmt::Debug for Overlaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl FromIterator<(WorkerRank, Overlap)> for Overlaps {
    fn from_iter<I: IntoIterator<Item = (WorkerRank, Overlap)>>(overlaps: I) -> Self {
        let found = |(worker, overlap): (_, Overlap)| Found {
            worker,
            overlap,
            depth: overlap.blocks(),
            element: 0,
        };
        Self { found: overlaps.into_iter().map(found).collect(), ..Self::default() }
    }
}
