//! Calls of the disk tier to the system, with a plain answer where a system lacks one.

use super::format::{PAGE_BYTES, Page};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// The flag that opens a file past the page cache.
pub(super) fn direct_flag() -> OFlags {
    #[cfg(target_os = "linux")]
    return OFlags::DIRECT;
    #[cfg(not(target_os = "linux"))]
    return OFlags::empty();
}

/// Gives a file all its bytes, on disk if the file system can do that.
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            other => return Ok(other?),
        }
    }
    file.set_len(bytes)
}

/// Checks that a file which was opened with [`direct_flag`] takes whole pages, by writing one.
pub(super) fn check_direct(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, StatxFlags, statx};
        // Older kernels do not say; then the page below decides.
        let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
        if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
            let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
            if memory.max(offset) as usize > PAGE_BYTES || offset == 0 {
                let what = format!("direct I/O wants memory at {memory}, offsets at {offset}");
                return Err(io::Error::new(ErrorKind::Unsupported, what));
            }
        }
    }
    if direct_flag().is_empty() {
        return Err(io::Error::new(ErrorKind::Unsupported, "direct I/O needs Linux"));
    }
    let mut page = Page([0x5a; PAGE_BYTES]);
    file.write_all_at(&page.0, 0)?;
    page.0.fill(0);
    file.read_exact_at(&mut page.0, 0)?;
    let is_right = page.0.iter().all(|byte| *byte == 0x5a);
    if is_right { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Starts to write back what is cached of a range, and drops what is written back already: the
/// cache is of more use to others.
pub(super) fn drop_cached(file: &File, offset: u64, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let bytes = std::num::NonZeroU64::new(bytes as u64);
        // An advice that the file system does not take changes nothing.
        let _ = rustix::fs::fadvise(file, offset, bytes, rustix::fs::Advice::DontNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, bytes);
}
