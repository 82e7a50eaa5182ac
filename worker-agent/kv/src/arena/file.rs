//! The file behind an arena: memory without a name, which goes when its last user goes.

use super::mapping::Mapping;
use rustix::fd::OwnedFd;
use std::io;

#[cfg(target_os = "linux")]
pub(super) use linux::{check, create};

#[cfg(not(target_os = "linux"))]
pub(super) fn create(_: usize) -> io::Result<(OwnedFd, Mapping)> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "an arena needs Linux's memory files"))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn check(_: &OwnedFd, _: usize) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "an arena needs Linux's memory files"))
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Mapping, OwnedFd, io};
    use rustix::fs::{
        MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
    };
    use std::fs;

    /// A file of so many bytes that keeps its size, and this process's mapping of it.
    pub(in crate::arena) fn create(bytes: usize) -> io::Result<(OwnedFd, Mapping)> {
        let reserved = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if let Some(page) = reserved_page(&reserved, bytes) {
            // Others may take the reserved pages first: then small ones do.
            match sized(MemfdFlags::HUGETLB, bytes.next_multiple_of(page)) {
                Ok(made) => return Ok(made),
                Err(error) => tracing::debug!(%error, "the reserved huge pages are not free"),
            }
        }
        let made = sized(MemfdFlags::empty(), bytes)?;
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        let setting = setting.unwrap_or_default();
        let is_huge = ["[always]", "[within_size]", "[advise]", "[force]"]
            .iter()
            .any(|huge| setting.contains(huge));
        made.1.advise(is_huge);
        if !is_huge {
            tracing::info!(
                bytes,
                "the KV arena is in 4 KiB pages: the system has no huge pages for it"
            );
        }
        Ok(made)
    }

    fn sized(flags: MemfdFlags, bytes: usize) -> io::Result<(OwnedFd, Mapping)> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("stator-kv", flags)?;
        ftruncate(&file, bytes as u64)?;
        // Engines get the file: none of them can resize it under the others, or seal it further.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(&file, bytes)?;
        Ok((file, mapping))
    }

    /// Checks that accesses to the first `bytes` of a file cannot fail.
    pub(in crate::arena) fn check(file: &OwnedFd, bytes: usize) -> io::Result<()> {
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        if size < bytes as u64 || !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            let what = format!("an arena's file of {size} bytes instead of {bytes}, or not sealed");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    }

    /// The size of reserved huge pages, if enough are free for so many bytes.
    pub(in crate::arena) fn reserved_page(meminfo: &str, bytes: usize) -> Option<usize> {
        let number = |key| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse::<usize>().ok()
        };
        let page = number("Hugepagesize:")?.checked_mul(1024).filter(|&page| page > 0)?;
        // Free pages include those that others were promised.
        let free = number("HugePages_Free:")?.saturating_sub(number("HugePages_Rsvd:")?);
        (free >= bytes.div_ceil(page)).then_some(page)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::linux::reserved_page;

    #[test]
    fn huge_pages_are_used_only_if_enough_are_free() {
        let info =
            "HugePages_Free:       10\nHugePages_Rsvd:        4\nHugepagesize:       2048 kB\n";
        assert_eq!(reserved_page(info, 6 * (2 << 20)), Some(2 << 20));
        assert_eq!(reserved_page(info, 6 * (2 << 20) + 1), None);
        assert_eq!(reserved_page("HugePages_Free: many", 1), None);
        assert_eq!(reserved_page("", 1), None);
    }
}
