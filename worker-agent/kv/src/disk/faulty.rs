//! A device for tests that does its jobs in any order, and some of them wrong, and a tier on it.

use super::counts::{Counters, Outlet};
use super::device::{Device, Done, Job, JobMemory};
use super::folder::{Folder, FolderWish};
use super::format::{Geometry, PAGE_BYTES, Page};
use super::queue::{DiskInbox, DiskRequest};
use super::system;
use super::worker::{Worker, WorkerParts};
use crate::SlotId;
use crate::arena::Arena;
use crate::cache::TierPlace;
use crate::cipher::KvKey;
use crate::tier::{Tier, TierRead, TierWrite};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// A way in which a disk goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A part of the bytes is written, all are reported.
    Torn,
    /// Nothing is written, all is reported.
    Lost,
    /// One bit is another.
    Flip,
    /// A page is moved, and no more is reported.
    Short,
    /// Nothing is moved, as at the end of a file.
    Ended,
    /// The bytes go to or come from the next page.
    Misplaced,
    /// The device fails.
    Failed,
    /// The disk is full.
    Full,
}

pub(crate) const FAULTS: [Fault; 8] = [
    Fault::Torn,
    Fault::Lost,
    Fault::Flip,
    Fault::Short,
    Fault::Ended,
    Fault::Misplaced,
    Fault::Failed,
    Fault::Full,
];

/// The faults to come.
#[derive(Debug)]
pub(crate) struct FaultPlan {
    pub(crate) random: SmallRng,
    /// Faults in 1000 jobs.
    pub(crate) rate: u32,
    pub(crate) kinds: Vec<Fault>,
    /// Whether files can grow.
    pub(crate) has_room: bool,
    /// Whether jobs end.
    pub(crate) is_stuck: bool,
    /// Faults so far.
    pub(crate) injected: usize,
    /// Wakes a tier with a thread.
    bell: Option<Sender<()>>,
}

impl FaultPlan {
    /// A disk without faults, which ends its jobs in the order of a seed.
    pub(crate) fn none(seed: u64) -> Self {
        let (random, kinds) = (SmallRng::seed_from_u64(seed), FAULTS.to_vec());
        let bell = None;
        Self { random, rate: 0, kinds, has_room: true, is_stuck: false, injected: 0, bell }
    }

    /// Lets jobs end again.
    pub(crate) fn release(&mut self) {
        self.is_stuck = false;
        if let Some(bell) = &self.bell {
            // The tier may have ended.
            let _ = bell.send(());
        }
    }

    fn next(&mut self) -> Option<Fault> {
        let is_wrong = self.random.random_range(0..1000) < self.rate;
        self.injected += usize::from(is_wrong);
        is_wrong.then(|| self.kinds[self.random.random_range(0..self.kinds.len())])
    }
}

/// Segments of a [`FaultyDisk`], of four blocks each.
const SEGMENTS: u64 = 6;

/// A tier on a faulty disk, with a thread of its own. Its end is a crash.
pub(crate) struct FaultyDisk {
    inbox: Arc<DiskInbox>,
    is_dead: Arc<AtomicBool>,
    bell: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl FaultyDisk {
    /// Opens the tier in a directory.
    pub(crate) fn open(
        dir: &Path,
        key: Option<&KvKey>,
        plan: &Arc<Mutex<FaultPlan>>,
        place: TierPlace,
    ) -> Self {
        let TierPlace { form, arena, report: sink } = place;
        let geometry = Geometry { block_bytes: form.block_bytes, segment_slots: 4 };
        let bytes = SEGMENTS * geometry.segment_bytes();
        let folder = Folder::open(dir, form, FolderWish { geometry, bytes, key });
        let folder = folder.expect("a directory of the test's own");
        let inbox = Arc::new(DiskInbox::new(32));
        let (bell, heard) = channel();
        let wakes = bell.clone();
        inbox.set_waker(Arc::new(move || {
            // The tier may have ended.
            let _ = wakes.send(());
        }));
        plan.lock().bell = Some(bell.clone());
        let is_dead = Arc::new(AtomicBool::new(false));
        let (plan, of_thread, ends) = (plan.clone(), inbox.clone(), is_dead.clone());
        let work = move || {
            let (arena_of_device, bell) = (arena.clone(), Some(heard));
            let pending = Vec::new();
            let device = FaultyDevice { arena: arena_of_device, plan, pending, bell };
            let parts = WorkerParts {
                device: Box::new(device),
                folder,
                form,
                arena,
                inbox: of_thread,
                outlet: Outlet { sink, counters: Arc::new(Counters::default()) },
                depth: 8,
                tenant_share: None,
            };
            let mut worker = Worker::start(parts);
            while !ends.load(Ordering::Acquire) && worker.turn() {}
        };
        let thread = Some(thread::spawn(work));
        Self { inbox, is_dead, bell, thread }
    }
}

impl Tier for FaultyDisk {
    fn medium(&self) -> Medium {
        Medium::Disk
    }

    fn read(&self, read: TierRead) {
        self.inbox.push(DiskRequest::Read(read));
    }

    fn write(&self, write: TierWrite) {
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

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        self.is_dead.store(true, Ordering::Release);
        let _ = self.bell.send(());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the disk's thread does not panic");
        }
    }
}

/// A device whose jobs run in `wait`, one at a time.
pub(super) struct FaultyDevice {
    pub(super) arena: Arc<Arena>,
    pub(super) plan: Arc<Mutex<FaultPlan>>,
    pub(super) pending: Vec<Job>,
    /// Rings when there may be something to do; without it `wait` returns at once.
    pub(super) bell: Option<Receiver<()>>,
}

