//! Events and workers for tests. Blocks are nodes of a binary tree: 1 is the first block of every
//! sequence, and 2n and 2n + 1 come after n.

use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use stator_protos::{WorkerId, WorkerRank};

pub(crate) fn worker(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number / 2), rank: (number % 2) as u16 }
}

pub(crate) fn stored(hashes: &[u64], parent: Option<u64>, medium: Medium) -> KvEvent {
    let (hashes, tokens, lora_name) = (hashes.to_vec(), Vec::new(), None);
    KvEvent::Stored(Stored { hashes, parent, tokens, block_size: 16, medium, lora_name })
}

pub(crate) fn removed(hashes: &[u64], medium: Medium) -> KvEvent {
    KvEvent::Removed(Removed { hashes: hashes.to_vec(), medium })
}

/// The block before one.
pub(crate) fn parent(hash: u64) -> Option<u64> {
    (hash > 1).then_some(hash / 2)
}

/// Blocks from one on, a turn at each further one.
pub(crate) fn path(from: u64, turns: &[bool]) -> Vec<u64> {
    let next = |hash: &mut u64, turn: &bool| {
        *hash = *hash * 2 + u64::from(*turn);
        Some(*hash)
    };
    std::iter::once(from).chain(turns.iter().scan(from, next)).collect()
}

/// The event that stores a path.
pub(crate) fn consecutive(hashes: &[u64], medium: Medium) -> KvEvent {
    stored(hashes, parent(hashes[0]), medium)
}
