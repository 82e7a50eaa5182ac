//! Atomics and locks of the lock-free parts: from the standard library and parking_lot or, in
//! models, from loom.

#[cfg(stator_loom)]
pub(crate) use self::loomed::Mutex;
#[cfg(stator_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(stator_loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(stator_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(stator_loom)]
mod loomed {
    use loom::sync::MutexGuard;

    /// A lock of loom's with the face of parking_lot's.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no holder panics")
        }
    }
}
