//! A device for tests that does its jobs in any order, and some of them wrong.

use super::device::{Device, Done, Job, JobMemory};
use super::format::{PAGE_BYTES, Page};
use super::system;
use crate::arena::Arena;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A way in which a disk goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
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

pub(super) const FAULTS: [Fault; 8] = [
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
pub(super) struct FaultPlan {
    pub(super) random: SmallRng,
    /// Faults in 1000 jobs.
    pub(super) rate: u32,
    pub(super) kinds: Vec<Fault>,
    /// Whether files can grow.
    pub(super) has_room: bool,
    /// Whether jobs end.
    pub(super) is_stuck: bool,
}

impl FaultPlan {
    /// A disk without faults, which ends its jobs in the order of a seed.
    pub(super) fn none(seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        Self { random, rate: 0, kinds: FAULTS.to_vec(), has_room: true, is_stuck: false }
    }

    fn next(&mut self) -> Option<Fault> {
        let is_wrong = self.random.random_range(0..1000) < self.rate;
        is_wrong.then(|| self.kinds[self.random.random_range(0..self.kinds.len())])
    }
}

/// A device whose jobs run in `wait`, one at a time.
pub(super) struct FaultyDevice {
    pub(super) arena: Arc<Arena>,
    pub(super) plan: Arc<Mutex<FaultPlan>>,
    pub(super) pending: Vec<Job>,
}

impl Device for FaultyDevice {
    fn start(&mut self, job: Job) {
        self.pending.push(job);
    }

    fn wait(&mut self, done: &mut Vec<Done>) {
        let plan = self.plan.clone();
        let mut plan = plan.lock();
        if self.pending.is_empty() || plan.is_stuck {
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
