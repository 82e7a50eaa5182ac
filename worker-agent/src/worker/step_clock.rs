//! Time of simulated steps.

use std::time::Duration;
use tokio::time::Instant;

/// Longest lag of simulated time; beyond it the driver stops catching up.
const MAX_LAG: Duration = Duration::from_millis(100);

/// Waits out simulated steps so that their sum is right, though each wait is only as exact as the
/// timer: a step that woke late shortens the next.
#[derive(Debug, Default)]
pub(super) struct StepClock {
    /// End of the last step as simulated; `None` after idleness.
    end: Option<Instant>,
}

impl StepClock {
    /// Waits until a step that began at the end of the last one is over.
    pub(super) async fn pass(&mut self, duration: Duration) {
        if duration.is_zero() {
            // The step took its own time; the task must still let others run.
            tokio::task::yield_now().await;
            return;
        }
        let now = Instant::now();
        let begin = self.end.filter(|end| now - *end <= MAX_LAG).unwrap_or(now);
        let end = begin + duration;
        self.end = Some(end);
        if end > now {
            tokio::time::sleep_until(end).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}
