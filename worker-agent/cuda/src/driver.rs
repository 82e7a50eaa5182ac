//! The driver of devices, as this room needs it: memory, streams and events.
//!
//! The CUDA driver is one ([`crate::cuda`]); tests have another, which records what it is told.

use crate::fold::PagePair;
use crate::kernel::PageKernel;
use crate::runs::CopyRun;
use stator_kv::arena::Arena;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A name that CUDA gives to memory or to an event, by which another process opens it.
pub type IpcHandle = [u8; 64];

/// Memory that copies are to read or write.
#[derive(Debug)]
pub enum MemorySource {
    /// The whole arena. The driver pins its pages, so all of it is taken from the system at once.
    Arena(Arc<Arena>),
    /// An allocation of another process on the same device, by its handle.
    Ipc {
        /// The handle of the allocation.
        handle: IpcHandle,
        /// Bytes of the allocation, at least.
        bytes: usize,
    },
    /// An allocation of another process on the same device, by a file that its driver exported.
    File {
        /// The file.
        file: OwnedFd,
        /// Bytes of the allocation, as it was made.
        bytes: usize,
    },
    /// New memory of the device.
    Device {
        /// Bytes.
        bytes: usize,
    },
}

/// Memory that a driver knows. It stays valid until the driver detaches it, whatever becomes of this
/// value, so copies that still run have something to run on.
#[derive(Debug)]
pub struct Attachment {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: AttachmentKind,
}

/// Origin of attached memory, which decides how it is detached.
#[derive(Debug)]
pub(crate) enum AttachmentKind {
    /// Registered; the arena is mapped as long as it is here.
    Arena(#[expect(dead_code, reason = "keeps the mapping")] Arc<Arena>),
    /// Opened by a handle.
    Ipc,
    /// Imported from a file, and mapped at addresses of this many bytes.
    File {
        /// Bytes from the first address to the last.
        reserved: usize,
    },
    /// Allocated.
    Device,
}

impl Attachment {
    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is memory of the host.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, AttachmentKind::Arena(_))
    }
}

/// A driver of one device.
pub trait Driver: Debug + Send + Sync + 'static {
    /// A stream of copies.
    type Lane: DriverLane;

    /// Makes memory known to the driver.
    ///
    /// # Errors
    ///
    /// The driver refuses, or the memory is smaller than said.
    fn attach(&self, source: MemorySource) -> Result<Attachment, DriverError>;

    /// Forgets memory, after all copies of this process have ended.
    ///
    /// # Errors
    ///
    /// The driver refuses, or a copy failed.
    fn detach(&self, attachment: Attachment) -> Result<(), DriverError>;

    /// Makes a stream, whose copies run in order, beside the copies of other streams.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    fn lane(&self) -> Result<Self::Lane, DriverError>;

    /// Lets copies of this device go to memory of another one without the host's.
    ///
    /// # Errors
    ///
    /// The devices have no such way, or the driver refuses.
    fn reach(&self, other: &Self) -> Result<(), DriverError>;

    /// Copies runs to memory `there`, on another device that was [reached](Self::reach), on a lane of
    /// this one.
    ///
    /// # Errors
    ///
    /// As for [`DriverLane::copy`].
    fn copy_across(
        &self,
        lane: &Self::Lane,
        from: &Attachment,
        to: &Attachment,
        there: &Self,
        runs: &[CopyRun],
    ) -> Result<(), DriverError>;

    /// Opens an event of another process, by its handle.
    ///
    /// # Errors
    ///
    /// There is no such event on this device.
    fn foreign_fence(
        &self,
        handle: IpcHandle,
    ) -> Result<<Self::Lane as DriverLane>::Fence, DriverError>;
}

/// A stream of copies. Calls return at once; the device works in the order of the calls.
pub trait DriverLane: Debug + Send + 'static {
    /// A point in a stream.
    type Fence: DriverFence;

    /// Copies runs, in any order among themselves.
    ///
    /// # Errors
    ///
    /// A run ends behind its memory, or the driver refuses. Some runs may be copied nevertheless.
    fn copy(&self, from: &Attachment, to: &Attachment, runs: &[CopyRun])
    -> Result<(), DriverError>;

    /// Copies pages by a kernel, at most [`crate::kernel::PAIRS_MAX`].
    ///
    /// # Errors
    ///
    /// The kernel's pages end behind their memory, there are too many, or the driver refuses.
    fn convert(
        &self,
        from: &Attachment,
        to: &Attachment,
        kernel: &PageKernel,
        pairs: &[PagePair],
    ) -> Result<(), DriverError>;

    /// Marks the end of all work so far.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    fn fence(&self) -> Result<Self::Fence, DriverError>;

    /// Lets later work of this stream begin only after the fence.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    fn wait_for(&self, fence: &Self::Fence) -> Result<(), DriverError>;
}

/// A point in a stream.
pub trait DriverFence: Debug + Send + 'static {
    /// Whether all work before it is done.
    ///
    /// # Errors
    ///
    /// Some of the work failed.
    fn is_over(&self) -> Result<bool, DriverError>;

    /// Waits, without using a processor, until all work before it is done.
    ///
    /// # Errors
    ///
    /// Some of the work failed.
    fn wait(&self) -> Result<(), DriverError>;
}

/// Refusal of a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// A call failed.
    #[error("{call}: {name} ({code})")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// The driver's name of the error.
        name: String,
        /// The driver's number of the error.
        code: u32,
    },
    /// A copy would leave its memory.
    #[error("a copy up to byte {end} of a memory of {bytes}")]
    Beyond {
        /// End of the copy.
        end: usize,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// Too many pages for one kernel.
    #[error("{pages} pages in one kernel, the limit is {limit}")]
    Pages {
        /// Pages.
        pages: usize,
        /// Most pages.
        limit: usize,
    },
    /// Two devices have no way to each other's memory.
    #[error("the devices have no way to each other's memory")]
    Apart,
    /// An address is not aligned as the kernel needs.
    #[error("a kernel for memory at {address:#x}, which is no multiple of 16")]
    Unaligned {
        /// The address.
        address: u64,
    },
}

/// Checks that runs stay within both memories.
///
/// # Errors
///
/// One does not.
pub(crate) fn check_runs(
    from: &Attachment,
    to: &Attachment,
    runs: &[CopyRun],
) -> Result<(), DriverError> {
    for run in runs {
        check_end(from, run.from.saturating_add(run.bytes))?;
        check_end(to, run.to.saturating_add(run.bytes))?;
    }
    Ok(())
}

/// Checks that a copy up to `end` stays within a memory.
///
/// # Errors
///
/// The copy ends behind the memory.
pub(crate) fn check_end(memory: &Attachment, end: usize) -> Result<(), DriverError> {
    let bytes = memory.bytes;
    if end > bytes { Err(DriverError::Beyond { end, bytes }) } else { Ok(()) }
}
