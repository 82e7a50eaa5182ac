//! What the store knows of the tiers below host memory.

use super::action::TierId;
use super::settings::TierSettings;
use crate::Now;
use crate::tier::TierError;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::VecDeque;
use std::time::Duration;

/// Failures in a row after which a tier is left alone for a while.
const FAILURES_MAX: u32 = 3;
/// Time for which a tier is left alone that keeps failing.
const BREAK: Duration = Duration::from_secs(30);
/// Time for which nothing is written to a tier that has no room.
const PAUSE_FULL: Duration = Duration::from_secs(10);
/// Time for which nothing is written to a tier that has too much queued.
const PAUSE_BUSY: Duration = Duration::from_millis(100);

/// A tier below host memory.
#[derive(Debug)]
pub(super) struct TierState {
    pub(super) settings: TierSettings,
    pub(super) reads: usize,
    pub(super) writes: usize,
    /// Blocks to write, oldest first.
    backlog: VecDeque<BlockName>,
    failures: u32,
    broken_until: Now,
    paused_until: Now,
}

impl TierState {
    pub(super) fn new(settings: TierSettings) -> Self {
        Self {
            settings,
            reads: 0,
            writes: 0,
            backlog: VecDeque::new(),
            failures: 0,
            broken_until: Now::ZERO,
            paused_until: Now::ZERO,
        }
    }

    pub(super) fn medium(&self) -> Medium {
        self.settings.medium
    }

    pub(super) fn takes_read(&self, now: Now) -> bool {
        now >= self.broken_until && self.reads < self.settings.reads_max
    }

    pub(super) fn takes_write(&self, now: Now) -> bool {
        let open = now >= self.broken_until && now >= self.paused_until;
        open && self.writes < self.settings.writes_max
    }

    /// Queues a block to be written.
    pub(super) fn offer(&mut self, name: BlockName) {
        if self.backlog.len() >= self.settings.backlog_max {
            self.backlog.pop_front();
        }
        self.backlog.push_back(name);
    }

    pub(super) fn next_write(&mut self) -> Option<BlockName> {
        self.backlog.pop_front()
    }

    pub(super) fn drop_backlog(&mut self) {
        self.backlog.clear();
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Leaves the tier alone for as long as an error asks for.
    pub(super) fn failed(&mut self, error: TierError, now: Now) {
        match error {
            TierError::Missing | TierError::Corrupt => {}
            TierError::Busy => self.paused_until = now + PAUSE_BUSY,
            TierError::Full => self.paused_until = now + PAUSE_FULL,
            TierError::Failed => {
                self.failures += 1;
                if self.failures >= FAILURES_MAX {
                    // The first call after the break is a trial: one more failure, one more break.
                    self.failures = FAILURES_MAX - 1;
                    self.broken_until = now + BREAK;
                }
            }
        }
    }
}

/// The tiers whose bits are set, nearest first.
pub(super) fn tiers_of(bits: u8) -> impl Iterator<Item = TierId> {
    (0..8).map(TierId).filter(move |tier| bits & tier.bit() != 0)
}
