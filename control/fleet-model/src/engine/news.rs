//! KV events as an engine publishes them.

use super::block::{BlockId, hash};
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};

/// KV events since the last reading.
#[derive(Debug)]
pub(crate) struct KvNews {
    block_size: u32,
    events: Vec<KvEvent>,
}

impl KvNews {
    pub(crate) fn new(block_size: u32) -> Self {
        Self { block_size, events: Vec::new() }
    }

    /// Consecutive blocks of one sequence become one event.
    pub(crate) fn stored(&mut self, id: BlockId, parent: Option<BlockId>, medium: Medium) {
        let hash_of = |id: BlockId| hash(id).0;
        let parent = parent.map(hash_of);
        if let Some(KvEvent::Stored(stored)) = self.events.last_mut()
            && stored.medium == medium
            && stored.hashes.last().copied() == parent
        {
            stored.hashes.push(hash_of(id));
            return;
        }
        self.events.push(KvEvent::Stored(Stored {
            hashes: vec![hash_of(id)],
            parent,
            tokens: Vec::new(),
            block_size: self.block_size,
            medium,
            lora_name: None,
        }));
    }

    pub(crate) fn removed(&mut self, id: BlockId, medium: Medium) {
        match self.events.last_mut() {
            Some(KvEvent::Removed(removed)) if removed.medium == medium => {
                removed.hashes.push(hash(id).0);
            }
            _ => {
                let hashes = vec![hash(id).0];
                self.events.push(KvEvent::Removed(Removed { hashes, medium }));
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Takes the events out, in order.
    pub(crate) fn take(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }
}
