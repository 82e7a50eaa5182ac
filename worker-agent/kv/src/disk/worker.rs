//! The thread of a disk tier: it starts what is next, and reports what has ended.

mod ended;
mod sealing;

use super::codec::DescriptorCodec;
use super::counts::{Outlet, add};
use super::device::{Device, Done, Job, JobMemory};
use super::folder::Folder;
use super::format::{PAGE_BYTES, Place};
use super::log::{Claim, Log, Recycling, Retirement};
use super::queue::{DiskInbox, DiskRequest, Startable, refusal};
use super::scan::{scan, write_page};
use super::staging::Staging;
use super::tables::{TablePage, TableWrites};
use crate::arena::Arena;
use crate::cipher::CipherTag;
use crate::tier::{TierError, TierRead, TierReport, TierWrite};
use crate::{BlockForm, Checksum};
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::fs::File;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Blocks in one report at the start, so that the receiver's locks are free in between.
const FOUND_MAX: usize = 4096;

/// Parts of a worker.
pub(super) struct WorkerParts {
    /// Takes `2 * depth` jobs at a time.
    pub(super) device: Box<dyn Device>,
    pub(super) folder: Folder,
    pub(super) form: BlockForm,
    pub(super) arena: Arc<Arena>,
    pub(super) inbox: Arc<DiskInbox>,
    pub(super) outlet: Outlet,
    /// Blocks under way at a time.
    pub(super) depth: usize,
    /// Share of the room that one tenant may have, in percent.
    pub(super) tenant_share: Option<u8>,
}

impl WorkerParts {
    /// Blocks that one tenant may have in so many segments.
    fn quota(&self, segments: u32) -> Option<usize> {
        let slots = u64::from(segments) * u64::from(self.folder.geometry().segment_slots);
        self.tenant_share.map(|percent| (slots * u64::from(percent) / 100) as usize)
    }
}

/// A block on its way between a slot of the arena and one on disk.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    request: DiskRequest,
    place: Place,
    checksum: Checksum,
    /// The tag of the payload where that is encrypted.
    seal: CipherTag,
    /// Bytes that were moved already: a disk may move a part.
    moved: usize,
}

/// Work that the device has.
#[derive(Debug)]
enum Work {
    Block(Transfer),
    Page(TablePage),
    /// The whole table of the segment that is to be opened again.
    Table(u32),
}

/// A segment that is to be opened again, as soon as its new table is on disk.
#[derive(Clone, Copy, Debug)]
struct Reopening {
    segment: u32,
    is_started: bool,
}

/// A place to read or write.
#[derive(Clone, Copy, Debug)]
struct FileOffset {
    segment: u32,
    offset: u64,
}

/// Room for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Now,
    Later,
    Never,
}

/// The state of the thread.
pub(super) struct Worker {
    parts: WorkerParts,
    codec: DescriptorCodec,
    staging: Staging,
    files: Vec<Arc<File>>,
    log: Log,
    under_way: FxHashMap<u64, Work>,
    /// Blocks among the work under way.
    transfers: usize,
    next_ticket: u64,
    tables: TableWrites,
    reopening: Option<Reopening>,
    /// The write that waits until a segment can be opened again, or is open.
    held_back: Option<TierWrite>,
    /// Segments that may be in use.
    segments_max: u32,
    /// Whether the last attempt to add a segment failed.
    is_full: bool,
    done: Vec<Done>,
}

