//! An engine's side of the cache.

use super::dispatch::DispatchThread;
use super::shared::SharedStore;
use super::state::{ClientListener, Question, QuestionPurpose};
use crate::cost::EnginePace;
use crate::store::{Found, LoanTerms, OwnerId, RequestId, SlotContent};
use crate::{Block, SlotId};
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;
use std::sync::Arc;

/// An engine that uses a [`super::TieredCache`]: a connection, or the built-in engine.
///
/// Dropping it gives back all that it holds, which is right only if nobody uses its slots any more.
/// For an engine process that may live on, see [`Client::lose`].
pub struct Client {
    store: Arc<SharedStore>,
    // Keeps the thread that tells of progress.
    _dispatch: Arc<DispatchThread>,
    owner: OwnerId,
    is_lost: bool,
}

impl Client {
    pub(super) fn new(
        store: Arc<SharedStore>,
        dispatch: Arc<DispatchThread>,
        listener: ClientListener,
    ) -> Self {
        let owner = store.connect(listener);
        Self { store, _dispatch: dispatch, owner, is_lost: false }
    }

    /// The blocks of a prompt that are there: leading slots with their KV, pinned until the request
    /// ends, and the number of blocks behind them that are on their way.
    ///
    /// `request` is a number of the client's own; a question with the same number replaces the one
    /// before. `pace` is the engine's; a time in which it computes a block does. While blocks are on their way the client hears of progress, at the latest after two
    /// seconds that no more will come.
    pub fn ask(
        &self,
        request: RequestId,
        names: &[BlockName],
        pace: impl Into<EnginePace>,
    ) -> Found {
        let (owner, purpose) = (self.owner, QuestionPurpose::Load(pace.into()));
        self.store.ask(Question { owner, request, names, purpose })
    }

    /// The leading blocks of a prompt that are there, for another agent: pinned as by [`Client::ask`],
    /// with the checksums that they were compared with. Reads all their bytes. Returns also the number
    /// of blocks behind them that are read from disk, of which the client hears.
    pub(super) fn lend(
        &self,
        request: RequestId,
        names: &[BlockName],
        terms: LoanTerms,
    ) -> (Vec<SlotContent>, usize) {
        let (owner, purpose) = (self.owner, QuestionPurpose::Lend(terms));
        self.store.lend(Question { owner, request, names, purpose })
    }

    /// The blocks in slots that a request of the client has pinned.
    pub(super) fn contents(&self, slots: &[SlotId]) -> Vec<SlotContent> {
        self.store.contents(slots)
    }

    /// Ends a request: its slots may hold other blocks from now on.
    pub fn end(&self, request: RequestId) {
        self.store.end(self.owner, request);
    }

    /// Blocks were used on the device.
    pub fn touch(&self, names: &[BlockName]) {
        self.store.touch(names);
    }

    /// Free slots to fill. There may be fewer than `wanted`.
    pub fn grant(&self, wanted: usize) -> Vec<SlotId> {
        self.store.grant(self.owner, wanted)
    }

    /// Makes blocks visible with which the client has filled slots that it was granted. Returns the
    /// slots of blocks that were there already: they stay granted, for other blocks.
    pub fn filled(&self, blocks: &[(SlotId, Block)]) -> Vec<SlotId> {
        self.store.filled(self.owner, blocks)
    }

    /// Copies a block into a slot that the client was granted and makes it visible, in one pass over
    /// the bytes. Returns the slot if the block was there already: it stays granted.
    ///
    /// # Panics
    ///
    /// The arena has no such slot, or `kv` has not the size of a block.
    pub fn store(&self, slot: SlotId, block: Block, kv: &[u8]) -> Option<SlotId> {
        self.store.store(self.owner, slot, block, kv)
    }

    /// The hash by which routers know a block, if the block is held and its hash is known.
    pub fn event_hash(&self, name: BlockName) -> Option<SequenceHash> {
        self.store.event_hash(name)
    }

    /// Ends the client while its engine may still read and fill its slots, which stay as they are
    /// until the engine is buried.
    pub fn lose(mut self) -> LostClient {
        self.is_lost = true;
        self.store.disconnect(self.owner, false);
        LostClient { store: self.store.clone(), owner: self.owner }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_lost {
            self.store.disconnect(self.owner, true);
        }
    }
}

/// An engine that is not connected any more but may still use its slots.
#[must_use = "its slots are lost until it is buried"]
pub struct LostClient {
    store: Arc<SharedStore>,
    owner: OwnerId,
}

impl LostClient {
    /// Gives the slots back, now that the engine's process is gone or has connected anew and
    /// forgotten them.
    pub fn bury(self) {
        self.store.buried(self.owner);
    }
}
