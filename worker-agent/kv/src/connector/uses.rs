//! Blocks that became ready for requests whose prompts the agent has noted, for their traces.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Blocks that a request of an engine got from the tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskUse {
    /// Blocks that the engine asked for.
    pub asked: usize,
    /// Blocks among them that were in host memory at once.
    pub host: usize,
    /// Blocks among them that are ready: from host memory, or after they had come there.
    pub ready: usize,
    /// Bytes of the ready blocks.
    pub bytes: usize,
    /// Time from the question until the last of them was ready.
    pub waited: Duration,
}

/// Place of a question's blocks in a prompt that the agent has noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotedPlace {
    /// Number of the note.
    pub number: u64,
    /// Blocks of the prompt before the first that is asked for.
    pub first: usize,
}

/// Hears how much a request got from the tiers so far for its question there. Returns at once.
pub type UseTaker = dyn Fn(NotedPlace, AskUse) + Send + Sync;

/// Uses of the tiers by the open requests of one engine. Only requests for noted prompts count.
pub(super) struct AskUses {
    taker: Arc<UseTaker>,
    block_bytes: usize,
    open: Mutex<FxHashMap<u64, OpenUse>>,
}

struct OpenUse {
    place: NotedPlace,
    begun: Instant,
    used: AskUse,
}

impl AskUses {
    pub(super) fn new(taker: Arc<UseTaker>, block_bytes: usize) -> Self {
        Self { taker, block_bytes, open: Mutex::default() }
    }

    /// Begins to count for a request, which asks for so many blocks of a noted prompt. Its session
    /// bounds how many are open.
    pub(super) fn begin(&self, request: u64, place: NotedPlace, asked: usize) {
        let used = AskUse { asked, ..AskUse::default() };
        self.open.lock().insert(request, OpenUse { place, begun: Instant::now(), used });
    }

    /// Counts blocks that were there at once.
    pub(super) fn found(&self, request: u64, blocks: usize) {
        self.add(request, blocks, blocks);
    }

    /// Counts blocks that have come. This may be called before [`Self::found`].
    pub(super) fn ready(&self, request: u64, blocks: usize) {
        self.add(request, 0, blocks);
    }

    /// Ends the counting for a request.
    pub(super) fn end(&self, request: u64) {
        self.open.lock().remove(&request);
    }

    fn add(&self, request: u64, host: usize, ready: usize) {
        let told = self.open.lock().get_mut(&request).map(|open| {
            open.used.host += host;
            open.used.ready += ready;
            open.used.bytes += ready * self.block_bytes;
            if ready > 0 {
                open.used.waited = open.begun.elapsed();
            }
            (open.place, open.used)
        });
        if let Some((place, used)) = told {
            (self.taker)(place, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_noted_prompts_grow_until_they_end() {
        let heard = Arc::<Mutex<Vec<_>>>::default();
        let told = heard.clone();
        let place = NotedPlace { number: 70, first: 4 };
        let taker = move |at, used: AskUse| {
            assert_eq!(at, place);
            told.lock().push((used.asked, used.host, used.ready, used.bytes));
        };
        let uses = AskUses::new(Arc::new(taker), 10);
        uses.ready(1, 5);
        uses.begin(1, place, 9);
        // The thread that tells of progress may be ahead of the answer.
        uses.ready(1, 2);
        uses.found(1, 3);
        uses.end(1);
        uses.ready(1, 1);
        assert_eq!(*heard.lock(), [(9, 0, 2, 20), (9, 3, 5, 50)]);
        assert!(uses.open.lock().is_empty());
    }
}
