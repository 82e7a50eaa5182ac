//! What a translator tells of an engine's blocks is what it says that there is.

use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, decode_engine};
use stator_signals::events::Translator;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).expect("it is not zero");
/// Few, so that the limit is met.
const BLOCKS_MAX: usize = 40;

/// Runs the target.
pub(crate) fn run(payload: &[u8]) {
    let Ok(batch) = decode_engine(payload) else { return };
    let mut translator = Translator::new(BLOCK_SIZE, BLOCKS_MAX);
    let mut told = BTreeMap::new();
    // The second time every block is there already.
    for _ in 0..2 {
        for event in batch.events.chunks(3) {
            let mut out = Vec::new();
            translator.translate(event, &mut out);
            out.iter().for_each(|event| follow(event, &mut told));
            assert_eq!(told, counted(translator.blocks()));
        }
    }
}

type Blocks = BTreeMap<(u64, Medium), u64>;

fn counted(blocks: Vec<(SequenceHash, Medium)>) -> Blocks {
    let mut counts = Blocks::new();
    for (hash, medium) in blocks {
        *counts.entry((hash.0, medium)).or_default() += 1;
    }
    counts
}

fn follow(event: &KvEvent, told: &mut Blocks) {
    match event {
        KvEvent::Stored(stored) => {
            for hash in &stored.hashes {
                *told.entry((*hash, stored.medium)).or_default() += 1;
            }
        }
        KvEvent::Removed(removed) => {
            for hash in &removed.hashes {
                let count = told.get_mut(&(*hash, removed.medium));
                *count.expect("only what was stored is removed") -= 1;
            }
            told.retain(|_, count| *count > 0);
        }
        KvEvent::Cleared => told.clear(),
    }
}
