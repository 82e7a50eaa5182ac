//! Memory that a file and other processes share.
#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ptr::{NonNull, null_mut};

/// A mapping of a whole file.
///
/// The protocol that makes its copies sound, whatever other threads and processes do:
/// - The memory is never the target of a Rust reference. Bytes go in and out by copies from and to
///   memory that is the caller's alone, so a write at the wrong time spoils bytes and nothing else.
/// - Within this process a slot has one writer at a time, and ready slots are read-only until they
///   are free: the block store hands slots out so, under its lock, which also orders the copies of
///   one holder before those of the next.
/// - The file cannot shrink (a seal says so), hence no access behind its end can happen.
#[derive(Debug)]
pub(super) struct Mapping {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to no thread; what threads may do with its bytes is said above.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file, to read and write. It takes no memory yet.
    pub(super) fn new(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: asks for addresses that nothing has yet.
        let first = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, file, 0)? };
        let first = NonNull::new(first.cast()).expect("no mapping is at address 0");
        Ok(Self { first, bytes })
    }

    /// Asks the system for huge pages, and to leave the memory out of core dumps.
    #[cfg(target_os = "linux")]
    pub(super) fn advise(&self, is_huge: bool) {
        use rustix::mm::{Advice, madvise};
        let advice = [(Advice::LinuxDontDump, true), (Advice::LinuxHugepage, is_huge)];
        for (advice, _) in advice.into_iter().filter(|(_, wanted)| *wanted) {
            // SAFETY: the mapping is ours, and neither advice changes what is in it. A system that
            // knows an advice not refuses it, and all stays as it is.
            let _ = unsafe { madvise(self.first.as_ptr().cast(), self.bytes, advice) };
        }
    }

    /// The address of some of the bytes.
    pub(super) fn address(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes).expect("no range ends behind the last address");
        assert!(end <= self.bytes, "{offset}..{end} of {}", self.bytes);
        // SAFETY: within the mapping, as was asserted.
        unsafe { self.first.add(offset).as_ptr() }
    }

    /// Writes bytes to a file or a socket; returns how many.
    pub(super) fn write_to(&self, offset: usize, bytes: usize, to: impl AsFd) -> io::Result<usize> {
        let from = self.address(offset, bytes);
        // SAFETY: all bytes are within the mapping. The system reads them, as other processes do.
        let written = unsafe { libc::write(to.as_fd().as_raw_fd(), from.cast(), bytes) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Reads bytes from a file or a socket; returns how many.
    pub(super) fn read_from(
        &self,
        offset: usize,
        bytes: usize,
        from: impl AsFd,
    ) -> io::Result<usize> {
        let to = self.address(offset, bytes);
        // SAFETY: all bytes are within the mapping. The system writes them for the caller, who is
        // the slot's one writer.
        let read = unsafe { libc::read(from.as_fd().as_raw_fd(), to.cast(), bytes) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Copies bytes in.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.address(offset, bytes.len());
        // SAFETY: both are as long as that. `bytes` is a reference, hence not in the mapping. The
        // caller is the slot's one writer.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes out.
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.address(offset, bytes.len());
        // SAFETY: both are as long as that. `bytes` is a reference, hence not in the mapping. No
        // other thread writes the slot meanwhile.
        unsafe { copy(from, bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nobody uses addresses of it who does not have `self`.
        let unmapped = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Copies bytes, in small pieces where one large copy is slow.
///
/// Some processors copy at a quarter of their speed if the target is a few bytes further within its
/// page than the source: their instruction for large copies takes each store for one to the next
/// load. Copies from a slot to a large vector are so, because allocators put 16 bytes before it.
///
/// # Safety
///
/// The conditions of [`std::ptr::copy_nonoverlapping`].
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    let ahead = to.addr().wrapping_sub(from.addr()) % 4096;
    // Copies of less than 2 KiB, and those around the caches, are made without that instruction.
    let is_slow = (1..64).contains(&ahead) && bytes < 1 << 20;
    let piece = if is_slow { 1024 } else { bytes.max(1) };
    for at in (0..bytes).step_by(piece) {
        // SAFETY: as the caller vouches; a piece ends within both.
        unsafe { to.add(at).copy_from_nonoverlapping(from.add(at), piece.min(bytes - at)) }
    }
}
