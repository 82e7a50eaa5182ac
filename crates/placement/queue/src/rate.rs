//! Drain rate of the queue.

use crate::bounds::QueueUsage;
use std::time::Duration;

/// Waiting time that must have been seen before a rate is taken from it.
const SEEN_MIN_S: f64 = 0.1;
/// Longest wait that is told apart from never.
const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// Rate at which requests leave the queue for a worker, per second in which anything waited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drain {
    /// Requests per second.
    pub requests_per_s: f64,
    /// Tokens of prompts per second.
    pub tokens_per_s: f64,
}

impl Drain {
    /// Time until `waiting` has drained, by requests or by tokens, the longer of both.
    pub(crate) fn time(&self, waiting: QueueUsage) -> Duration {
        let seconds = |count: u64, per_s: f64| if count == 0 { 0.0 } else { count as f64 / per_s };
        let by_requests = seconds(waiting.requests, self.requests_per_s);
        let by_tokens = seconds(waiting.tokens, self.tokens_per_s);
        // Nothing ever drained: the division gave infinity.
        Duration::try_from_secs_f64(by_requests.max(by_tokens)).unwrap_or(WAIT_MAX).min(WAIT_MAX)
    }
}

/// Measures the rate at which the queue drains, with older times weighing exponentially less.
///
/// Only time in which something waits counts: dispatching little because little is there says
/// nothing about how much could be dispatched.
#[derive(Debug)]
pub(crate) struct DrainMeter {
    window_s: f64,
    /// Until when it has been measured, in nanoseconds.
    now: u64,
    /// Seconds, requests and tokens seen, weighted.
    seconds: f64,
    requests: f64,
    tokens: f64,
}

impl DrainMeter {
    pub(crate) fn new(window: Duration) -> Self {
        let window_s = window.as_secs_f64();
        Self { window_s, now: 0, seconds: 0.0, requests: 0.0, tokens: 0.0 }
    }

    /// Time went by, with something waiting or not.
    pub(crate) fn advance(&mut self, now: u64, waiting: bool) {
        let seconds = now.saturating_sub(self.now) as f64 / 1e9;
        self.now = self.now.max(now);
        if waiting && seconds > 0.0 {
            let rest = (-seconds / self.window_s).exp();
            self.seconds = self.seconds * rest + self.window_s * (1.0 - rest);
            self.requests *= rest;
            self.tokens *= rest;
        }
    }

    pub(crate) fn dispatched(&mut self, tokens: u32) {
        self.requests += 1.0;
        self.tokens += f64::from(tokens);
    }

    /// The rate; `None` before enough was seen.
    pub(crate) fn drain(&self) -> Option<Drain> {
        (self.seconds >= SEEN_MIN_S).then(|| Drain {
            requests_per_s: self.requests / self.seconds,
            tokens_per_s: self.tokens / self.seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn meter() -> DrainMeter {
        DrainMeter::new(Duration::from_secs(10))
    }

    #[track_caller]
    fn check(meter: &DrainMeter, requests_per_s: f64, tokens_per_s: f64) {
        let drain = meter.drain().expect("enough was seen");
        assert!((drain.requests_per_s / requests_per_s - 1.0).abs() < 0.01, "{drain:?}");
        assert!((drain.tokens_per_s / tokens_per_s - 1.0).abs() < 0.01, "{drain:?}");
    }

    #[test]
    fn a_steady_drain_is_measured_from_its_first_second_on() {
        let mut meter = meter();
        for tick in 1..=1000 {
            meter.advance(tick * 10 * MS, true);
            meter.dispatched(7);
            if tick >= 100 {
                check(&meter, 100.0, 700.0);
            }
        }
    }

    #[test]
    fn time_in_which_nothing_waits_does_not_count() {
        let mut meter = meter();
        for tick in 1..=1000 {
            meter.advance(tick * 1000 * MS, tick % 2 == 0);
            meter.advance(tick * 1000 * MS + 1, false);
            if tick % 2 == 0 {
                meter.dispatched(3);
            }
        }
        // One second out of two counts, and the dispatch at its end weighs a little more.
        check(&meter, 1.05, 3.15);
    }

    #[test]
    fn nothing_is_known_at_first_and_a_standstill_is() {
        let mut meter = meter();
        meter.dispatched(5);
        assert_eq!(meter.drain(), None);
        meter.advance(1_000_000 * MS, true);
        let drain = meter.drain().expect("a thousand seconds were seen");
        let one = QueueUsage { requests: 1, bytes: 0, tokens: 0 };
        assert_eq!(drain.time(one), WAIT_MAX);
        assert_eq!(drain.time(QueueUsage::default()), Duration::ZERO);
    }

    #[test]
    fn the_longer_of_requests_and_tokens_counts() {
        let drain = Drain { requests_per_s: 10.0, tokens_per_s: 100.0 };
        let time = |requests, tokens| drain.time(QueueUsage { requests, bytes: 0, tokens });
        assert_eq!(time(20, 100), Duration::from_secs(2));
        assert_eq!(time(20, 300), Duration::from_secs(3));
    }
}
