//! Places of blocks on disk: segments in the order of their use, and the slots of each.
//!
//! Blocks are appended to the active segment. When the segment is full, the tier adds a segment, or
//! recycles the oldest: its blocks go, except for the hot ones, which stay in their slots. So a hot
//! block is young again without being copied, and the disk is written once for every block. The log
//! does no I/O and reads no clock.

use super::format::{Descriptor, Geometry, PAGE_SLOTS, Place};
use super::quota::TenantBlocks;
use crate::cipher::CipherTag;
use crate::{Block, Checksum};
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::collections::VecDeque;
use std::ops::Range;

/// Share of a recycled segment's slots that hot blocks may keep: one in four. More would leave the
/// newcomers little room in a segment that is read a lot.
const HOT_SHARE: usize = 4;

/// A block on disk and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogEntry {
    pub(super) block: Block,
    pub(super) checksum: Checksum,
    /// The tag of its payload where that is encrypted, else zeros.
    pub(super) seal: CipherTag,
}

/// The log's answer to a block that wants to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The block is on disk.
    Held,
    /// The block is being written.
    Coming,
    /// The slot is the block's from now on.
    At(Place),
    /// The block's tenant has as many blocks as it may have: the slot of its oldest is the block's
    /// from now on, and these are gone.
    Instead(Place, Vec<BlockName>),
    /// The block's tenant has as many blocks as it may have, and all are being read or written.
    OverQuota,
    /// No slot is free: a segment has to be added or recycled first.
    NoSegment,
}

/// The log's answer to the wish to use the oldest segment again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recycling {
    /// There is no segment.
    NoSegment,
    /// Blocks are still being written in it. They end by themselves.
    NotYet,
    /// The segment is to be opened again, without these blocks.
    Begun { segment: u32, gone: Vec<BlockName> },
}

/// The log's answer to the wish to do with a segment less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Retirement {
    /// No segment can go: there is none, or the last is being filled.
    NoSegment,
    /// The oldest segment is being read or written. That ends by itself.
    NotYet,
    /// The segment is out of use, and with it these blocks.
    Done { segment: u32, gone: Vec<BlockName> },
}

/// Progress of writing a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The payload is being written.
    Payload,
    /// The payload is on disk, the descriptor is not.
    Descriptor,
    /// The block can be read.
    Held,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    entry: Option<(LogEntry, Stage)>,
    /// Reads and writes of the slot under way. A slot is not given away before they end, also where
    /// its block has gone.
    pins: u32,
    /// Reads since the block was written or kept.
    reads: u8,
}

#[derive(Clone, Debug)]
struct Segment {
    epoch: u64,
    slots: Vec<Slot>,
}

/// The segments and what is in them.
#[derive(Debug)]
pub(super) struct Log {
    geometry: Geometry,
    segments: Vec<Segment>,
    index: FxHashMap<BlockName, Place>,
    tenants: TenantBlocks,
    /// Segments that are full, the oldest first.
    order: VecDeque<u32>,
    /// Segments that are out of use, without blocks.
    retired: Vec<u32>,
    /// The segment that is being filled, and its first slot not looked at.
    active: Option<Place>,
    next_epoch: u64,
}

impl Log {
    /// An empty log, with a quota of blocks for each tenant where there is one.
    pub(super) fn new(geometry: Geometry, quota: Option<usize>) -> Self {
        Self {
            geometry,
            tenants: TenantBlocks::new(quota),
            segments: Vec::new(),
            index: FxHashMap::default(),
            order: VecDeque::new(),
            retired: Vec::new(),
            active: None,
            next_epoch: 1,
        }
    }

