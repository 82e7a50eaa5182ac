//! Limits of an engine's life.

use std::time::Duration;

/// Limits for giving an engine up and for restarting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Longest time until the engine is ready.
    pub start_timeout: Duration,
    /// Longest time without progress while requests run, of any rank.
    pub hang_timeout: Duration,
    /// Longest time without health after the engine was ready.
    pub unhealthy_timeout: Duration,
    /// Longest wait for the end of a killed process. The kernel may hold one for ever, for example
    /// while its device or its disk does not answer.
    pub kill_timeout: Duration,
    /// Pause before the first restart; it doubles with each failure that follows.
    pub pause_min: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// Time of health after which earlier failures are forgotten.
    pub forget_after: Duration,
    /// Restarts in a row before the engine is given up; `None` for no limit.
    pub restarts: Option<u32>,
}

impl Default for Policy {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            start_timeout: seconds(1800),
            hang_timeout: seconds(120),
            unhealthy_timeout: seconds(15),
            kill_timeout: seconds(60),
            pause_min: seconds(1),
            pause_max: seconds(60),
            forget_after: seconds(300),
            restarts: None,
        }
    }
}
