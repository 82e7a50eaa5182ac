//! The storing side of a connection, on a thread of its own: checksums of filled blocks take
//! milliseconds, and nobody who asks for a prompt is to wait for them.

use super::outbox::EngineOutbox;
use super::settings::KeyBook;
use super::wire::{AgentMessage, EngineKey};
use super::words::{BlockWords, WordNames};
use crate::cache::Client;
use crate::{Block, SlotId};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Slots that an engine is granted at first; the number doubles while the engine uses them up.
pub(super) const CREDIT_MIN: usize = 64;
/// Blocks that are registered at a time: they are visible, and their slots replaced, before the
/// rest is read.
const BATCH: usize = 32;

/// A thread that registers filled slots and grants new ones.
#[derive(Debug)]
pub(super) struct Filler {
    work: Arc<FillerWork>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct FillerWork {
    state: Mutex<FillerState>,
    changed: Condvar,
}

/// A slot that holds a block now.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilledBlock {
    pub(super) slot: SlotId,
    /// The engine's key of the block.
    pub(super) key: EngineKey,
    /// The block, without hashes.
    pub(super) block: Block,
    /// Tokens and parent by which routers name the block.
    pub(super) words: Option<BlockWords>,
}

/// The cache and the engine on the two sides of a filler, and the names of blocks.
struct FillerSides {
    client: Arc<Client>,
    outbox: Arc<EngineOutbox>,
    keys: Arc<dyn KeyBook>,
}

#[derive(Debug, Default)]
struct FillerState {
    filled: Vec<FilledBlock>,
    top_up: bool,
    end: bool,
}

/// Number of slots that an engine is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    /// Now.
    pub(super) target: usize,
    /// At most.
    pub(super) limit: usize,
}

impl Credit {
    /// The credit of an engine in an arena of `slots`: a quarter of it at most, so that four engines
    /// and their prompts have room.
    pub(super) fn new(slots: u32, limit: usize) -> Self {
        let limit = limit.min(slots as usize / 4).max(1);
        Self { target: CREDIT_MIN.min(limit), limit }
    }

    /// An engine that fills faster than it is granted new slots gets more of them.
    fn grow(&mut self, left: usize) {
        if left < self.target / 2 {
            self.target = (self.target * 2).min(self.limit);
        }
    }
}

impl Filler {
    /// Starts the thread, which begins with a grant.
    pub(super) fn start(
        client: Arc<Client>,
        outbox: Arc<EngineOutbox>,
        keys: Arc<dyn KeyBook>,
        credit: Credit,
    ) -> std::io::Result<Self> {
        let work = Arc::new(FillerWork::default());
        work.state.lock().top_up = true;
        let run = {
            let (work, sides) = (Arc::clone(&work), FillerSides { client, outbox, keys });
            move || run(&work, &sides, credit)
        };
        let thread = std::thread::Builder::new().name("kv-filler".into()).spawn(run)?;
        Ok(Self { work, thread: Some(thread) })
    }

    /// Registers filled slots, soon.
    pub(super) fn fill(&self, filled: impl IntoIterator<Item = FilledBlock>) {
        self.work.state.lock().filled.extend(filled);
        self.work.changed.notify_one();
    }

    /// Number of filled slots that wait.
    pub(super) fn backlog(&self) -> usize {
        self.work.state.lock().filled.len()
    }

    /// Room may have come: the engine gets what its grant lacks.
    pub(super) fn top_up(&self) {
        self.work.state.lock().top_up = true;
        self.work.changed.notify_one();
    }
}

impl Drop for Filler {
    /// Registers what waits and joins the thread.
    fn drop(&mut self) {
        self.work.state.lock().end = true;
        self.work.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(work: &FillerWork, sides: &FillerSides, mut credit: Credit) {
    let FillerSides { client, outbox, keys } = sides;
    let mut granted = 0;
    loop {
        let mut filled = {
            let mut state = work.state.lock();
            while state.filled.is_empty() && !state.top_up {
                if state.end {
                    return;
                }
                work.changed.wait(&mut state);
            }
            state.top_up = false;
            std::mem::take(&mut state.filled)
        };
        name_all(&mut filled, client, &**keys);
        for batch in filled.chunks(BATCH) {
            let named: Vec<_> = batch.iter().map(|filled| (filled.slot, filled.block)).collect();
            let duplicates = client.filled(&named);
            granted -= (batch.len() - duplicates.len()).min(granted);
            outbox.send_slots(&duplicates, AgentMessage::Duplicate);
            // Not before they are registered: the cache learns hashes only of blocks that it has.
            for FilledBlock { key, block, .. } in batch.iter().filter(|of| of.block.hash.is_none())
            {
                keys.unnamed(key, *block);
            }
        }
        credit.grow(granted);
        let slots = client.grant(credit.target.saturating_sub(granted));
        granted += slots.len();
        outbox.send_slots(&slots, AgentMessage::Grant);
    }
}

/// Gives blocks the hashes by which routers know them. It is done here and not where FILLED is heard:
/// the blocks before may be waiting for their checksums.
fn name_all(filled: &mut [FilledBlock], client: &Client, keys: &dyn KeyBook) {
    let mut names = WordNames::default();
    // A shim reports blocks in any order; a block is named and registered after the one before it.
    filled.sort_unstable_by_key(|filled| filled.block.depth);
    for FilledBlock { key, block, words, .. } in filled {
        *block = match words {
            Some(words) => names.name(*block, *words, client),
            None => keys.name(key, *block),
        };
    }
}