    /// The log of what a scan found: the descriptors of each segment by slot. Descriptors before
    /// `first_epoch` are of a cleared tier, those before the last epoch of their segment of an
    /// earlier use.
    pub(super) fn restore(
        geometry: Geometry,
        first_epoch: u64,
        quota: Option<usize>,
        tables: &[Vec<(u32, Descriptor)>],
    ) -> Self {
        let mut log = Self::new(geometry, quota);
        let last_epoch = |table: &Vec<(u32, Descriptor)>| {
            table.iter().map(|(_, descriptor)| descriptor.epoch).max().unwrap_or(0)
        };
        let mut ages: Vec<(u64, u32)> =
            (0..).zip(tables).map(|(at, t)| (last_epoch(t), at)).collect();
        log.next_epoch =
            first_epoch.max(ages.iter().map(|age| age.0).max().unwrap_or(0).saturating_add(1));
        log.segments = vec![Segment { epoch: 0, slots: log.empty_slots() }; tables.len()];
        ages.sort_unstable();
        // From the oldest to the newest, so that the latest of a name's descriptors counts.
        for (epoch, segment) in ages {
            log.segments[segment as usize].epoch = epoch;
            log.order.push_back(segment);
            let current = |(_, descriptor): &&(u32, Descriptor)| {
                descriptor.epoch == epoch && epoch >= first_epoch
            };
            for (slot, descriptor) in tables[segment as usize].iter().filter(current) {
                let Descriptor { block, checksum, seal, .. } = *descriptor;
                let place = Place { segment, slot: *slot };
                if let Some(older) = log.index.get(&block.name).copied() {
                    log.forget(older);
                }
                log.enter(place, LogEntry { block, checksum, seal }, Stage::Held);
            }
        }
        // What is free in the newest segment is filled first, unless its blocks would not count.
        let newest = log.order.pop_back_if(|at| log.segments[*at as usize].epoch >= first_epoch);
        log.active = newest.map(|segment| Place { segment, slot: 0 });
        log
    }

    /// Segments, full ones and others.
    pub(super) fn segments(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Segments that are in use, full ones and others.
    pub(super) fn in_use(&self) -> u32 {
        self.segments() - self.retired.len() as u32
    }

    /// The segment that [`Log::add_segment`] adds next: a new one, or one that was out of use.
    pub(super) fn next_segment(&self) -> u32 {
        self.retired.last().copied().unwrap_or(self.segments())
    }

    /// The epoch of a segment.
    pub(super) fn epoch(&self, segment: u32) -> u64 {
        self.segments[segment as usize].epoch
    }

    /// The epoch of the next segment that is opened.
    pub(super) fn next_epoch(&self) -> u64 {
        self.next_epoch
    }

    /// All blocks that can be read.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        let slots = self.segments.iter().flat_map(|segment| &segment.slots);
        slots.filter_map(|slot| match slot.entry {
            Some((entry, Stage::Held)) => Some(entry.block),
            _ => None,
        })
    }

    /// The descriptors that belong into a page of a segment's table, with their slots.
    pub(super) fn page(&self, segment: u32, page: u32) -> Vec<(u32, Descriptor)> {
        let first = page * PAGE_SLOTS;
        let slots: Range<u32> = first..self.geometry.segment_slots.min(first + PAGE_SLOTS);
        let Segment { epoch, .. } = self.segments[segment as usize];
        let length = self.geometry.block_bytes as u32;
        let on_disk = |slot| match self.slot(Place { segment, slot }).entry {
            Some((LogEntry { block, checksum, seal }, Stage::Descriptor | Stage::Held)) => {
                Some((slot, Descriptor { block, checksum, epoch, length, seal }))
            }
            _ => None,
        };
        slots.filter_map(on_disk).collect()
    }

    /// Finds a slot for a block. The block's writing has begun: it ends in `abandon` or, by way of
    /// `payload_written`, in `commit`.
    pub(super) fn claim(&mut self, block: Block, checksum: Checksum) -> Claim {
        if let Some(place) = self.index.get(&block.name) {
            let held = matches!(self.slot(*place).entry, Some((_, Stage::Held)));
            return if held { Claim::Held } else { Claim::Coming };
        }
        if self.tenants.is_full(block.tenant) {
            return self.claim_instead(block, checksum);
        }
        let Some(active) = self.active else { return Claim::NoSegment };
        let free = |slot: &Slot| slot.entry.is_none() && slot.pins == 0;
        let slots = &self.segments[active.segment as usize].slots;
        let Some(skipped) = slots[active.slot as usize..].iter().position(free) else {
            self.order.push_back(active.segment);
            self.active = None;
            return Claim::NoSegment;
        };
        let place = Place { slot: active.slot + skipped as u32, ..active };
        self.active = Some(Place { slot: place.slot + 1, ..place });
        self.begin_write(place, block, checksum);
        Claim::At(place)
    }

