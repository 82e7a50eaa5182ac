//! Events of a worker with tiers: what its device and its tiers hold together, without gaps.

use super::news::{SortedChanges, TierChanges, stored_event};
use rustc_hash::{FxHashMap, FxHashSet};
use stator_kv_index::Closure;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};

/// Joins the events of an engine with those of its tiers, as routers want them: each block counts
/// once, as on its nearest medium, and only where all blocks before it are held as well.
pub(super) struct ClosedEvents {
    closure: Closure,
    block_size: u32,
    /// Blocks on the device.
    device: FxHashSet<u64>,
}

impl ClosedEvents {
    /// Nothing is held yet; `blocks_max` bounds what is published.
    pub(super) fn new(block_size: u32, blocks_max: usize) -> Self {
        Self { closure: Closure::new(blocks_max), block_size, device: FxHashSet::default() }
    }

    /// Replaces the events of an engine's step by those to publish, `changes` of the tiers included.
    pub(super) fn close(&mut self, events: &mut Vec<KvEvent>, changes: TierChanges) {
        let of_device = std::mem::take(events);
        if changes.is_cleared {
            // The device's own blocks go as well: it is told to forget them at the same time.
            self.device.clear();
            self.closure.apply(&KvEvent::Cleared, events);
        }
        let mut tokens = FxHashMap::default();
        let mut gone = Vec::new();
        for event in of_device {
            match event {
                KvEvent::Stored(stored) => self.store_on_device(stored, &mut tokens, events),
                KvEvent::Removed(removed) => {
                    for hash in &removed.hashes {
                        self.device.remove(hash);
                    }
                    gone.push(removed);
                }
                // Only the device's: tiers keep theirs.
                KvEvent::Cleared => {
                    let hashes = self.device.drain().collect();
                    gone.push(Removed { hashes, medium: Medium::Device });
                }
            }
        }
        let SortedChanges { came, went } = changes.sorted();
        for (block, medium) in came {
            let Some(stored) = stored_event(&block, medium, self.block_size) else { continue };
            self.closure.apply(&stored, events);
        }
        let went = went.into_iter();
        gone.extend(went.map(|(hash, medium)| Removed { hashes: vec![hash.0], medium }));
        // Last: a block that only moved is never told to be gone.
        gone.into_iter().for_each(|removed| self.closure.apply(&KvEvent::Removed(removed), events));
        add_tokens(events, &tokens);
    }

    /// Blocks that were published, each before those after it.
    pub(super) fn blocks(&self) -> Vec<(SequenceHash, Medium)> {
        self.closure.blocks().collect()
    }

    fn store_on_device(
        &mut self,
        stored: Stored,
        tokens: &mut FxHashMap<u64, Vec<u32>>,
        events: &mut Vec<KvEvent>,
    ) {
        let of_block = stored.tokens.chunks_exact(stored.block_size.max(1) as usize);
        tokens.extend(stored.hashes.iter().copied().zip(of_block.map(<[u32]>::to_vec)));
        self.device.extend(&stored.hashes);
        self.closure.apply(&KvEvent::Stored(stored), events);
    }
}

/// Gives events of the device their tokens again, for subscribers who hash them.
fn add_tokens(events: &mut [KvEvent], tokens: &FxHashMap<u64, Vec<u32>>) {
    for event in events {
        if let KvEvent::Stored(stored) = event
            && stored.medium == Medium::Device
            && let Some(known) = stored.hashes.iter().map(|hash| tokens.get(hash)).collect()
        {
            let known: Vec<&Vec<u32>> = known;
            stored.tokens = known.into_iter().flatten().copied().collect();
        }
    }
}

#[cfg(test)]
mod tests;
