//! One request's way through flow control, as metrics see it.

use stator_epp_metrics::{FlowMetrics, FlowOutcome, RequestMetrics, WaitingRequest};
use std::time::{Duration, Instant};

/// A request that came. Dropped before it left, its client is gone.
pub(super) struct Visit<'a> {
    flow: &'a FlowMetrics,
    /// The pool's name in metrics.
    pool: &'a str,
    of: &'a RequestMetrics,
    bytes: u64,
    started: Instant,
    /// Counts it as waiting while it is there.
    waiting: Option<WaitingRequest>,
    over: bool,
}

impl<'a> Visit<'a> {
    /// A request that has just come to a pool, with `bytes` of body.
    pub(super) fn new(
        flow: &'a FlowMetrics,
        pool: &'a str,
        of: &'a RequestMetrics,
        bytes: u64,
    ) -> Self {
        Self { flow, pool, of, bytes, started: Instant::now(), waiting: None, over: false }
    }

    /// Time since the request came.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// The request begins to wait.
    pub(super) fn waits(&mut self) {
        if self.waiting.is_none() {
            self.flow.enqueued(self.of, None, self.age());
            self.waiting = Some(self.flow.waits(self.of, self.pool, self.bytes));
        }
    }

    /// The request leaves.
    pub(super) fn ends(&mut self, outcome: FlowOutcome) {
        let age = self.age();
        if self.waiting.take().is_none() {
            self.flow.enqueued(self.of, Some(outcome), age);
        }
        self.flow.left(self.of, self.pool, outcome, age);
        self.over = true;
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.ends(FlowOutcome::EvictedContextCancelled);
        }
    }
}
