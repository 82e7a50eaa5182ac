//! Copies of blocks between memory of different layouts: which runs of bytes go where.
//!
//! A [`CopyPlan`] is pure arithmetic. A [`PlanExecutor`] carries it out: with plain copies here, by other
//! means where the memory is elsewhere.

mod host;

pub use host::{CopyIn, CopyOut};

/// Positions of blocks in a region of memory.
///
/// A block is one or several pieces of one size. The same byte of a block's KV stands at the same
/// distance from the block's start in every layout, pieces put one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Offset of the first piece of block 0.
    pub start: u64,
    /// Bytes from a piece of a block to that piece of the next block.
    pub block_stride: u64,
    /// Pieces of a block.
    pub pieces: u32,
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// Bytes from one piece of a block to its next piece.
    pub piece_stride: u64,
}

impl RegionLayout {
    /// Blocks in one piece, `stride` bytes from each other: an arena, and the built-in engine.
    pub fn contiguous(block_bytes: u64, stride: u64) -> Self {
        Self {
            start: 0,
            block_stride: stride,
            pieces: 1,
            piece_bytes: block_bytes,
            piece_stride: block_bytes,
        }
    }

    /// A page of every block for each layer, layer after layer, as engines allocate `blocks` blocks
    /// (vLLM's `LBHNC`). Where keys and values are apart, each of them counts as a layer.
    pub fn layer_first(layers: u32, blocks: u32, page_bytes: u64) -> Self {
        Self {
            start: 0,
            block_stride: page_bytes,
            pieces: layers,
            piece_bytes: page_bytes,
            piece_stride: u64::from(blocks) * page_bytes,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.pieces) * self.piece_bytes
    }

    fn offset(&self, block: u32, segment: u64) -> u64 {
        self.start + u64::from(block) * self.block_stride + segment
    }

    /// Offset of a byte of a block from the block's first byte.
    fn within(&self, at: u64) -> u64 {
        at / self.piece_bytes * self.piece_stride + at % self.piece_bytes
    }
}

/// A block to copy, from one region to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block's number in the region that is read.
    pub from: u32,
    /// The block's number in the region that is written.
    pub to: u32,
}

/// Bytes that are together on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// Offset in the region that is read.
    pub from: u64,
    /// Offset in the region that is written.
    pub to: u64,
    /// Length.
    pub bytes: u64,
}

/// Runs to copy from one region to another, as few as there can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyPlan {
    runs: Vec<CopyRun>,
}

impl CopyPlan {
    /// The runs that copy blocks. No block is written twice.
    ///
    /// # Panics
    ///
    /// Blocks of the two layouts have not the same size, or have none.
    pub fn new(copies: &[BlockCopy], from: &RegionLayout, to: &RegionLayout) -> Self {
        let bytes = from.block_bytes();
        assert!(bytes > 0 && bytes == to.block_bytes(), "blocks of {from:?} and {to:?}");
        let segments = segments(from, to);
        // In the order of the memory that is read, so that neighbours follow each other.
        let mut copies = copies.to_vec();
        copies.sort_unstable_by_key(|copy| copy.from);
        let mut plan = Self { runs: Vec::with_capacity(copies.len() * segments.len()) };
        let mut add = |copy: &BlockCopy, segment: &CopyRun| {
            let (from, to) = (from.offset(copy.from, segment.from), to.offset(copy.to, segment.to));
            plan.push(CopyRun { from, to, bytes: segment.bytes });
        };
        if from.piece_stride > from.block_stride {
            segments.iter().for_each(|segment| copies.iter().for_each(|copy| add(copy, segment)));
        } else {
            copies.iter().for_each(|copy| segments.iter().for_each(|segment| add(copy, segment)));
        }
        plan
    }

    /// The runs, in the order of the region that is read.
    pub fn runs(&self) -> &[CopyRun] {
        &self.runs
    }

    /// Bytes of all runs.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    fn push(&mut self, run: CopyRun) {
        match self.runs.last_mut() {
            Some(last) if last.from + last.bytes == run.from && last.to + last.bytes == run.to => {
                last.bytes += run.bytes;
            }
            _ => self.runs.push(run),
        }
    }
}

/// Copies as a plan says.
pub trait PlanExecutor {
    /// Copies all runs of a plan.
    ///
    /// # Panics
    ///
    /// A run is not within the two regions.
    fn run(&mut self, plan: &CopyPlan);
}

/// The parts of a block that are together in both layouts, as offsets from the block's first byte.
fn segments(from: &RegionLayout, to: &RegionLayout) -> Vec<CopyRun> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < from.block_bytes() {
        // Up to the next end of a piece on either side.
        let left = |layout: &RegionLayout| layout.piece_bytes - at % layout.piece_bytes;
        let bytes = left(from).min(left(to));
        segments.push(CopyRun { from: from.within(at), to: to.within(at), bytes });
        at += bytes;
    }
    segments
}

#[cfg(test)]
mod tests;