impl Worker {
    /// Reads what is on disk, and reports it.
    pub(super) fn start(mut parts: WorkerParts) -> Self {
        let segments_max = parts.folder.segments_max();
        let files = parts.folder.existing(&mut *parts.device).unwrap_or_else(|error| {
            let dir = parts.folder.dir().display();
            tracing::warn!(%dir, %error, "the segments of the disk tier cannot be listed");
            Vec::new()
        });
        let geometry = parts.folder.geometry();
        let codec = DescriptorCodec::new(&parts.form, parts.folder.cipher());
        let found = scan(&mut *parts.device, &files, &codec, geometry, parts.depth);
        let epoch = parts.folder.first_epoch();
        let log = Log::restore(geometry, epoch, parts.quota(segments_max), &found.tables);
        let counters = &parts.outlet.counters;
        add(&counters.torn, found.torn);
        add(&counters.unreadable_segments, found.unreadable);
        let mut blocks: Vec<_> = log.blocks().collect();
        let dir = parts.folder.dir().display();
        let (segments, torn) = (files.len(), found.torn);
        tracing::info!(%dir, blocks = blocks.len(), segments, torn, "the disk tier is read");
        blocks.sort_by_key(|block| block.depth);
        for blocks in blocks.chunks(FOUND_MAX) {
            parts.outlet.send(TierReport::Found(blocks.to_vec()));
        }
        Self {
            parts,
            codec,
            staging: Staging::default(),
            files,
            log,
            under_way: FxHashMap::default(),
            transfers: 0,
            next_ticket: 0,
            tables: TableWrites::default(),
            reopening: None,
            held_back: None,
            segments_max,
            is_full: false,
            done: Vec::new(),
        }
    }

    /// Works until the tier is closed.
    pub(super) fn run(mut self) {
        while self.turn() {}
    }

    /// Starts what can be started, and waits for something to end. `false` if the tier is closed
    /// and nothing is left to do.
    pub(super) fn turn(&mut self) -> bool {
        let orders = self.parts.inbox.orders();
        if orders.clear {
            self.clear();
        }
        self.forget(&orders.forget);
        if let Some(segments) = orders.segments_max {
            self.segments_max = segments;
            self.is_full = false;
            self.log.set_quota(self.parts.quota(segments));
        }
        self.retire_segments();
        for request in orders.refused {
            self.parts.outlet.send(refusal(request, TierError::Busy));
        }
        for request in orders.cancelled {
            self.parts.outlet.send(refusal(request, TierError::Cancelled));
        }
        if let Some(deadline) = orders.close_at {
            self.refuse_at_close(deadline);
        }
        self.start_requests();
        self.start_tables();
        if self.under_way.is_empty() && orders.close_at.is_some() {
            return false;
        }
        let mut done = take(&mut self.done);
        self.parts.device.wait(&mut done);
        done.drain(..).for_each(|ended| self.complete(ended));
        self.done = done;
        true
    }

    fn clear(&mut self) {
        self.log.clear();
        let cleared = self.parts.folder.set_first_epoch(self.log.next_epoch());
        if let Err(error) = cleared {
            let dir = self.parts.folder.dir().display();
            tracing::error!(%dir, %error, "the disk tier is cleared for now, not for a restart");
        }
        if let Some(write) = self.held_back.take() {
            self.refuse(DiskRequest::Write(write), TierError::Busy);
        }
    }

    fn forget(&mut self, names: &[BlockName]) {
        for name in names {
            if let Some(place) = self.log.forget_name(*name) {
                self.tables.erase(place);
            }
            let held_back = self.held_back.take_if(|write| write.block.name == *name);
            if let Some(write) = held_back {
                self.refuse(DiskRequest::Write(write), TierError::Missing);
            }
        }
    }

    /// Gives the room of the oldest segments back, as far as there are more than may be.
    fn retire_segments(&mut self) {
        while self.log.in_use() > self.segments_max {
            // What is under way ends by itself, and then the next turn goes on here.
            let Retirement::Done { segment, gone } = self.log.retire() else { return };
            add(&self.parts.outlet.counters.evicted, gone.len() as u64);
            self.gone(gone);
            // The file stays, empty: after a restart the numbers of the others have no gap.
            if let Err(error) = self.files[segment as usize].set_len(0) {
                tracing::warn!(segment, %error, "a disk segment keeps the room that it had");
            }
        }
    }

