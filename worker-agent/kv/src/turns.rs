//! Short turns on the processor for threads that an engine waits for.
//!
//! Such a thread works for microseconds at a time and sleeps in between. Linux 6.12 and newer lets a
//! thread that asks for short turns run sooner once it wakes, beside others that compute for long. Its
//! share of the processor stays the same, so that no privilege is needed.

/// Longest turn, in nanoseconds: the shortest that Linux grants.
#[cfg(target_os = "linux")]
const TURN_NS: u64 = 100_000;

/// Asks for short turns of this thread. Where the system has no such thing, or another policy was
/// chosen for the process, all stays as it is.
#[cfg(target_os = "linux")]
pub(crate) fn shorten() {
    match linux::shorten(TURN_NS) {
        Ok(()) => {}
        Err(error) => tracing::debug!(%error, "the system grants no short turns"),
    }
}

/// Does nothing.
#[cfg(not(target_os = "linux"))]
pub(crate) fn shorten() {}

#[cfg(target_os = "linux")]
mod linux {
    #![allow(unsafe_code)]

    use std::io;

    const SIZE: libc::c_uint = size_of::<libc::sched_attr>() as libc::c_uint;

    /// Sets the length of this thread's turns, and leaves its policy and priority.
    pub(super) fn shorten(turn_ns: u64) -> io::Result<()> {
        let mut own = attributes()?;
        if own.sched_policy == libc::SCHED_OTHER as u32 {
            own.sched_runtime = turn_ns;
            // SAFETY: the kernel reads the attributes, which say how large they are. Zero is this thread.
            succeeded(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const own, 0) })?;
        }
        Ok(())
    }

    /// The scheduling of this thread.
    pub(super) fn attributes() -> io::Result<libc::sched_attr> {
        // SAFETY: these are numbers, all of which may be zero.
        let mut own: libc::sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes `SIZE` bytes at most, which are there.
        succeeded(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut own, SIZE, 0) })?;
        own.size = SIZE;
        Ok(own)
    }

    fn succeeded(result: libc::c_long) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_threads_turns_are_short_and_the_rest_stays() {
        let before = linux::attributes().unwrap();
        shorten();
        let after = linux::attributes().unwrap();
        // A kernel before 6.12 ignores the wish, or refuses it.
        assert!([before.sched_runtime, TURN_NS].contains(&after.sched_runtime));
        assert_eq!(
            (after.sched_policy, after.sched_nice, after.sched_flags),
            (before.sched_policy, before.sched_nice, before.sched_flags)
        );
    }
}
