//! Reads and writes of segments' files, by `io_uring` or by a pool of threads.

mod pool;
mod raw;

use super::format::{PAGE_BYTES, Page};
use super::queue::Waker;
use super::system;
use crate::SlotId;
use crate::arena::Arena;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Memory of a job.
#[derive(Debug)]
pub(super) enum JobMemory {
    /// Bytes of a slot of the arena: `from` on, to the end of the slot.
    Slot { slot: SlotId, from: usize, bytes: usize },
    /// Pages of a table.
    Pages(Box<[Page]>),
}

impl JobMemory {
    /// Bytes to read or write.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Slot { bytes, .. } => *bytes,
            Self::Pages(pages) => pages.len() * PAGE_BYTES,
        }
    }
}

/// A read or a write. Offset, memory and bytes are whole pages.
#[derive(Debug)]
pub(super) struct Job {
    /// Number by which the caller knows the job.
    pub(super) ticket: u64,
    pub(super) file: Arc<File>,
    pub(super) offset: u64,
    pub(super) is_write: bool,
    pub(super) memory: JobMemory,
}

/// A job that has ended, with the bytes that were moved.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) job: Job,
    pub(super) result: io::Result<usize>,
}

/// A way to read and write files. Jobs end in any order.
pub(super) trait Device {
    /// Starts a job. At most as many are under way as the device was made for.
    fn start(&mut self, job: Job);

    /// Waits until a job has ended or somebody calls the waker, and adds the jobs that have ended.
    fn wait(&mut self, done: &mut Vec<Done>);

    /// Gives a file all its bytes.
    fn allocate(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        system::allocate(file, bytes)
    }
}

/// The best device that the system has for so many jobs at a time, and its waker. The device
/// belongs to this thread.
pub(super) fn open(arena: &Arc<Arena>, jobs_max: u32) -> (Box<dyn Device>, Waker) {
    #[cfg(target_os = "linux")]
    match raw::Ring::new(arena.clone(), jobs_max) {
        Ok(ring) => {
            let waker = ring.waker();
            return (Box::new(ring), waker);
        }
        Err(error) => tracing::warn!(%error, "the disk tier uses threads: no io_uring here"),
    }
    open_pool(arena, jobs_max)
}

/// A pool of threads, which every system has.
pub(super) fn open_pool(arena: &Arc<Arena>, jobs_max: u32) -> (Box<dyn Device>, Waker) {
    let pool = pool::Pool::new(arena, jobs_max);
    let waker = pool.waker();
    (Box::new(pool), waker)
}
