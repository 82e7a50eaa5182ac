//! The disk tier: blocks in large files on a local disk, which survive a restart of the agent.
//!
//! Blocks go straight between the host arena and the disk. One thread does all of it: it takes
//! requests by urgency, keeps the disk busy by `io_uring`, and verifies the checksum of every block
//! that it reads. The bytes on disk are never trusted: a wrong block is a miss. Start reading at
//! [`DiskTier`], then at the `log` that says which block is where.

pub mod codec;
mod counts;
mod device;
mod folder;
pub mod format;
mod log;
mod queue;
mod quota;
mod scan;
mod staging;
mod system;
mod tables;
mod worker;

#[cfg(test)]
pub(crate) mod faulty;
#[cfg(test)]
mod tests;

pub use counts::DiskCounts;
pub use folder::OpenError;

use crate::arena::Arena;
use crate::cipher::KvKey;
use crate::tier::{Tier, TierRead, TierReport, TierWrite};
use crate::turns;
use crate::{BlockForm, SlotId};
use counts::{Counters, Outlet};
use folder::{Folder, FolderWish};
use format::{Geometry, PAGE_BYTES};
use parking_lot::Mutex;
use queue::{DiskInbox, DiskRequest};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use worker::{Worker, WorkerParts};

/// Fewest segments of a tier: recycling one loses this share of the blocks.
const SEGMENTS_MIN: u64 = 8;
/// Most segments of a tier, each of which is an open file.
const SEGMENTS_MAX: u64 = 512;
/// Grace for what the disk is doing when the time of closing is over.
const CLOSE_GRACE: Duration = Duration::from_secs(3);

/// Settings of a disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Directory that holds a directory for each form of KV. It is made if it does not exist.
    pub dir: PathBuf,
    /// Bytes that the tier may use on disk.
    pub bytes: u64,
    /// Bytes of a segment, at most. Default: 256 MiB. The tier takes smaller ones to have at least
    /// 8, and larger ones to have no more than 512.
    pub segment_bytes: u64,
    /// Blocks that are read and written at a time. Default: 32.
    pub depth: u32,
    /// Requests that may wait, for each urgency. Default: 256.
    pub queue_max: usize,
    /// Longest time for which a closing tier goes on writing. Default: 2 s.
    pub close_within: Duration,
    /// Share of the room that the blocks of one tenant may have, in percent. Default: no quota.
    pub tenant_share_percent: Option<u8>,
    /// Key by which blocks are encrypted. Default: they are not.
    pub key: Option<KvKey>,
}

impl DiskSettings {
    /// Settings with their defaults.
    pub fn new(dir: impl Into<PathBuf>, bytes: u64) -> Self {
        Self {
            dir: dir.into(),
            bytes,
            segment_bytes: 256 << 20,
            depth: 32,
            queue_max: 256,
            close_within: Duration::from_secs(2),
            tenant_share_percent: None,
            key: None,
        }
    }

    /// Sizes of the segments for blocks of a form.
    fn geometry(&self, form: &BlockForm) -> Result<Geometry, OpenError> {
        let block_bytes = form.block_bytes;
        if block_bytes == 0 || u32::try_from(block_bytes).is_err() {
            let what = format!("a block of {block_bytes} bytes: 1 to {} are possible", u32::MAX);
            return Err(OpenError::Settings(what));
        }
        if self.depth == 0 || self.depth > 1024 || self.queue_max == 0 {
            let (depth, queue) = (self.depth, self.queue_max);
            let what = format!("depth {depth} (1 to 1024), queue {queue} (at least 1)");
            return Err(OpenError::Settings(what));
        }
        let largest = self.segment_bytes.min(self.bytes / SEGMENTS_MIN);
        let bytes = largest.max(self.bytes / SEGMENTS_MAX);
        let slot_bytes = block_bytes.next_multiple_of(PAGE_BYTES) as u64;
        let with_slots = |slots: u64| {
            let segment_slots = u32::try_from(slots).unwrap_or(u32::MAX).max(1);
            Geometry { block_bytes, segment_slots }
        };
        let mut geometry = with_slots(bytes / slot_bytes);
        // The table takes some of the room.
        if geometry.segment_bytes() > bytes {
            let table = (geometry.table_pages() * PAGE_BYTES) as u64;
            geometry = with_slots(bytes.saturating_sub(table) / slot_bytes);
        }
        if geometry.segment_bytes() > self.bytes {
            let (bytes, least) = (self.bytes, geometry.segment_bytes());
            let what = format!("{bytes} bytes of disk, the least is {least} for one block");
            return Err(OpenError::Settings(what));
        }
        Ok(geometry)
    }
}

/// Blocks of one form on a local disk.
pub struct DiskTier {
    inbox: Arc<DiskInbox>,
    counters: Arc<Counters>,
    arena: Arc<Arena>,
    segment_bytes: u64,
    /// Bytes that it may use, whole segments.
    bytes: AtomicU64,
    close_within: Duration,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<Receiver<()>>,
}

