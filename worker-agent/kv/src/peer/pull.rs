//! Blocks that are read together from one peer: their frames, and whom their slots belong to.

use super::common::PeerCommon;
use super::path::ReadPath;
use crate::checksum::ChecksumStream;
use crate::tier::{TierError, TierRead};
use crate::transfer::assembly::{Arrival, Assembly, FrameRange};
use crate::transfer::{Landing, SlotPart};
use crate::{Checksum, SlotId};
use parking_lot::{Mutex, RwLock};
use stator_protos::name::BlockName;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::Notify;

/// Reads of blocks that follow one another, and their progress.
pub(super) struct Pull {
    common: Arc<PeerCommon>,
    reads: Vec<TierRead>,
    /// Whether the slots are still the pull's. A slot is touched under this lock alone, so that
    /// nobody touches it after the report.
    is_open: RwLock<bool>,
    progress: Mutex<PullProgress>,
    /// Rung when there is something to do for whoever drives the pull.
    bell: Notify,
    /// Whether frames are read straight from the peer's arena, not asked for on a connection.
    is_direct: AtomicBool,
}

struct PullProgress {
    assembly: Assembly,
    lease: Option<PullLease>,
    /// By place, as the holder said last.
    checksums: Vec<Option<Checksum>>,
    /// By place.
    is_reported: Vec<bool>,
    error: Option<TierError>,
}

/// Blocks that the peer keeps for the pull.
#[derive(Clone, Copy, Debug)]
struct PullLease {
    number: u64,
    /// Place in the pull of the lease's first block.
    base: usize,
}

/// A frame to ask for.
pub(super) struct PullPart {
    pub(super) range: FrameRange,
    pub(super) name: BlockName,
    /// Number of the lease.
    pub(super) lease: u64,
    /// Place of the block in the lease.
    pub(super) place: u32,
}

/// Next step of a pull.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// A lease of these blocks, the first of which is at place `base`.
    Lease { base: usize, names: Vec<BlockName> },
    /// Nothing but to wait.
    Wait,
    /// All blocks are reported.
    Done,
    /// The peer failed.
    Fail(TierError),
}

impl Pull {
    pub(super) fn new(common: Arc<PeerCommon>, reads: Vec<TierRead>, path: ReadPath) -> Self {
        let (blocks, block_bytes) = (reads.len(), common.form.block_bytes);
        let progress = PullProgress {
            assembly: Assembly::new(blocks, block_bytes, common.settings.frame_bytes),
            lease: None,
            checksums: vec![None; blocks],
            is_reported: vec![false; blocks],
            error: None,
        };
        let (is_open, progress) = (RwLock::new(true), Mutex::new(progress));
        let is_direct = AtomicBool::new(path == ReadPath::Direct);
        Self { common, reads, is_open, progress, bell: Notify::new(), is_direct }
    }

    /// Path of the frames that are not there yet.
    pub(super) fn path(&self) -> ReadPath {
        if self.is_direct.load(Relaxed) { ReadPath::Direct } else { ReadPath::Sockets }
    }

    /// Lets connections ask for the rest.
    pub(super) fn leave_direct(&self) {
        self.is_direct.store(false, Relaxed);
    }

    /// Number of all blocks.
    pub(super) fn blocks(&self) -> usize {
        self.reads.len()
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        self.blocks() * self.common.form.block_bytes
    }

    /// Waits until there may be something to do.
    pub(super) async fn changed(&self) {
        self.bell.notified().await;
    }

    pub(super) fn next_step(&self) -> NextStep {
        let progress = self.progress.lock();
        if let Some(error) = progress.error {
            return NextStep::Fail(error);
        }
        let Some(base) = progress.is_reported.iter().position(|is_reported| !is_reported) else {
            return NextStep::Done;
        };
        // Frames of an old lease must not arrive under a new one.
        if progress.lease.is_some() || progress.assembly.asked() > 0 {
            return NextStep::Wait;
        }
        let end = progress.is_reported.iter().rposition(|is_reported| !is_reported);
        let end = end.map_or(base, |last| last + 1);
        let names = self.reads[base..end].iter().map(|read| read.name).collect();
        NextStep::Lease { base, names }
    }

    /// The peer keeps the leading blocks of those that [`NextStep::Lease`] named. The others are
    /// not there.
    pub(super) fn leased(&self, number: u64, base: usize, checksums: &[Checksum]) {
        let mut progress = self.progress.lock();
        let end = (base + checksums.len()).min(self.reads.len());
        for (place, checksum) in (base..end).zip(checksums) {
            let known = progress.checksums[place].replace(*checksum);
            // Another holder, or another computation: the parts would not fit together.
            if known.is_some_and(|known| known != *checksum) && !progress.is_reported[place] {
                progress.assembly.forget(place);
            }
        }
        progress.assembly.truncate(end);
        progress.lease = (end > base).then_some(PullLease { number, base });
        let missing: Vec<_> = self.take_unreported(&mut progress, end);
        drop(progress);
        missing.iter().for_each(|read| self.common.report(*read, Err(TierError::Missing)));
        self.bell.notify_one();
    }