    /// When the tier closes, nobody waits for reads any more. Writes go on until the deadline.
    fn refuse_at_close(&mut self, deadline: Instant) {
        let is_late = Instant::now() >= deadline;
        let refused =
            self.parts.inbox.drain(|request| is_late || matches!(request, DiskRequest::Read(_)));
        let held_back = self.held_back.take_if(|_| is_late).map(DiskRequest::Write);
        for request in refused.into_iter().chain(held_back) {
            self.refuse(request, TierError::Busy);
        }
    }

    fn start_requests(&mut self) {
        let depth = self.parts.depth;
        // Some places are kept for what requests wait for: a disk that has its hands full with
        // offloads makes them wait otherwise.
        let background_max = depth - depth / 4;
        let mut can_write = self.reopening.is_none();
        while self.transfers < depth {
            let background = self.transfers < background_max;
            let held_back = self.held_back.take_if(|_| can_write).map(DiskRequest::Write);
            let next = held_back
                .or_else(|| self.parts.inbox.pop(Startable { background, writes: can_write }));
            match next {
                Some(DiskRequest::Read(read)) => self.start_read(read),
                Some(DiskRequest::Write(write)) => {
                    self.start_write(write);
                    can_write = self.held_back.is_none();
                }
                None => return,
            }
        }
    }

    fn start_read(&mut self, read: TierRead) {
        let request = DiskRequest::Read(read);
        match self.log.begin_read(read.name) {
            None => self.refuse(request, TierError::Missing),
            Some((place, checksum)) => {
                let seal = self.log.seal(place);
                self.start_transfer(Transfer { request, place, checksum, seal, moved: 0 });
            }
        }
    }

    fn start_write(&mut self, write: TierWrite) {
        let request = DiskRequest::Write(write);
        let mut claim = self.log.claim(write.block, write.checksum);
        if claim == Claim::NoSegment {
            match self.make_room() {
                Room::Now => claim = self.log.claim(write.block, write.checksum),
                Room::Later => return self.held_back = Some(write),
                Room::Never => return self.refuse(request, TierError::Full),
            }
        }
        match claim {
            Claim::At(place) => self.start_payload(write, place),
            // It is content that decides the name: what is there is what would be written.
            Claim::Instead(place, gone) => {
                add(&self.parts.outlet.counters.evicted, gone.len() as u64);
                self.gone(gone);
                self.start_payload(write, place);
            }
            Claim::OverQuota => self.refuse(request, TierError::Missing),
            Claim::Held => self.written(&write, Ok(())),
            Claim::Coming => self.refuse(request, TierError::Busy),
            Claim::NoSegment => self.refuse(request, TierError::Full),
        }
    }

    /// Adds a segment, or takes the oldest out of use to open it again.
    fn make_room(&mut self) -> Room {
        let segment = self.log.next_segment();
        if self.log.in_use() < self.segments_max && !self.log.oldest_is_empty() {
            match self.parts.folder.segment(segment, &mut *self.parts.device) {
                Ok(file) => {
                    self.is_full = false;
                    match self.files.get_mut(segment as usize) {
                        // A segment that was out of use for a while.
                        Some(known) => *known = file,
                        None => self.files.push(file),
                    }
                    self.log.add_segment();
                    return Room::Now;
                }
                Err(error) if !self.is_full => {
                    self.is_full = true;
                    let dir = self.parts.folder.dir().display();
                    tracing::warn!(%dir, segment, %error, "the disk tier cannot grow; it makes do with what it has");
                }
                Err(_) => {}
            }
        }
        match self.log.recycle() {
            Recycling::NoSegment => Room::Never,
            Recycling::NotYet => Room::Later,
            Recycling::Begun { segment, gone } => {
                add(&self.parts.outlet.counters.evicted, gone.len() as u64);
                self.reopening = Some(Reopening { segment, is_started: false });
                self.gone(gone);
                Room::Later
            }
        }
    }

