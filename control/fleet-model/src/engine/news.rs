//! KV events as an engine publishes them.

use super::block::{BlockId, hash};
use stator_placement::Closure;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use std::fmt;

/// KV events since the last reading.
pub(crate) struct KvNews {
    block_size: u32,
    events: Vec<KvEvent>,
    /// Joins what device and tiers hold, as agents do.
    closure: Option<Closure>,
}

/// Blocks of one worker that are told of at most.
const BLOCKS_MAX: usize = 1 << 24;

impl KvNews {
    /// No events; `has_tiers` says whether blocks may be on several media.
    pub(crate) fn new(block_size: u32, has_tiers: bool) -> Self {
        let closure = has_tiers.then(|| Closure::new(BLOCKS_MAX));
        Self { block_size, events: Vec::new(), closure }
    }

    /// Consecutive blocks of one sequence become one event.
    pub(crate) fn stored(&mut self, id: BlockId, parent: Option<BlockId>, medium: Medium) {
        self.stored_as(hash(id), parent.map(hash), medium);
    }

    /// Reports that a block, named by its hash, is stored, as [`KvNews::stored`] does for one by its id.
    pub(crate) fn stored_as(
        &mut self,
        hash: SequenceHash,
        parent: Option<SequenceHash>,
        medium: Medium,
    ) {
        let parent = parent.map(|parent| parent.0);
        if let Some(KvEvent::Stored(stored)) = self.events.last_mut()
            && stored.medium == medium
            && stored.hashes.last().copied() == parent
        {
            stored.hashes.push(hash.0);
            return;
        }
        self.events.push(KvEvent::Stored(Stored {
            hashes: vec![hash.0],
            parent,
            tokens: Vec::new(),
            block_size: self.block_size,
            medium,
            lora_name: None,
        }));
    }

    pub(crate) fn removed(&mut self, id: BlockId, medium: Medium) {
        self.removed_as(hash(id), medium);
    }

    /// Reports that a block, named by its hash, is removed, as [`KvNews::removed`] does for one by its id.
    pub(crate) fn removed_as(&mut self, hash: SequenceHash, medium: Medium) {
        match self.events.last_mut() {
            Some(KvEvent::Removed(removed)) if removed.medium == medium => {
                removed.hashes.push(hash.0);
            }
            _ => {
                let hashes = vec![hash.0];
                self.events.push(KvEvent::Removed(Removed { hashes, medium }));
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Takes the events out, in order.
    pub(crate) fn take(&mut self) -> Vec<KvEvent> {
        let events = std::mem::take(&mut self.events);
        let Some(closure) = &mut self.closure else { return events };
        let mut closed = Vec::new();
        events.iter().for_each(|event| closure.apply(event, &mut closed));
        closed
    }

    /// Blocks that were told of on several media, each before those after it, with the nearest medium
    /// of each; nothing without tiers.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (SequenceHash, Medium)> {
        self.closure.iter().flat_map(Closure::blocks)
    }
}

impl fmt::Debug for KvNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvNews").field("events", &self.events).finish_non_exhaustive()
    }
}
