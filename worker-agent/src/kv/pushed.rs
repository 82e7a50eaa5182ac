//! Blocks that are copied out of the engine as soon as they are computed, before their reader asks for
//! them: the reader's next question is answered from here, without the engine.

use parking_lot::Mutex;
use stator_kv::Checksum;
use stator_kv::staging::StagedSlot;
use std::collections::VecDeque;
use std::sync::Arc;

/// A block outside the engine.
#[derive(Debug)]
pub(crate) struct ExportedBlock {
    pub(crate) slot: StagedSlot,
    pub(crate) checksum: Checksum,
}

/// Copies of blocks of one prompt, which follow one another. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PushedBlocks(Arc<Mutex<Copies>>);

#[derive(Debug)]
struct Copies {
    /// Place in the prompt of the first of `blocks`.
    first: usize,
    blocks: VecDeque<ExportedBlock>,
    /// Whether nobody reads the prompt any more.
    is_closed: bool,
}

impl PushedBlocks {
    /// No copies yet; the first will be of the block at this place.
    pub(crate) fn new(first: usize) -> Self {
        let (blocks, is_closed) = Default::default();
        Self(Arc::new(Mutex::new(Copies { first, blocks, is_closed })))
    }

    /// Place of the next block to be copied.
    pub(crate) fn next(&self) -> usize {
        let copies = self.0.lock();
        copies.first.saturating_add(copies.blocks.len())
    }

    /// Adds copies of the next blocks.
    pub(crate) fn push(&self, blocks: Vec<ExportedBlock>) {
        let mut copies = self.0.lock();
        if !copies.is_closed {
            copies.blocks.extend(blocks);
        }
    }

    /// Takes copies from place `first` on, `max` at most. The reader has those before them.
    pub(crate) fn take(&self, first: usize, max: usize) -> Vec<ExportedBlock> {
        let mut copies = self.0.lock();
        // The reader comes back for blocks that it was lent: the engine has them.
        let Some(read) = first.checked_sub(copies.first) else { return Vec::new() };
        let read = read.min(copies.blocks.len());
        copies.blocks.drain(..read);
        let end = max.min(copies.blocks.len());
        copies.first = first + end;
        copies.blocks.drain(..end).collect()
    }

    /// Frees all copies, and those that are added later.
    pub(crate) fn close(&self) {
        let mut copies = self.0.lock();
        copies.is_closed = true;
        copies.blocks.clear();
    }
}