    fn start_payload(&mut self, write: TierWrite, place: Place) {
        let (request, checksum) = (DiskRequest::Write(write), write.checksum);
        let plain = CipherTag::default();
        let transfer = Transfer { request, place, checksum, seal: plain, moved: 0 };
        let Some((seal, memory)) = self.seal_payload(&write) else {
            return self.start_transfer(transfer);
        };
        // Before the descriptor is written, which has it.
        self.log.set_seal(place, seal);
        self.transfers += 1;
        self.move_block(Transfer { seal, ..transfer }, true, memory);
    }

    fn start_transfer(&mut self, transfer: Transfer) {
        self.transfers += 1;
        match self.is_sealed() {
            true => {
                let memory = self.sealed_memory();
                self.move_block(transfer, false, memory);
            }
            false => self.move_rest(transfer),
        }
    }

    /// Moves what is left of a block.
    fn move_rest(&mut self, transfer: Transfer) {
        let Transfer { request, moved, .. } = transfer;
        let (slot, is_write) = match request {
            DiskRequest::Read(read) => (read.slot, false),
            DiskRequest::Write(write) => (write.slot, true),
        };
        let bytes = self.parts.folder.geometry().slot_bytes() - moved;
        self.move_block(transfer, is_write, JobMemory::Slot { slot, from: moved, bytes });
    }

    fn move_block(&mut self, transfer: Transfer, is_write: bool, memory: JobMemory) {
        let Transfer { place, moved, .. } = transfer;
        let offset = self.parts.folder.geometry().slot_offset(place.slot) + moved as u64;
        let at = FileOffset { segment: place.segment, offset };
        self.submit(Work::Block(transfer), at, is_write, memory);
    }

    /// Starts to write pages of tables, which are small and go by the side of the blocks.
    fn start_tables(&mut self) {
        let has_room =
            |worker: &Self| worker.under_way.len() - worker.transfers < worker.parts.depth;
        if let Some(reopening) = self.reopening.filter(|reopening| !reopening.is_started)
            // Of two writes of a page the older one could come last.
            && !self.tables.is_writing(reopening.segment)
            && has_room(self)
        {
            self.reopening = Some(Reopening { is_started: true, ..reopening });
            let pages = 0..self.parts.folder.geometry().table_pages() as u32;
            self.submit_pages(Work::Table(reopening.segment), reopening.segment, pages);
        }
        while has_room(self) {
            let except = self.reopening.map(|reopening| reopening.segment);
            let Some(at) = self.tables.next(except) else { return };
            self.submit_pages(Work::Page(at), at.segment, at.page..at.page + 1);
        }
    }

    fn submit_pages(&mut self, work: Work, segment: u32, pages: Range<u32>) {
        let offset = u64::from(pages.start) * PAGE_BYTES as u64;
        let page = |page| write_page(&self.log.page(segment, page), segment, &self.codec);
        let memory = JobMemory::Pages(pages.map(page).collect());
        self.submit(work, FileOffset { segment, offset }, true, memory);
    }

    fn submit(&mut self, work: Work, at: FileOffset, is_write: bool, memory: JobMemory) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.under_way.insert(ticket, work);
        let file = self.files[at.segment as usize].clone();
        self.parts.device.start(Job { ticket, file, offset: at.offset, is_write, memory });
    }

    fn refuse(&self, request: DiskRequest, error: TierError) {
        self.parts.outlet.send(refusal(request, error));
    }

    fn written(&self, write: &TierWrite, result: Result<(), TierError>) {
        let TierWrite { block, slot, .. } = *write;
        self.parts.outlet.send(TierReport::Written { name: block.name, slot, result });
    }

    fn gone(&self, names: Vec<BlockName>) {
        if !names.is_empty() {
            self.parts.outlet.send(TierReport::Gone(names));
        }
    }
}