    /// Has a tenant that has all its blocks give up its oldest ones, so that the others stay. The
    /// new block takes the place of the last of them: no room is taken from other tenants.
    fn claim_instead(&mut self, block: Block, checksum: Checksum) -> Claim {
        let mut gone = Vec::new();
        let mut freed = None;
        while self.tenants.is_full(block.tenant) {
            let is_free = |of: &(BlockName, Place)| {
                let slot = self.slot(of.1);
                let is_held = matches!(slot.entry, Some((_, Stage::Held))) && slot.pins == 0;
                is_held && self.index.get(&of.0) == Some(&of.1)
            };
            let Some(place) = self.tenants.oldest(block.tenant, is_free) else { break };
            gone.extend(self.forget(place));
            freed = Some(place);
        }
        let Some(place) = freed else { return Claim::OverQuota };
        self.begin_write(place, block, checksum);
        Claim::Instead(place, gone)
    }

    /// Changes the quota of blocks for each tenant. Tenants beyond it give blocks up when they
    /// write others.
    pub(super) fn set_quota(&mut self, quota: Option<usize>) {
        quota.into_iter().for_each(|blocks| self.tenants.set_quota(blocks));
    }

    fn begin_write(&mut self, place: Place, block: Block, checksum: Checksum) {
        *self.slot_mut(place) = Slot { entry: None, pins: 1, reads: 0 };
        let seal = CipherTag::default();
        self.enter(place, LogEntry { block, checksum, seal }, Stage::Payload);
    }

    fn enter(&mut self, place: Place, entry: LogEntry, stage: Stage) {
        let Block { name, tenant, .. } = entry.block;
        self.slot_mut(place).entry = Some((entry, stage));
        self.index.insert(name, place);
        let index = &self.index;
        let is_there = |of: &(BlockName, Place)| index.get(&of.0) == Some(&of.1);
        self.tenants.add(tenant, (name, place), is_there);
    }

    /// The tag of the payload at a place; zeros if there is none.
    pub(super) fn seal(&self, place: Place) -> CipherTag {
        self.slot(place).entry.map_or_else(CipherTag::default, |(entry, _)| entry.seal)
    }

    /// The payload that is to be written at a place has this tag.
    pub(super) fn set_seal(&mut self, place: Place, seal: CipherTag) {
        if let Some((entry, _)) = &mut self.slot_mut(place).entry {
            entry.seal = seal;
        }
    }

    /// A payload is on disk. `false` if the block has been cleared: its writing has ended.
    pub(super) fn payload_written(&mut self, place: Place) -> bool {
        let slot = self.slot_mut(place);
        match &mut slot.entry {
            Some((_, stage)) => *stage = Stage::Descriptor,
            None => slot.pins -= 1,
        }
        slot.entry.is_some()
    }

    /// A descriptor is on disk: the block can be read. `false` if it has been cleared.
    pub(super) fn commit(&mut self, place: Place) -> bool {
        let slot = self.slot_mut(place);
        slot.pins -= 1;
        if let Some((_, stage)) = &mut slot.entry {
            *stage = Stage::Held;
        }
        slot.entry.is_some()
    }

    /// The writing of a block has failed. Its slot stays unused until the segment is recycled.
    pub(super) fn abandon(&mut self, place: Place) {
        self.slot_mut(place).pins -= 1;
        self.forget(place);
    }

    /// Finds a block and begins to read it; `end_read` ends it.
    pub(super) fn begin_read(&mut self, name: BlockName) -> Option<(Place, Checksum)> {
        let place = *self.index.get(&name)?;
        let slot = self.slot_mut(place);
        let Some((entry, Stage::Held)) = slot.entry else { return None };
        slot.pins += 1;
        slot.reads = slot.reads.saturating_add(1);
        Some((place, entry.checksum))
    }

    /// A read has ended.
    pub(super) fn end_read(&mut self, place: Place) {
        self.slot_mut(place).pins -= 1;
    }

    /// Drops the block at a place; `None` if it has gone already.
    pub(super) fn forget(&mut self, place: Place) -> Option<BlockName> {
        let (entry, _) = self.slot_mut(place).entry.take()?;
        self.index.remove(&entry.block.name);
        self.tenants.remove(entry.block.tenant);
        Some(entry.block.name)
    }

    /// Drops the block of a name, also one that is being written; its place if there was one.
    pub(super) fn forget_name(&mut self, name: BlockName) -> Option<Place> {
        let place = *self.index.get(&name)?;
        self.forget(place).map(|_| place)
    }