impl DiskTier {
    /// Opens the tier in a directory, which this process then has for itself. Blocks that are there
    /// are reported as found soon after. Reports come from the tier's thread, never from within a
    /// call.
    ///
    /// # Errors
    ///
    /// The settings are wrong, another process has the directory, it is not a disk tier's of this
    /// form and version, or the system refuses.
    pub fn open(
        settings: DiskSettings,
        form: BlockForm,
        arena: Arc<Arena>,
        report: Arc<dyn Fn(TierReport) + Send + Sync>,
    ) -> Result<Self, OpenError> {
        let geometry = settings.geometry(&form)?;
        if arena.block_bytes() != form.block_bytes {
            let (arena, form) = (arena.block_bytes(), form.block_bytes);
            let what = format!("an arena of blocks of {arena} bytes for a form of {form}");
            return Err(OpenError::Settings(what));
        }
        let wish = FolderWish { geometry, bytes: settings.bytes, key: settings.key.as_ref() };
        let folder = Folder::open(&settings.dir, form, wish)?;
        let (dir, segment_bytes) = (folder.dir().to_owned(), folder.geometry().segment_bytes());
        let bytes = u64::from(folder.segments_max()) * segment_bytes;
        let counters = Arc::new(Counters::default());
        let inbox = Arc::new(DiskInbox::new(settings.queue_max));
        let outlet = Outlet { sink: report, counters: counters.clone() };
        let (end, ended) = channel();
        let (of_thread, arena_of_thread) = (inbox.clone(), arena.clone());
        let work = move || {
            // The end of the thread closes the channel.
            let _end: Sender<()> = end;
            turns::shorten();
            let (inbox, arena, depth) = (of_thread, arena_of_thread, settings.depth);
            // A ring belongs to the thread that made it. Beside every block, a page of a table.
            let (device, waker) = device::open(&arena, 2 * depth);
            inbox.set_waker(waker);
            let (depth, tenant_share) = (depth as usize, settings.tenant_share_percent);
            let parts =
                WorkerParts { device, folder, form, arena, inbox, outlet, depth, tenant_share };
            Worker::start(parts).run();
        };
        let thread = thread::Builder::new().name("kv-disk".into()).spawn(work);
        let thread = Some(thread.map_err(|error| OpenError::Io { dir, error })?);
        let close_within = settings.close_within;
        let (bytes, ended) = (AtomicU64::new(bytes), Mutex::new(ended));
        Ok(Self { inbox, counters, arena, segment_bytes, bytes, close_within, thread, ended })
    }

    /// Changes the bytes that the tier may use on disk, soon. With fewer bytes the oldest segments
    /// go, when nothing is written in them any more; at least one stays. Returns the bytes that the
    /// tier may use, whole segments. The setting is not kept over a restart.
    pub fn set_bytes(&self, bytes: u64) -> u64 {
        let segments = (bytes / self.segment_bytes).clamp(1, SEGMENTS_MAX);
        self.inbox.set_segments_max(segments as u32);
        self.bytes.store(segments * self.segment_bytes, Ordering::Relaxed);
        self.bytes()
    }

    /// Bytes that the tier may use on disk, whole segments.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts since the tier was opened.
    pub fn counts(&self) -> DiskCounts {
        self.counters.counts()
    }
}

impl Tier for DiskTier {
    fn medium(&self) -> Medium {
        Medium::Disk
    }

    fn read(&self, read: TierRead) {
        assert!(read.slot.0 < self.arena.slots(), "{:?} of {}", read.slot, self.arena.slots());
        self.inbox.push(DiskRequest::Read(read));
    }

    fn write(&self, write: TierWrite) {
        assert!(write.slot.0 < self.arena.slots(), "{:?} of {}", write.slot, self.arena.slots());
        self.inbox.push(DiskRequest::Write(write));
    }

    fn cancel(&self, name: BlockName, slot: SlotId) {
        self.inbox.cancel(name, slot);
    }

    fn forget(&self, names: &[BlockName]) {
        self.inbox.forget(names);
    }

    fn clear(&self) {
        self.inbox.clear();
    }
}

impl Drop for DiskTier {
    /// Refuses the reads that wait, goes on writing for a while, and ends the thread.
    fn drop(&mut self) {
        self.inbox.close(Instant::now() + self.close_within);
        let own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        if self.thread.as_ref().is_some_and(own) {
            // The last owner dropped the tier while it took a report: the thread ends by itself.
            return;
        }
        let ended = self.ended.get_mut().recv_timeout(self.close_within + CLOSE_GRACE);
        if ended == Err(RecvTimeoutError::Timeout) {
            // The thread keeps the arena, so what the disk still does cannot hurt.
            tracing::error!("the disk does not answer: the disk tier's thread is left behind");
            return;
        }
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}
