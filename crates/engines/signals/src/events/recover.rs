//! Restarts of a feed: the part of a replay to believe, and the pace of attempts.

use std::time::Duration;
use tokio::time::Instant;

/// Shortest and longest wait before starting over; the first attempt waits for nothing.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));

/// The last batches without a gap among them, and the number after them. Batches before a gap, or
/// before an unreadable one, do not describe the present.
pub(super) fn unbroken_end<B>(
    batches: impl Iterator<Item = (u64, Option<B>)>,
) -> Option<(u64, Vec<B>)> {
    let (mut end, mut next) = (Vec::new(), None);
    for (number, events) in batches {
        if next.is_some_and(|next| next != number) || events.is_none() {
            end.clear();
        }
        end.extend(events);
        next = Some(number.saturating_add(1));
    }
    next.map(|next| (next, end))
}

/// Pace of a feed's restarts: at once at first, then ever slower while the feed does not last.
#[derive(Debug)]
pub(super) struct Pace {
    last: Option<Instant>,
    wait: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { last: None, wait: BACKOFF.0 }
    }
}

impl Pace {
    /// Wait before the next attempt. The attempt counts as made at its end.
    pub(super) fn delay(&mut self, now: Instant) -> Duration {
        let lasted =
            self.last.is_none_or(|last| now.saturating_duration_since(last) > self.wait * 4);
        let delay = if lasted { Duration::ZERO } else { self.wait };
        self.wait = if lasted { BACKOFF.0 } else { (self.wait * 2).min(BACKOFF.1) };
        self.last = Some(now + delay);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(batches: &[(u64, Option<char>)], expected: Option<(u64, &str)>) {
        let end = unbroken_end(batches.iter().copied());
        let end = end.map(|(next, end)| (next, end.into_iter().collect::<String>()));
        assert_eq!(end, expected.map(|(next, end)| (next, end.to_owned())));
    }

    #[test]
    fn only_the_unbroken_end_of_a_replay_is_believed() {
        check(&[], None);
        check(&[(4, Some('a')), (5, Some('b'))], Some((6, "ab")));
        check(&[(0, Some('a')), (2, Some('b')), (3, Some('c'))], Some((4, "bc")));
        check(&[(0, Some('a')), (1, None), (2, Some('b'))], Some((3, "b")));
        check(&[(0, Some('a')), (1, None)], Some((2, "")));
        check(&[(1, Some('a')), (0, Some('b'))], Some((1, "b")));
    }

    #[test]
    fn starting_over_becomes_slower_until_it_lasts() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let ms = |delay: Duration| delay.as_millis();
        for expected in [0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000] {
            let delay = pace.delay(now);
            assert_eq!(ms(delay), expected);
            now += delay;
        }
        now += Duration::from_secs(121);
        assert_eq!(ms(pace.delay(now)), 0);
        assert_eq!(ms(pace.delay(now)), 50);
    }
}
