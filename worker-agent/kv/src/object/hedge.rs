//! When a read is asked for a second time, because its answer is late.

use std::time::Duration;

/// Times that are remembered.
const WINDOW: usize = 128;
/// Fewer times than these tell nothing.
const KNOWN: usize = 16;
/// Wait while too few times are known.
const UNKNOWN_WAIT: Duration = Duration::from_millis(500);
/// Shortest wait: below it a second request costs more than it saves.
const WAIT_MIN: Duration = Duration::from_millis(2);
/// Reads for which one second request is allowed, so that a slow bucket does not get twice the load.
const READS_PER_HEDGE: u32 = 10;
/// Most second requests that are saved up.
const SAVED_MAX: u32 = 8;

/// Times from asking to the first byte of recent reads, and how many second requests are allowed.
pub(crate) struct Hedge {
    times: Vec<Duration>,
    next: usize,
    /// Saved-up requests, in parts of [`READS_PER_HEDGE`].
    credit: u32,
}

impl Default for Hedge {
    fn default() -> Self {
        Self { times: Vec::new(), next: 0, credit: SAVED_MAX * READS_PER_HEDGE }
    }
}

impl Hedge {
    /// A read begins; returns how long it waits before it is asked for again: the 95th percentile
    /// of recent times.
    pub(crate) fn begin(&mut self) -> Duration {
        self.credit = (self.credit + 1).min(SAVED_MAX * READS_PER_HEDGE);
        if self.times.len() < KNOWN {
            return UNKNOWN_WAIT;
        }
        let mut times = self.times.clone();
        let at = times.len() * 95 / 100;
        let (_, wait, _) = times.select_nth_unstable(at);
        (*wait).max(WAIT_MIN)
    }

    /// Whether a second request is allowed, which it uses up.
    pub(crate) fn spend(&mut self) -> bool {
        let is_allowed = self.credit >= READS_PER_HEDGE;
        if is_allowed {
            self.credit -= READS_PER_HEDGE;
        }
        is_allowed
    }

    /// A read's first byte came after `time`.
    pub(crate) fn answered(&mut self, time: Duration) {
        if self.times.len() < WINDOW {
            self.times.push(time);
        } else {
            self.times[self.next] = time;
            self.next = (self.next + 1) % WINDOW;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_the_95th_percentile_of_recent_times() {
        let ms = Duration::from_millis;
        let mut hedge = Hedge::default();
        assert_eq!(hedge.begin(), UNKNOWN_WAIT);
        (1..=100).for_each(|time| hedge.answered(ms(time)));
        assert_eq!(hedge.begin(), ms(96));
        (0..WINDOW).for_each(|_| hedge.answered(ms(0)));
        assert_eq!(hedge.begin(), WAIT_MIN, "old times are forgotten");
    }

    #[test]
    fn one_read_in_ten_is_asked_for_twice_in_the_long_run() {
        let mut hedge = Hedge::default();
        let second = (0..1_000)
            .filter(|_| {
                hedge.begin();
                hedge.spend()
            })
            .count();
        assert!((100..=100 + SAVED_MAX as usize).contains(&second), "{second}");
    }
}
