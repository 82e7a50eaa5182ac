//! State of a driver that others may read.

use std::sync::atomic::{AtomicBool, Ordering};

/// State of a driver that others may read.
#[derive(Debug, Default)]
pub(crate) struct Status {
    dead: AtomicBool,
}

impl Status {
    /// Whether the engine has failed.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// The engine has failed.
    pub(super) fn die(&self) {
        self.dead.store(true, Ordering::Release);
    }
}
