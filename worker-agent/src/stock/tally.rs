//! Tally of a stock engine's work, from the requests that the agent sent.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Counts of one rank, updated at once; the engine's own report lags behind.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: Mutex<Counts>,
    /// Tokens and ends, of all requests: it stands still where the engine does.
    progress: AtomicU64,
    /// Steps since its start, as the engine itself says.
    engine_steps: AtomicU64,
    /// Told of every change.
    changed: Notify,
}

/// Running work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Choices with a first token.
    pub(crate) running: u32,
    /// Choices without.
    pub(crate) waiting: u32,
    /// Prompt tokens of those without.
    pub(crate) pending_prefill_tokens: u64,
}

/// One choice that runs; dropping it says that it has ended.
#[derive(Debug)]
pub(crate) struct Entry {
    tally: Arc<Tally>,
    prompt_tokens: u64,
    started: bool,
}

impl Tally {
    /// Counts a choice of a prompt of this many tokens as waiting.
    pub(crate) fn enter(self: &Arc<Self>, prompt_tokens: usize) -> Entry {
        let prompt_tokens = prompt_tokens as u64;
        self.change(|counts| {
            counts.waiting += 1;
            counts.pending_prefill_tokens += prompt_tokens;
        });
        Entry { tally: self.clone(), prompt_tokens, started: false }
    }

    /// Counts of the running work.
    pub(crate) fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// Changes with every token and every end, and with every step that the engine tells of.
    pub(crate) fn progress(&self) -> u64 {
        let steps = self.engine_steps.load(Ordering::Relaxed);
        self.progress.load(Ordering::Relaxed).wrapping_add(steps)
    }

    /// The engine says how many steps it took: a long prompt has steps before it has a token.
    pub(crate) fn engine_steps(&self, steps: u64) {
        self.engine_steps.store(steps, Ordering::Relaxed);
    }

    /// Waits for a change; one that nobody waited for is not lost.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock());
        self.changed.notify_one();
    }
}

impl Entry {
    /// Tokens came, the first of them or more.
    pub(crate) fn tokens(&mut self, tokens: usize) {
        self.tally.progress.fetch_add(tokens as u64, Ordering::Relaxed);
        if tokens == 0 || std::mem::replace(&mut self.started, true) {
            return;
        }
        self.tally.change(|counts| {
            counts.waiting -= 1;
            counts.running += 1;
            counts.pending_prefill_tokens -= self.prompt_tokens;
        });
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.tally.progress.fetch_add(1, Ordering::Relaxed);
        self.tally.change(|counts| {
            if self.started {
                counts.running -= 1;
            } else {
                counts.waiting -= 1;
                counts.pending_prefill_tokens -= self.prompt_tokens;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_waits_until_its_first_token_and_runs_until_it_is_dropped() {
        let tally = Arc::new(Tally::default());
        let (mut first, second) = (tally.enter(10), tally.enter(7));
        let counts = |running, waiting, pending_prefill_tokens| Counts {
            running,
            waiting,
            pending_prefill_tokens,
        };
        assert_eq!(tally.counts(), counts(0, 2, 17));
        first.tokens(0);
        assert_eq!((tally.counts(), tally.progress()), (counts(0, 2, 17), 0));
        first.tokens(1);
        first.tokens(3);
        assert_eq!((tally.counts(), tally.progress()), (counts(1, 1, 7), 4));
        drop(second);
        drop(first);
        assert_eq!((tally.counts(), tally.progress()), (Counts::default(), 6));
        tally.engine_steps(10);
        assert_eq!(tally.progress(), 16);
    }
}
