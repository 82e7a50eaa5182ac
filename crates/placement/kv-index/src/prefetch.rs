//! Telling the processor what memory is wanted next.
#![allow(unsafe_code)]

/// Starts to bring the cache line that begins at `at` into the nearest cache, and waits for
/// nothing. No effect where it is not known how to.
#[inline(always)]
pub(crate) fn prefetch<T>(at: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which every x86-64 has, reads nothing and cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint, which every AArch64 has, reads nothing and cannot fault.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{at}]",
            at = in(reg) std::ptr::from_ref(at),
            options(nostack, preserves_flags, readonly)
        );
    }
    let _ = at;
}
