//! Atomics of the lock-free parts: the standard ones, or loom's where those parts are modelled.

#[cfg(stator_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(stator_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};
