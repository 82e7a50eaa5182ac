//! Extents of this writer, which tells others of them in index objects.

use std::collections::VecDeque;

use super::index::{IndexObject, IndexedExtent};

/// Blocks after which a writer begins another index object: about 512 KiB, so that each rewriting
/// costs no more.
const BLOCKS_MAX: usize = 16 << 10;
/// Full index objects that wait to be written; behind so many the oldest is dropped.
const FULL_MAX: usize = 16;

/// The index objects of this writer that are not in the bucket, or not as they should be.
pub(crate) struct Journal {
    writer: u128,
    number: u32,
    index: IndexObject,
    blocks: usize,
    is_dirty: bool,
    full: VecDeque<(u32, IndexObject)>,
}

impl Journal {
    /// The journal of a new writer.
    pub(crate) fn new(writer: u128) -> Self {
        let (index, full) = Default::default();
        Self { writer, number: 0, index, blocks: 0, is_dirty: false, full }
    }

    /// By which name index objects of this writer are known.
    pub(crate) fn writer(&self) -> u128 {
        self.writer
    }

    /// Notes an extent.
    pub(crate) fn record(&mut self, extent: IndexedExtent) {
        if self.blocks > 0 && self.blocks + extent.blocks.len() > BLOCKS_MAX {
            let next =
                IndexObject { cleared_unix_ms: self.index.cleared_unix_ms, extents: Vec::new() };
            let full = std::mem::replace(&mut self.index, next);
            self.full.push_back((self.number, full));
            if self.full.len() > FULL_MAX {
                self.full.pop_front();
            }
            self.number += 1;
            self.blocks = 0;
        }
        self.blocks += extent.blocks.len();
        self.index.extents.push(extent);
        self.is_dirty = true;
    }

    /// Notes that all extents which were written until then are to be forgotten.
    pub(crate) fn clear(&mut self, cleared_unix_ms: u64) {
        self.index = IndexObject { cleared_unix_ms, extents: Vec::new() };
        self.full.clear();
        self.blocks = 0;
        self.is_dirty = true;
    }

    /// Whether something is to be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty || !self.full.is_empty()
    }

    /// The next index object to write, with its number. If writing fails,
    /// [`Self::failed`] must be called.
    pub(crate) fn next(&mut self) -> Option<(u32, IndexObject)> {
        if let Some(full) = self.full.pop_front() {
            return Some(full);
        }
        std::mem::take(&mut self.is_dirty).then(|| (self.number, self.index.clone()))
    }

    /// An index object could not be written.
    pub(crate) fn failed(&mut self, number: u32, index: IndexObject) {
        if number == self.number {
            self.is_dirty = true;
        } else if self.full.len() < FULL_MAX {
            self.full.push_front((number, index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Block;
    use crate::object::extent::ExtentId;
    use stator_protos::name::BlockName;

    fn extent(number: u16) -> IndexedExtent {
        let block = Block {
            name: BlockName(number.into()),
            hash: None,
            parent: None,
            depth: 0,
            tenant: crate::TenantKey::default(),
        };
        let mut id = [0; 32];
        id[..2].copy_from_slice(&number.to_le_bytes());
        IndexedExtent { id: ExtentId(id), written_unix_ms: 1, blocks: vec![block; 1000] }
    }

    #[test]
    fn every_extent_is_in_an_index_object_of_bounded_size() {
        let mut journal = Journal::new(0);
        assert!(!journal.is_dirty() && journal.next().is_none());
        (0..40).for_each(|number| journal.record(extent(number)));
        let (number, index) = journal.next().unwrap();
        journal.failed(number, index);
        let mut told = Vec::new();
        while let Some((number, index)) = journal.next() {
            assert_eq!(number as usize, told.len() / 16);
            assert!(index.extents.len() <= 16);
            told.extend(index.extents);
        }
        assert_eq!(told, (0..40).map(extent).collect::<Vec<_>>());
        assert!(!journal.is_dirty());
        journal.record(extent(40));
        let (number, index) = journal.next().unwrap();
        assert_eq!((number, index.extents.len()), (2, 9), "the last one is written again");
        journal.failed(number, index);
        assert!(journal.is_dirty());
    }

    #[test]
    fn what_is_cleared_is_told_no_more() {
        let mut journal = Journal::new(0);
        (0..40).for_each(|number| journal.record(extent(number)));
        journal.clear(9);
        let (_, index) = journal.next().unwrap();
        assert_eq!(index, IndexObject { cleared_unix_ms: 9, extents: Vec::new() });
        assert!(journal.next().is_none());
    }
}
