//! The store's view of the tiers below host memory.

use super::action::TierId;
use super::settings::{TierAdmission, TierSettings};
use super::sources::ReadSources;
use super::stats::TierStats;
use super::status::TierStatus;
use crate::Now;
use crate::cost::ReadSpeed;
use crate::policy::AdmissionSelector;
use crate::tier::TierError;
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
/// Time without progress after which a tier with reads in flight gets no more.
const STALL: Duration = Duration::from_secs(2);

/// A tier below host memory.
pub(super) struct TierState {
    pub(super) settings: TierSettings,
    /// Chooses what is written, where that is left to measurement.
    pub(super) admission: Option<AdmissionSelector>,
    pub(super) speed: ReadSpeed,
    /// Sources with costs of their own.
    pub(super) sources: ReadSources,
    pub(super) stats: TierStats,
    /// Blocks that the tier holds.
    pub(super) held: usize,
    /// Writes in flight.
    pub(super) writes: usize,
    /// Whether the tier is left alone because an operator said so.
    pub(super) is_off: bool,
    /// Blocks to write, oldest first.
    backlog: VecDeque<BlockName>,
    budget: WriteBudget,
    failures: u32,
    broken_until: Now,
    paused_until: Now,
}

impl TierState {
    pub(super) fn new(settings: TierSettings, block_bytes: usize, slots: usize) -> Self {
        let admission = match settings.admission {
            TierAdmission::Measured { blocks } => Some(AdmissionSelector::new(slots, blocks)),
            _ => None,
        };
        Self {
            admission,
            budget: WriteBudget::new(settings.write_bytes_per_s, block_bytes),
            settings,
            speed: ReadSpeed::default(),
            sources: ReadSources::default(),
            stats: TierStats::default(),
            held: 0,
            writes: 0,
            is_off: false,
            backlog: VecDeque::new(),
            failures: 0,
            broken_until: Now::ZERO,
            paused_until: Now::ZERO,
        }
    }

    /// Blocks that are written now.
    pub(super) fn admission(&self) -> TierAdmission {
        match &self.admission {
            Some(measured) if measured.is_second_touch() => TierAdmission::SecondTouch,
            Some(_) => TierAdmission::Through,
            None => self.settings.admission,
        }
    }

    /// Whether the tier takes one read more than those in flight and `planned` ones.
    pub(super) fn takes_read(&self, planned: usize, now: Now) -> bool {
        let has_room = self.speed.in_flight() + planned < self.settings.reads_max;
        self.is_open(now) && has_room && !self.speed.is_stalled(STALL, now)
    }

    fn is_open(&self, now: Now) -> bool {
        !self.is_off && now >= self.broken_until
    }

    /// Changes the bytes that may be written in a second.
    pub(super) fn set_write_budget(&mut self, bytes_per_s: Option<u64>, now: Now) {
        self.settings.write_bytes_per_s = bytes_per_s;
        self.budget.set(bytes_per_s, now);
    }

    /// The state for operators.
    pub(super) fn status(&self, now: Now) -> TierStatus {
        TierStatus {
            medium: self.settings.medium,
            held: self.held,
            reads_in_flight: self.speed.in_flight(),
            writes_in_flight: self.writes,
            backlog: self.backlog.len(),
            is_off: self.is_off,
            left_alone: self.broken_until.saturating_sub(now),
            writes_paused: self.paused_until.saturating_sub(now),
            is_stalled: self.speed.is_stalled(STALL, now),
            read_latency: self.speed.latency(),
            read_block: self.speed.block(),
            write_bytes_per_s: self.settings.write_bytes_per_s,
            stats: self.stats.clone(),
        }
    }

    /// Whether the tier takes a write now, which then begins.
    pub(super) fn begin_write(&mut self, now: Now) -> bool {
        let is_open = self.is_open(now) && now >= self.paused_until;
        let takes = is_open && self.writes < self.settings.writes_max && self.budget.take(now);
        self.writes += usize::from(takes);
        takes
    }

    /// Queues a block to be written.
    pub(super) fn offer(&mut self, name: BlockName) {
        if self.backlog.len() >= self.settings.backlog_max {
            self.backlog.pop_front();
            self.stats.not_written += 1;
        }
        self.backlog.push_back(name);
    }

    pub(super) fn first_offered(&self) -> Option<BlockName> {
        self.backlog.front().copied()
    }

    pub(super) fn drop_offered(&mut self) {
        self.backlog.pop_front();
    }

    pub(super) fn clear(&mut self) {
        self.backlog.clear();
        self.held = 0;
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Leaves the tier alone for as long as an error asks for.
    pub(super) fn failed(&mut self, error: TierError, now: Now) {
        match error {
            TierError::Missing | TierError::Corrupt | TierError::Cancelled => {}
            TierError::Busy => self.paused_until = now + PAUSE_BUSY,
            TierError::Full => self.paused_until = now + PAUSE_FULL,
            TierError::Failed => {
                self.failures += 1;
                if self.failures >= FAILURES_MAX {
                    // The first call after the break is a trial: one more failure, one more break.
                    self.failures = FAILURES_MAX - 1;
                    self.broken_until = now + BREAK;
                    self.stats.breaks += 1;
                }
            }
        }
    }
}

/// A token bucket that holds the bytes of one second, and those of one block at least.
#[derive(Debug)]
struct WriteBudget {
    bytes_per_s: Option<u64>,
    block_bytes: f64,
    bytes: f64,
    filled: Now,
}

impl WriteBudget {
    fn new(bytes_per_s: Option<u64>, block_bytes: usize) -> Self {
        let block_bytes = block_bytes as f64;
        let bytes = block_bytes.max(bytes_per_s.unwrap_or(0) as f64);
        Self { bytes_per_s, block_bytes, bytes, filled: Now::ZERO }
    }

    /// Other bytes a second from now on. What was saved up before counts as far as it fits.
    fn set(&mut self, bytes_per_s: Option<u64>, now: Now) {
        self.filled = self.filled.max(now);
        self.bytes_per_s = bytes_per_s;
        self.bytes = self.bytes.min(self.block_bytes.max(bytes_per_s.unwrap_or(0) as f64));
    }

    /// Takes the bytes of a block, if they are there.
    fn take(&mut self, now: Now) -> bool {
        let Some(bytes_per_s) = self.bytes_per_s.map(|bytes| bytes as f64) else { return true };
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        self.filled = self.filled.max(now);
        self.bytes = (self.bytes + passed * bytes_per_s).min(bytes_per_s.max(self.block_bytes));
        let is_there = self.bytes >= self.block_bytes;
        if is_there {
            self.bytes -= self.block_bytes;
        }
        is_there
    }
}

/// The tiers whose bits are set, nearest first.
pub(super) fn tiers_of(bits: u8) -> impl Iterator<Item = TierId> {
    (0..8).map(TierId).filter(move |tier| bits & tier.bit() != 0)
}
