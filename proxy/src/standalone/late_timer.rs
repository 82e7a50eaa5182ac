//! A timer whose deadline moves on all the time.

use std::pin::Pin;
use std::time::Instant;
use tokio::time::{Sleep, sleep_until};

/// Timer for a deadline that every token moves on. It is set anew when it goes off, and not with
/// every token: setting a timer takes a lock that all streams share.
#[derive(Debug)]
pub(crate) struct LateTimer(Pin<Box<Sleep>>);

impl LateTimer {
    pub(crate) fn new(due: Instant) -> Self {
        Self(Box::pin(sleep_until(due.into())))
    }

    /// Waits until `due`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn wait_until(&mut self, due: Instant) {
        let due = due.into();
        if self.0.deadline() > due {
            self.0.as_mut().reset(due);
        }
        loop {
            self.0.as_mut().await;
            if self.0.deadline() >= due {
                return;
            }
            self.0.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn it_goes_off_at_the_deadline_that_counts_last() {
        let begin = tokio::time::Instant::now();
        let at = |seconds| (begin + Duration::from_secs(seconds)).into_std();
        let mut timer = LateTimer::new(at(10));
        assert!(timeout(Duration::from_secs(1), timer.wait_until(at(30))).await.is_err());
        // A token has come.
        timer.wait_until(at(31)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(31));
        // A deadline that has passed takes no time.
        timer.wait_until(at(31)).await;
        timer.wait_until(at(20)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(31));
        // A deadline may come nearer too.
        assert!(timeout(Duration::from_secs(1), timer.wait_until(at(90))).await.is_err());
        timer.wait_until(at(40)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(40));
    }
}