    /// Adds an empty segment, which is active from now on.
    pub(super) fn add_segment(&mut self) {
        self.retire_active();
        let segment = self.next_segment();
        let added = Segment { epoch: self.next_epoch, slots: self.empty_slots() };
        match self.retired.pop() {
            Some(_) => self.segments[segment as usize] = added,
            None => self.segments.push(added),
        }
        self.active = Some(Place { segment, slot: 0 });
        self.next_epoch = self.next_epoch.saturating_add(1);
    }

    /// Takes the oldest segment out of use, until it is added again.
    pub(super) fn retire(&mut self) -> Retirement {
        let Some(segment) = self.order.front().copied() else { return Retirement::NoSegment };
        // A read of what is no longer there would look like a fault of the disk.
        if self.segments[segment as usize].slots.iter().any(|slot| slot.pins > 0) {
            return Retirement::NotYet;
        }
        self.order.pop_front();
        self.retired.push(segment);
        Retirement::Done { segment, gone: self.forget_segment(segment) }
    }

    /// Whether the oldest segment has no block, so that recycling it costs nothing.
    pub(super) fn oldest_is_empty(&self) -> bool {
        let empty =
            |at: &u32| self.segments[*at as usize].slots.iter().all(|slot| slot.entry.is_none());
        self.order.front().is_some_and(empty)
    }

    /// Takes the oldest segment out of use. It is active after `reopened`, or back in line after
    /// `unusable`.
    pub(super) fn recycle(&mut self) -> Recycling {
        self.retire_active();
        let Some(segment) = self.order.front().copied() else { return Recycling::NoSegment };
        let being_written =
            |slot: &Slot| matches!(slot.entry, Some((_, Stage::Payload | Stage::Descriptor)));
        if self.segments[segment as usize].slots.iter().any(being_written) {
            return Recycling::NotYet;
        }
        self.order.pop_front();
        let epoch = self.next_epoch;
        self.next_epoch = self.next_epoch.saturating_add(1);
        let slots = &mut self.segments[segment as usize].slots;
        let mut hot: Vec<usize> = (0..slots.len())
            .filter(|at| slots[*at].reads > 0 && slots[*at].entry.is_some())
            .collect();
        // The most read first; of equals the parents, without which their children are useless.
        let heat = |at: &usize| {
            let depth = slots[*at].entry.map_or(0, |(entry, _)| entry.block.depth);
            (u8::MAX - slots[*at].reads, depth)
        };
        hot.sort_by_key(heat);
        for at in hot.drain(hot.len().min(slots.len() / HOT_SHARE)..) {
            slots[at].reads = 0;
        }
        let mut gone = Vec::new();
        for slot in slots.iter_mut() {
            let Some((entry, _)) = slot.entry else { continue };
            if slot.reads == 0 {
                slot.entry = None;
                self.index.remove(&entry.block.name);
                self.tenants.remove(entry.block.tenant);
                gone.push(entry.block.name);
            }
            // To stay once more, the block has to be read once more.
            slot.reads = 0;
        }
        self.segments[segment as usize].epoch = epoch;
        Recycling::Begun { segment, gone }
    }

    /// The table of a recycled segment is on disk: the segment is active.
    pub(super) fn reopened(&mut self, segment: u32) {
        self.retire_active();
        self.active = Some(Place { segment, slot: 0 });
    }

    /// The table of a recycled segment could not be written: all its blocks go, and it is tried
    /// again after all others.
    pub(super) fn unusable(&mut self, segment: u32) -> Vec<BlockName> {
        self.order.push_back(segment);
        self.forget_segment(segment)
    }

    /// Forgets all blocks. Reads and writes under way go on, for nobody.
    pub(super) fn clear(&mut self) {
        self.retire_active();
        for segment in 0..self.segments() {
            self.forget_segment(segment);
        }
    }

    fn forget_segment(&mut self, segment: u32) -> Vec<BlockName> {
        (0..self.geometry.segment_slots)
            .filter_map(|slot| self.forget(Place { segment, slot }))
            .collect()
    }

    fn empty_slots(&self) -> Vec<Slot> {
        vec![Slot::default(); self.geometry.segment_slots as usize]
    }

    fn retire_active(&mut self) {
        if let Some(active) = self.active.take() {
            self.order.push_back(active.segment);
        }
    }

    fn slot(&self, place: Place) -> &Slot {
        &self.segments[place.segment as usize].slots[place.slot as usize]
    }

    fn slot_mut(&mut self, place: Place) -> &mut Slot {
        &mut self.segments[place.segment as usize].slots[place.slot as usize]
    }
}

#[cfg(test)]
mod tests;
