//! A range of addresses from the system, in which memory is only where something was written.
#![allow(unsafe_code)]

use crate::table::Bucket;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};

/// Bytes of a huge page, where pages are 4 KiB otherwise. Elsewhere the system refuses to make
/// any, and all stays as it is.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// `MADV_COLLAPSE` of Linux 6.1, which not every `libc` has.
const COLLAPSE: libc::c_int = 25;

/// Buckets in a row, free at first, from a multiple of [`HUGE_PAGE`] on.
pub(crate) struct MemoryMapping {
    first: NonNull<Bucket>,
    buckets: usize,
    /// All that was mapped: more than is used, since the system aligns to small pages only.
    address: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: a mapping belongs to no thread, and gives out shared buckets only.
unsafe impl Send for MemoryMapping {}
// SAFETY: as above.
unsafe impl Sync for MemoryMapping {}

impl MemoryMapping {
    /// Addresses for so many buckets; `None` if the system does not give as many.
    pub(crate) fn reserve(buckets: usize) -> Option<Self> {
        let bytes = buckets.checked_mul(size_of::<Bucket>())?.checked_add(HUGE_PAGE)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // Not to be counted as memory in use; miri does not know of that.
        let uncounted = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | uncounted;
        // SAFETY: asks for addresses that nothing has yet.
        let address = unsafe { libc::mmap(null_mut(), bytes, access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return None;
        }
        let before = address.addr().next_multiple_of(HUGE_PAGE) - address.addr();
        let first = NonNull::new(address.wrapping_byte_add(before).cast())?;
        Some(Self { first, buckets, address, bytes })
    }

    /// Some of the buckets.
    pub(crate) fn buckets(&self, range: Range<usize>) -> &[Bucket] {
        assert!(range.start <= range.end && range.end <= self.buckets, "{range:?}");
        // SAFETY: within the mapping, which lasts as long as `self`. It began as zeros, which are
        // free buckets, and is only ever changed by the atomics in them.
        unsafe { std::slice::from_raw_parts(self.first.add(range.start).as_ptr(), range.len()) }
    }

    /// Moves buckets that fill a huge page into one, if the system has one left; else it may do
    /// that later.
    pub(crate) fn join(&self, range: Range<usize>) {
        let buckets = self.buckets(range);
        let (address, bytes) = (buckets.as_ptr().cast_mut().cast(), size_of_val(buckets));
        if cfg!(miri) {
            return;
        }
        // SAFETY: neither changes what is in memory, and both are given memory of our own.
        unsafe {
            if libc::madvise(address, bytes, COLLAPSE) != 0 {
                libc::madvise(address, bytes, libc::MADV_HUGEPAGE);
            }
        }
    }
}

impl Drop for MemoryMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nobody has any of it who does not have `self`.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn a_mapping_is_free_buckets_from_a_huge_page_on() {
        let huge = HUGE_PAGE / size_of::<Bucket>();
        let mapping = MemoryMapping::reserve(huge + 100).expect("the system has 4 MiB");
        let all = mapping.buckets(0..huge + 100);
        assert!(all.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        assert_eq!(all.len(), huge + 100);
        let ends = [&all[..100], &all[huge..]];
        assert_eq!(ends.map(|end| table::blocks(end).count()), [0, 0]);
    }

    #[cfg_attr(miri, ignore = "it tries and ends")]
    #[test]
    fn more_addresses_than_there_are_are_not_given() {
        assert!(
            MemoryMapping::reserve(usize::MAX).is_none()
                && MemoryMapping::reserve(1 << 50).is_none()
        );
    }

    #[cfg_attr(miri, ignore = "pages are never joined there")]
    #[test]
    fn joined_pages_keep_what_is_in_them() {
        let huge = HUGE_PAGE / size_of::<Bucket>();
        let mapping = MemoryMapping::reserve(huge).expect("the system has 4 MiB");
        let all = mapping.buckets(0..huge);
        all.iter().for_each(|bucket| bucket.fill_first(7));
        mapping.join(0..huge);
        assert_eq!(table::blocks(all).count(), huge);
    }

    #[test]
    #[should_panic(expected = "5..11")]
    fn what_is_beyond_a_mapping_is_refused() {
        let mapping = MemoryMapping::reserve(10).expect("the system has 2 MiB");
        mapping.buckets(5..11);
    }
}
