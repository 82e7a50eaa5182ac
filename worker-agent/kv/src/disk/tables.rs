//! Pages of segments' tables that are to be written, and the blocks that wait for them.
//!
//! A page is written as a whole, from what the log knows, and by one write at a time. Blocks whose
//! payload ends meanwhile share the next write.

use super::format::Place;
use crate::tier::TierWrite;
use rustc_hash::FxHashMap;

/// A page of a segment's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TablePage {
    pub(super) segment: u32,
    pub(super) page: u32,
}

/// A block whose payload is on disk, and whose descriptor is not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrittenPayload {
    pub(super) place: Place,
    pub(super) write: TierWrite,
}

#[derive(Debug, Default)]
struct PageState {
    is_dirty: bool,
    is_writing: bool,
    /// Blocks for the next write.
    waiting: Vec<WrittenPayload>,
    /// Blocks of the write under way.
    riding: Vec<WrittenPayload>,
}

/// Pages that are being written, or have to be.
#[derive(Debug, Default)]
pub(super) struct TableWrites {
    pages: FxHashMap<TablePage, PageState>,
}

impl TableWrites {
    /// The descriptor of a block is to be written.
    pub(super) fn add(&mut self, payload: WrittenPayload) {
        self.dirty(payload.place).waiting.push(payload);
    }

    /// The descriptor at a place is to be erased.
    pub(super) fn erase(&mut self, place: Place) {
        self.dirty(place);
    }

    /// A page whose writing begins now, none of the segment that is to stay as it is.
    pub(super) fn next(&mut self, except: Option<u32>) -> Option<TablePage> {
        let ready = |(at, state): &(&TablePage, &mut PageState)| {
            state.is_dirty && !state.is_writing && Some(at.segment) != except
        };
        let (at, state) = self.pages.iter_mut().find(ready)?;
        state.is_dirty = false;
        state.is_writing = true;
        state.riding = std::mem::take(&mut state.waiting);
        Some(*at)
    }

    /// The writing of a page has ended, with these blocks.
    pub(super) fn ended(&mut self, at: TablePage) -> Vec<WrittenPayload> {
        let Some(state) = self.pages.get_mut(&at) else { return Vec::new() };
        state.is_writing = false;
        let riding = std::mem::take(&mut state.riding);
        if !state.is_dirty {
            self.pages.remove(&at);
        }
        riding
    }

    /// Whether a page of the segment is being written.
    pub(super) fn is_writing(&self, segment: u32) -> bool {
        self.pages.iter().any(|(at, state)| at.segment == segment && state.is_writing)
    }

    fn dirty(&mut self, place: Place) -> &mut PageState {
        let at = TablePage { segment: place.segment, page: place.page() };
        let state = self.pages.entry(at).or_default();
        state.is_dirty = true;
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Checksum, SlotId};
    use stator_protos::name::BlockName;

    fn payload(slot: u32) -> WrittenPayload {
        let block = Block {
            name: BlockName(slot.into()),
            hash: None,
            parent: None,
            depth: 0,
            tenant: crate::TenantKey::default(),
        };
        let write = TierWrite { block, slot: SlotId(0), checksum: Checksum(0) };
        WrittenPayload { place: Place { segment: 1, slot }, write }
    }

    #[test]
    fn blocks_that_end_during_a_write_share_the_next() {
        let at = TablePage { segment: 1, page: 0 };
        let mut tables = TableWrites::default();
        tables.add(payload(0));
        assert_eq!(tables.next(None), Some(at));
        tables.add(payload(1));
        tables.add(payload(2));
        assert_eq!(tables.next(None), None);
        assert_eq!(tables.ended(at), [payload(0)]);
        assert_eq!(tables.next(None), Some(at));
        assert_eq!(tables.ended(at), [payload(1), payload(2)]);
        assert_eq!(tables.next(None), None);
    }

    #[test]
    fn a_segment_that_is_to_stay_waits() {
        let mut tables = TableWrites::default();
        tables.erase(Place { segment: 3, slot: 32 });
        assert_eq!(tables.next(Some(3)), None);
        assert!(!tables.is_writing(3));
        assert_eq!(tables.next(None), Some(TablePage { segment: 3, page: 1 }));
        assert!(tables.is_writing(3));
    }
}
