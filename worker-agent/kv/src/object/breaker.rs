//! Stops asking a bucket that does not answer.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open the breaker.
const FAILURES: u32 = 3;

/// Open for a while after several failures in a row. Then it lets one request through: if that one
/// succeeds the breaker closes, if it fails the breaker stays open for as long again.
pub(crate) struct Breaker {
    open_for: Duration,
    failures: u32,
    /// When the next request may go, while the breaker is open.
    retry_at: Option<Instant>,
}

impl Breaker {
    /// A closed breaker.
    pub(crate) fn new(open_for: Duration) -> Self {
        Self { open_for, failures: 0, retry_at: None }
    }

    /// Whether a request may go now.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        match self.retry_at {
            Some(at) if now < at => false,
            Some(_) => {
                // This request is the trial. Others wait for its end, or for as long again.
                self.retry_at = Some(now + self.open_for);
                true
            }
            None => true,
        }
    }

    /// A request was answered, if only with "there is no such object". Returns whether the breaker
    /// was open.
    pub(crate) fn success(&mut self) -> bool {
        self.failures = 0;
        self.retry_at.take().is_some()
    }

    /// A request was not answered, or by a server in trouble. Returns whether this opened the
    /// breaker.
    pub(crate) fn failure(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        let was_open = self.retry_at.is_some();
        if self.failures >= FAILURES {
            self.retry_at = Some(now + self.open_for);
        }
        !was_open && self.retry_at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_failures_in_a_row_and_tries_once_a_while() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut breaker = Breaker::new(30 * second);
        assert!(!breaker.failure(start));
        assert!(!breaker.failure(start));
        assert!(!breaker.success(), "it was not open");
        assert!(!breaker.failure(start) && !breaker.failure(start) && breaker.allow(start));
        assert!(breaker.failure(start), "the third in a row");
        assert!(!breaker.failure(start), "it is open already");
        assert!(!breaker.allow(start + 29 * second));
        assert!(breaker.allow(start + 30 * second));
        assert!(!breaker.allow(start + 31 * second), "one at a time");
        breaker.failure(start + 32 * second);
        assert!(!breaker.allow(start + 61 * second));
        assert!(breaker.allow(start + 62 * second));
        assert!(breaker.success());
        assert!(breaker.allow(start + 62 * second) && breaker.allow(start + 62 * second));
    }
}
