//! Attempts to follow a feed, over any transport: how long one may take, and the waits between them.

use std::time::Duration;

/// Longest wait for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Waits between attempts to connect, from the first to the longest.
pub(crate) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_secs(1));

/// The end of an attempt to follow a feed, with a reason.
#[derive(Debug)]
pub enum FeedLoss {
    /// The subscription stood, and then broke.
    Connected(String),
    /// The publisher could not be subscribed to.
    NeverConnected(String),
}

/// Attempts to follow one feed. The waits between them grow while none succeeds.
#[derive(Debug)]
pub struct Attempts<'a> {
    endpoint: &'a str,
    wait: Duration,
}

impl<'a> Attempts<'a> {
    /// Attempts to follow the publisher at `endpoint`, none made yet.
    pub fn new(endpoint: &'a str) -> Self {
        Self { endpoint, wait: BACKOFF.0 }
    }

    /// Logs an attempt that ended, and waits before the next.
    pub async fn failed(&mut self, lost: FeedLoss) {
        let endpoint = self.endpoint;
        match lost {
            FeedLoss::Connected(reason) => {
                tracing::info!(endpoint, reason, "lost an event feed");
                self.wait = BACKOFF.0;
            }
            FeedLoss::NeverConnected(reason) => {
                tracing::debug!(endpoint, reason, "cannot subscribe");
            }
        }
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(BACKOFF.1);
    }
}
