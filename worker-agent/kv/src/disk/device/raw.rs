//! Reads and writes from and to the memory of jobs.
//!
//! Jobs come with memory that is theirs: pages that they own, or a slot of the arena that the block
//! store keeps for them until they have ended. The kernel alone looks into it meanwhile, and no
//! Rust reference to it exists. A [`Ring`] keeps its jobs until the kernel has given them back.
#![allow(unsafe_code)]

use super::{Job, JobMemory};
use crate::arena::Arena;
use std::io;
use std::os::fd::AsRawFd;

#[cfg(target_os = "linux")]
pub(super) use ring::Ring;

/// Does a job, and returns the bytes that were moved.
pub(super) fn transfer(job: &mut Job, arena: &Arena) -> io::Result<usize> {
    let (file, offset) = (job.file.as_raw_fd(), job.offset as libc::off_t);
    let bytes = job.memory.bytes();
    let memory = address(&mut job.memory, arena);
    loop {
        let moved = if job.is_write {
            // SAFETY: `memory` has so many bytes, and is the job's until the call has returned.
            unsafe { libc::pwrite(file, memory.cast(), bytes, offset) }
        } else {
            // SAFETY: as above.
            unsafe { libc::pread(file, memory.cast(), bytes, offset) }
        };
        let error = match usize::try_from(moved) {
            Ok(moved) => return Ok(moved),
            Err(_) => io::Error::last_os_error(),
        };
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The first byte of a job's memory. It stays there until the job is dropped.
///
/// # Panics
///
/// The memory is not within its slot.
fn address(memory: &mut JobMemory, arena: &Arena) -> *mut u8 {
    match memory {
        JobMemory::Slot { slot, from, bytes } => {
            assert!(*from + *bytes <= arena.stride(), "{from} and {bytes} bytes of a slot");
            arena.address(*slot).wrapping_add(*from)
        }
        JobMemory::Pages(pages) => pages.as_mut_ptr().cast(),
    }
}

#[cfg(target_os = "linux")]
mod ring {
    use super::super::{Device, Done};
    use super::{Job, JobMemory, address};
    use crate::SlotId;
    use crate::arena::Arena;
    use crate::disk::queue::Waker;
    use io_uring::{IoUring, Probe, opcode, squeue, types};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::OwnedFd;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    /// Mark of the completion that says that somebody called the waker.
    const WOKEN: u64 = u64::MAX;
    /// Largest buffer that can be registered.
    const BUFFER_MAX: usize = 1 << 30;
    /// Pause after an error of the ring itself, as for want of kernel memory.
    const PAUSE: Duration = Duration::from_millis(1);

    /// An `io_uring`. Dropping it waits for the jobs that are under way.
    pub(in crate::disk::device) struct Ring {
        ring: IoUring,
        arena: Arc<Arena>,
        /// Jobs under way, which the kernel knows by their place here. Never grows: the kernel
        /// holds addresses of them.
        jobs: Vec<Option<Job>>,
        free: Vec<usize>,
        /// Slots in a registered buffer, if the arena is registered.
        buffer_slots: Option<u32>,
        doorbell: Arc<OwnedFd>,
        doorbell_is_watched: bool,
    }

    impl Ring {
        /// A ring for so many jobs at a time, which belongs to this thread.
        pub(in crate::disk::device) fn new(arena: Arc<Arena>, jobs_max: u32) -> io::Result<Self> {
            // One more for the doorbell.
            let ring = build(jobs_max + 1)?;
            let mut probe = Probe::new();
            ring.submitter().register_probe(&mut probe)?;
            let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::PollAdd::CODE];
            if !needed.iter().all(|code| probe.is_supported(*code)) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let buffer_slots = match register(&ring, &arena) {
                Ok(slots) => Some(slots),
                Err(error) => {
                    tracing::warn!(%error, "the KV arena is not registered with io_uring: each block costs the disk tier a little more");
                    None
                }
            };
            let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Self {
                ring,
                arena,
                jobs: (0..jobs_max).map(|_| None).collect(),
                free: (0..jobs_max as usize).collect(),
                buffer_slots,
                doorbell: Arc::new(doorbell),
                doorbell_is_watched: false,
            })
        }

        pub(in crate::disk::device) fn waker(&self) -> Waker {
            let doorbell = self.doorbell.clone();
            Arc::new(move || {
                // Full means rung already.
                let _ = rustix::io::write(&*doorbell, &1_u64.to_ne_bytes());
            })
        }

        /// Hands an entry to the kernel with the next submission.
        fn push(&mut self, entry: &squeue::Entry) {
            // SAFETY: the memory of a job belongs to it and lives until `jobs` gives it up, which
            // happens when the kernel has completed it; `drop` waits for that. The doorbell has no
            // memory.
            let pushed = unsafe { self.ring.submission().push(entry) };
            pushed.expect("the ring has room for all jobs at a time and the doorbell");
        }

        /// The kernel's order for a job in `jobs`.
        fn entry(&mut self, at: usize) -> squeue::Entry {
            let job = self.jobs[at].as_mut().expect("the place was filled just now");
            let file = types::Fd(job.file.as_raw_fd());
            let (offset, bytes) = (job.offset, job.memory.bytes() as u32);
            let memory = address(&mut job.memory, &self.arena);
            let buffer = match (&job.memory, self.buffer_slots) {
                (JobMemory::Slot { slot, .. }, Some(slots)) => Some((slot.0 / slots) as u16),
                _ => None,
            };
            let entry = match (job.is_write, buffer) {
                (false, None) => opcode::Read::new(file, memory, bytes).offset(offset).build(),
                (true, None) => opcode::Write::new(file, memory, bytes).offset(offset).build(),
                (false, Some(buffer)) => {
                    opcode::ReadFixed::new(file, memory, bytes, buffer).offset(offset).build()
                }
                (true, Some(buffer)) => {
                    opcode::WriteFixed::new(file, memory, bytes, buffer).offset(offset).build()
                }
            };
            entry.user_data(at as u64)
        }

        fn watch_doorbell(&mut self) {
            if !self.doorbell_is_watched {
                let doorbell = types::Fd(self.doorbell.as_raw_fd());
                let poll = opcode::PollAdd::new(doorbell, libc::POLLIN as u32).build();
                self.push(&poll.user_data(WOKEN));
                self.doorbell_is_watched = true;
            }
        }

        /// Waits for a completion, and takes all that there are.
        fn turn(&mut self, done: &mut Vec<Done>) {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "io_uring took no orders; trying again");
                    thread::sleep(PAUSE);
                }
            }
            let completions: Vec<_> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (at, result) in completions {
                if at == WOKEN {
                    self.doorbell_is_watched = false;
                    let _ = rustix::io::read(&*self.doorbell, &mut [0; 8]);
                    continue;
                }
                let at = at as usize;
                let job = self.jobs[at].take().expect("the kernel completes a job once");
                self.free.push(at);
                let moved = usize::try_from(result);
                let result = moved.map_err(|_| io::Error::from_raw_os_error(-result));
                done.push(Done { job, result });
            }
        }
    }

    impl Device for Ring {
        fn start(&mut self, job: Job) {
            let at = self.free.pop().expect("no more jobs than the ring was made for");
            self.jobs[at] = Some(job);
            let entry = self.entry(at);
            self.push(&entry);
        }

        fn wait(&mut self, done: &mut Vec<Done>) {
            self.watch_doorbell();
            self.turn(done);
        }
    }

    impl Drop for Ring {
        fn drop(&mut self) {
            // The kernel may still write into the jobs' memory.
            let mut done = Vec::new();
            while self.jobs.iter().any(Option::is_some) {
                self.turn(&mut done);
            }
        }
    }

    /// A ring whose completions wait for the thread, if the kernel can do that.
    fn build(entries: u32) -> io::Result<IoUring> {
        let mut modern = IoUring::builder();
        modern.setup_single_issuer().setup_defer_taskrun().setup_submit_all();
        modern.dontfork();
        modern.build(entries).or_else(|error| {
            tracing::debug!(%error, "io_uring without deferred completions");
            IoUring::new(entries)
        })
    }

    /// Registers the arena, and returns how many slots are in one buffer.
    fn register(ring: &IoUring, arena: &Arena) -> io::Result<u32> {
        let stride = arena.stride();
        let slots = (BUFFER_MAX / stride) as u32;
        let buffers = if slots == 0 { usize::MAX } else { arena.slots().div_ceil(slots) as usize };
        if buffers > 1024 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "too large to be registered"));
        }
        let buffers: Vec<_> = (0..arena.slots())
            .step_by(slots as usize)
            .map(|first| libc::iovec {
                iov_base: arena.address(SlotId(first)).cast(),
                iov_len: slots.min(arena.slots() - first) as usize * stride,
            })
            .collect();
        // SAFETY: the buffers are the arena's mapping, which the ring keeps for as long as it
        // lives.
        unsafe { ring.submitter().register_buffers(&buffers)? };
        Ok(slots)
    }
}