impl Device for FaultyDevice {
    fn start(&mut self, job: Job) {
        self.pending.push(job);
    }

    fn wait(&mut self, done: &mut Vec<Done>) {
        let plan = self.plan.clone();
        let mut plan = plan.lock();
        if self.pending.is_empty() || plan.is_stuck {
            drop(plan);
            if let Some(bell) = &self.bell {
                // Only the tier's end makes this an error, which the tier's thread sees.
                let _ = bell.recv();
            }
            return;
        }
        let at = plan.random.random_range(0..self.pending.len());
        let mut job = self.pending.swap_remove(at);
        let result = self.run(&mut job, &mut plan);
        done.push(Done { job, result });
    }

    fn allocate(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        if self.plan.lock().has_room {
            system::allocate(file, bytes)
        } else {
            Err(Errno::NOSPC.into())
        }
    }
}

impl Drop for FaultyDevice {
    /// A crash: of the writes under way some are on disk, some not, and some in part.
    fn drop(&mut self) {
        let plan = self.plan.clone();
        let mut plan = plan.lock();
        let (rate, kinds) = (plan.rate, std::mem::take(&mut plan.kinds));
        (plan.rate, plan.kinds) = (500, vec![Fault::Torn, Fault::Lost]);
        for mut job in std::mem::take(&mut self.pending) {
            if job.is_write {
                self.run(&mut job, &mut plan).expect("files of tests can be written");
            }
        }
        (plan.rate, plan.kinds) = (rate, kinds);
    }
}

impl FaultyDevice {
    fn run(&self, job: &mut Job, plan: &mut FaultPlan) -> io::Result<usize> {
        let fault = plan.next();
        match fault {
            Some(Fault::Failed) => return Err(Errno::IO.into()),
            Some(Fault::Full) => return Err(Errno::NOSPC.into()),
            Some(Fault::Ended) => return Ok(0),
            _ => {}
        }
        let mut pages = self.take(&job.memory);
        let mut offset = job.offset;
        if fault == Some(Fault::Misplaced) {
            offset += PAGE_BYTES as u64;
        }
        let mut count = pages.len();
        if fault == Some(Fault::Short) {
            count = 1;
        }
        let moved = count * PAGE_BYTES;
        let flip = |pages: &mut [Page], plan: &mut FaultPlan| {
            let bit = plan.random.random_range(0..count * PAGE_BYTES * 8);
            pages[bit / 8 / PAGE_BYTES].0[bit / 8 % PAGE_BYTES] ^= 1 << (bit % 8);
        };
        if job.is_write {
            match fault {
                Some(Fault::Flip) => flip(&mut pages, plan),
                Some(Fault::Lost) => count = 0,
                Some(Fault::Torn) => count = self.tear(job, offset, &mut pages, plan)?,
                _ => {}
            }
            for (at, page) in pages[..count].iter().enumerate() {
                job.file.write_all_at(&page.0, offset + (at * PAGE_BYTES) as u64)?;
            }
            return Ok(moved);
        }
        for (at, page) in pages[..count].iter_mut().enumerate() {
            let offset = offset + (at * PAGE_BYTES) as u64;
            if job.file.read_exact_at(&mut page.0, offset).is_err() {
                // Behind the end of the file.
                return Ok(at * PAGE_BYTES);
            }
        }
        if fault == Some(Fault::Flip) {
            flip(&mut pages, plan);
        }
        self.give(&mut job.memory, &pages[..count]);
        Ok(moved)
    }

    /// Makes the last page that is written a mix of old and new, and returns how many are.
    fn tear(
        &self,
        job: &Job,
        offset: u64,
        pages: &mut [Page],
        plan: &mut FaultPlan,
    ) -> io::Result<usize> {
        let bytes = plan.random.random_range(0..pages.len() * PAGE_BYTES / 512) * 512;
        let (last, kept) = (bytes / PAGE_BYTES, bytes % PAGE_BYTES);
        let mut old = Page([0; PAGE_BYTES]);
        job.file.read_exact_at(&mut old.0, offset + (last * PAGE_BYTES) as u64)?;
        pages[last].0[kept..].copy_from_slice(&old.0[kept..]);
        Ok(last + 1)
    }

    /// The bytes of a job's memory. Blocks of tests are whole pages.
    fn take(&self, memory: &JobMemory) -> Vec<Page> {
        match memory {
            JobMemory::Pages(pages) => pages.to_vec(),
            JobMemory::Slot { slot, from, .. } => {
                let mut block = vec![0; self.arena.block_bytes()];
                self.arena.read(*slot, &mut block);
                let (pages, rest) = block[*from..].as_chunks::<PAGE_BYTES>();
                assert!(rest.is_empty(), "a block of whole pages");
                pages.iter().map(|page| Page(*page)).collect()
            }
        }
    }

    fn give(&self, memory: &mut JobMemory, read: &[Page]) {
        match memory {
            JobMemory::Pages(pages) => pages[..read.len()].clone_from_slice(read),
            JobMemory::Slot { slot, from, .. } => {
                let mut block = vec![0; self.arena.block_bytes()];
                self.arena.read(*slot, &mut block);
                for (at, page) in read.iter().enumerate() {
                    let at = *from + at * PAGE_BYTES;
                    block[at..at + PAGE_BYTES].copy_from_slice(&page.0);
                }
                self.arena.write(*slot, &block);
            }
        }
    }
}
