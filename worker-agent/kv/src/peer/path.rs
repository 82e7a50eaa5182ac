//! Paths of a batch's bytes, chosen by what each has cost so far.

use std::time::Duration;
use tokio::time::Instant;

/// Batches after which the path that was dearer is tried again.
const TRY_EVERY: u64 = 32;
/// Weight of the latest batch in the cost of a path.
const WEIGHT: f64 = 0.25;
/// Time without direct reads after one failed.
const CLOSED_FOR: Duration = Duration::from_secs(60);

/// Path of a batch's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadPath {
    /// Frames that the peer sends over connections.
    Sockets,
    /// Reads of the peer's arena.
    Direct,
}

/// Costs of both paths to a peer, and whether its arena can be read.
#[derive(Debug, Default)]
pub(super) struct PathChoice {
    /// Seconds for a byte, of batches over connections and of direct ones.
    costs: [Option<f64>; 2],
    chosen: u64,
    is_open: bool,
    closed_until: Option<Instant>,
}

impl PathChoice {
    /// Whether nobody should try to read the arena for now.
    pub(super) fn is_closed(&self, now: Instant) -> bool {
        self.closed_until.is_some_and(|until| now < until)
    }

    /// The peer's arena can be read from now on.
    pub(super) fn opened(&mut self) {
        self.is_open = true;
    }

    /// The peer's arena is read no more, until somebody opens it again.
    pub(super) fn idle(&mut self) {
        self.is_open = false;
    }

    /// The peer's arena cannot be read.
    pub(super) fn failed(&mut self, now: Instant) {
        self.is_open = false;
        self.closed_until = Some(now + CLOSED_FOR);
    }

    /// The path for the next batch: each once, then the cheaper, and now and then the other.
    pub(super) fn choose(&mut self) -> ReadPath {
        if !self.is_open {
            return ReadPath::Sockets;
        }
        self.chosen += 1;
        let [sockets, direct] = self.costs;
        let (Some(sockets), Some(direct)) = (sockets, direct) else {
            return if direct.is_none() { ReadPath::Direct } else { ReadPath::Sockets };
        };
        let is_other_tried = self.chosen.is_multiple_of(TRY_EVERY);
        match (direct < sockets) != is_other_tried {
            true => ReadPath::Direct,
            false => ReadPath::Sockets,
        }
    }

    /// A batch of so many bytes took so long.
    pub(super) fn measured(&mut self, path: ReadPath, bytes: usize, took: Duration) {
        let cost = took.as_secs_f64() / bytes.max(1) as f64;
        let known = &mut self.costs[usize::from(path == ReadPath::Direct)];
        *known = Some(known.map_or(cost, |known| known + WEIGHT * (cost - known)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(choice: &mut PathChoice, path: ReadPath, millis: u64) {
        choice.measured(path, 1_000_000, Duration::from_millis(millis));
    }

    #[test]
    fn both_paths_are_tried_and_the_cheaper_is_taken() {
        let mut choice = PathChoice::default();
        assert_eq!(choice.choose(), ReadPath::Sockets, "the arena is not open");
        measure(&mut choice, ReadPath::Sockets, 10);
        choice.opened();
        assert_eq!(choice.choose(), ReadPath::Direct);
        measure(&mut choice, ReadPath::Direct, 2);
        let direct = (0..320).filter(|_| choice.choose() == ReadPath::Direct).count();
        assert_eq!(direct, 310, "one in 32 goes over connections");
        // The direct path gets slow: after some batches it is left.
        (0..10).for_each(|_| measure(&mut choice, ReadPath::Direct, 50));
        let direct = (0..320).filter(|_| choice.choose() == ReadPath::Direct).count();
        assert_eq!(direct, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn an_arena_that_failed_is_left_alone_for_a_minute() {
        let mut choice = PathChoice::default();
        choice.opened();
        choice.failed(Instant::now());
        assert!(choice.is_closed(Instant::now()));
        assert_eq!(choice.choose(), ReadPath::Sockets);
        tokio::time::advance(CLOSED_FOR).await;
        assert!(!choice.is_closed(Instant::now()));
    }
}