    /// The next frame to ask for.
    pub(super) fn ask(&self) -> Option<PullPart> {
        let mut progress = self.progress.lock();
        let lease = progress.lease.filter(|_| progress.error.is_none())?;
        let range = progress.assembly.ask()?;
        let place = range.place as usize;
        let name = self.reads[place].name;
        Some(PullPart { range, name, lease: lease.number, place: (place - lease.base) as u32 })
    }

    /// A frame that was asked for will not come.
    pub(super) fn lost(&self, range: FrameRange) {
        self.progress.lock().assembly.lost(range);
        self.bell.notify_one();
    }

    /// The peer does not know the lease any more.
    pub(super) fn lease_gone(&self, number: u64) {
        self.progress.lock().lease.take_if(|lease| lease.number == number);
        self.bell.notify_one();
    }

    /// The number of the lease, if there is one.
    pub(super) fn lease(&self) -> Option<u64> {
        self.progress.lock().lease.map(|lease| lease.number)
    }

    /// The peer is of no use any more.
    pub(super) fn fail(&self, error: TierError) {
        self.progress.lock().error.get_or_insert(error);
        self.bell.notify_one();
    }

    /// The reason for which the peer is of no use any more, if there is one.
    pub(super) fn error(&self) -> Option<TierError> {
        self.progress.lock().error
    }

    /// The place that a frame lands in.
    pub(super) fn landing(&self, range: FrameRange) -> PullLanding<'_> {
        PullLanding { pull: self, range }
    }

    /// A frame is in its slot, whole and genuine. A block that is whole now is checked and reported.
    pub(super) fn arrived(&self, range: FrameRange) {
        let mut progress = self.progress.lock();
        let arrival = progress.assembly.arrived(range);
        drop(progress);
        if arrival == Arrival::Whole {
            self.report_whole(range.place as usize);
        }
        self.bell.notify_one();
    }

    fn report_whole(&self, place: usize) {
        // Without the lock on the progress: other frames arrive meanwhile.
        let Some(checksum) = self.checksum(place) else { return };
        let mut progress = self.progress.lock();
        let is_right = progress.checksums[place] == Some(checksum);
        let was_reported = mem::replace(&mut progress.is_reported[place], true);
        drop(progress);
        if !was_reported {
            let result = is_right.then_some(checksum).ok_or(TierError::Corrupt);
            self.common.report(self.reads[place], result);
        }
    }

    /// Gives all slots up: blocks that are not reported yet fail.
    pub(super) fn close(&self, error: TierError) {
        // Waits for sockets that copy to a slot at this moment, which takes microseconds.
        *self.is_open.write() = false;
        let mut progress = self.progress.lock();
        progress.error.get_or_insert(error);
        let unreported = self.take_unreported(&mut progress, 0);
        drop(progress);
        self.common.report_failed(&unreported, error);
    }

    /// Reads from place `start` on that are to be reported now.
    fn take_unreported(&self, progress: &mut PullProgress, start: usize) -> Vec<TierRead> {
        let marks = progress.is_reported[start..].iter_mut().zip(&self.reads[start..]);
        marks.filter_map(|(mark, read)| (!mem::replace(mark, true)).then_some(*read)).collect()
    }

    /// The checksum of a whole block, unless its slot was given up.
    fn checksum(&self, place: usize) -> Option<Checksum> {
        let mut checksum = ChecksumStream::new(self.reads[place].name);
        let len = self.common.form.block_bytes as u32;
        let landing = self.landing(FrameRange { place: place as u32, offset: 0, len });
        let is_open = landing.with(&mut |part| part.each_piece(|piece| checksum.update(piece)));
        is_open.then(|| checksum.finish())
    }

    fn slot(&self, place: u32) -> SlotId {
        self.reads[place as usize].slot
    }
}

/// Part of a slot of a pull.
pub(super) struct PullLanding<'a> {
    pull: &'a Pull,
    range: FrameRange,
}

impl Landing for PullLanding<'_> {
    fn with(&self, change: &mut dyn FnMut(&SlotPart<'_>)) -> bool {
        let is_open = self.pull.is_open.read();
        if !*is_open {
            return false;
        }
        let FrameRange { place, offset, len } = self.range;
        let range = offset as usize..(offset + len) as usize;
        change(&SlotPart { arena: &self.pull.common.arena, slot: self.pull.slot(place), range });
        true
    }
}
