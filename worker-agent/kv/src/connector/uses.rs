//! Blocks that became ready for requests which the agent knows by a number, for their traces.

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

/// Hears how much a request got from the tiers so far, under the number of its hint. Returns at once.
pub type UseTaker = dyn Fn(u64, AskUse) + Send + Sync;

/// Uses of the tiers by the open requests of one engine. Only requests with a hint by number count.
pub(super) struct AskUses {
    taker: Arc<UseTaker>,
    block_bytes: usize,
    open: Mutex<FxHashMap<u64, OpenUse>>,
}

struct OpenUse {
    /// Number by which the agent knows the request.
    number: u64,
    begun: Instant,
    used: AskUse,
}

impl AskUses {
    pub(super) fn new(taker: Arc<UseTaker>, block_bytes: usize) -> Self {
        Self { taker, block_bytes, open: Mutex::default() }
    }

    /// Begins to count for a request, which asks for so many blocks. Its session bounds how many are
    /// open.
    pub(super) fn begin(&self, request: u64, number: u64, asked: usize) {
        let used = AskUse { asked, ..AskUse::default() };
        self.open.lock().insert(request, OpenUse { number, begun: Instant::now(), used });
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
            (open.number, open.used)
        });
        if let Some((number, used)) = told {
            (self.taker)(number, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_numbered_requests_grow_until_they_end() {
        let heard = Arc::<Mutex<Vec<_>>>::default();
        let told = heard.clone();
        let taker = move |number, used: AskUse| {
            told.lock().push((number, used.asked, used.host, used.ready, used.bytes));
        };
        let uses = AskUses::new(Arc::new(taker), 10);
        uses.ready(1, 5);
        uses.begin(1, 70, 9);
        // The thread that tells of progress may be ahead of the answer.
        uses.ready(1, 2);
        uses.found(1, 3);
        uses.end(1);
        uses.ready(1, 1);
        assert_eq!(*heard.lock(), [(70, 9, 0, 2, 20), (70, 9, 3, 5, 50)]);
        assert!(uses.open.lock().is_empty());
    }
}
