//! Peers that are left alone for a while.

use std::time::Duration;
use tokio::time::Instant;

/// Time without reads after a first failure; it doubles with each one that follows.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time without reads after failures.
const PAUSE_MAX: Duration = Duration::from_secs(32);
/// Time without reads after a peer sent what it must not, or refused.
const SHUNNED: Duration = Duration::from_secs(300);

/// Trust in a peer's answers.
#[derive(Debug, Default)]
pub(super) struct PeerHealth {
    failures: u32,
    until: Option<Instant>,
}

impl PeerHealth {
    /// Whether nothing is read from the peer for now.
    pub(super) fn is_shunned(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// The peer did not answer.
    pub(super) fn failed(&mut self, now: Instant) {
        if !self.is_shunned(now) {
            let pause = PAUSE * 2_u32.saturating_pow(self.failures.min(8));
            self.until = Some(now + pause.min(PAUSE_MAX));
            self.failures += 1;
        }
    }

    /// The peer sent what nobody of the fleet sends, or refused.
    pub(super) fn misbehaved(&mut self, now: Instant) {
        self.until = Some(now + SHUNNED);
    }

    /// The peer sent a block.
    pub(super) fn answered(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_to_a_bound_until_a_block_comes() {
        let mut health = PeerHealth::default();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 32, 32, 32, 32] {
            health.failed(now);
            // Those that were under way fail as well.
            health.failed(now);
            assert!(health.is_shunned(now + Duration::from_millis(seconds * 1000 - 1)));
            now += Duration::from_secs(seconds);
            assert!(!health.is_shunned(now), "{seconds}");
        }
        health.answered();
        health.failed(now);
        assert!(!health.is_shunned(now + PAUSE));
        health.misbehaved(now);
        health.failed(now);
        assert!(health.is_shunned(now + SHUNNED - PAUSE));
        assert!(!health.is_shunned(now + SHUNNED));
    }
}
