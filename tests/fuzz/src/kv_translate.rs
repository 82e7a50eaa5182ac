//! What a translator tells of an engine's blocks is what it says that there is.

use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{EngineEvent, KvEvent, Medium, decode_engine};
use stator_signals::events::Translator;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

pub(crate) const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).expect("it is not zero");
/// Few, so that the limit is met.
pub(crate) const BLOCKS_MAX: usize = 40;

/// Runs the target.
pub(crate) fn run(payload: &[u8]) {
    let Ok(batch) = decode_engine(payload) else { return };
    let mut translator = Translator::new(BLOCK_SIZE, BLOCKS_MAX);
    let mut told = Told::default();
    // The second time every block is there already.
    for _ in 0..2 {
        for events in batch.events.chunks(3) {
            told.follow(&mut translator, events);
        }
    }
}

type Blocks = BTreeMap<(u64, Medium), u64>;

/// Blocks that a translator has told of, with the number of copies.
#[derive(Default)]
pub(crate) struct Told(Blocks);

impl Told {
    /// Translates events and follows what is told, which is what there is.
    pub(crate) fn follow(&mut self, translator: &mut Translator, events: &[EngineEvent]) {
        let mut out = Vec::new();
        translator.translate(events, &mut out);
        out.iter().for_each(|event| self.take(event));
        assert_eq!(self.0, counted(translator.blocks()));
    }

    fn take(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored(stored) => {
                for hash in &stored.hashes {
                    *self.0.entry((*hash, stored.medium)).or_default() += 1;
                }
            }
            KvEvent::Removed(removed) => {
                for hash in &removed.hashes {
                    let count = self.0.get_mut(&(*hash, removed.medium));
                    *count.expect("only what was stored is removed") -= 1;
                }
                self.0.retain(|_, count| *count > 0);
            }
            KvEvent::Cleared => self.0.clear(),
        }
    }
}

fn counted(blocks: Vec<(SequenceHash, Medium)>) -> Blocks {
    let mut counts = Blocks::new();
    for (hash, medium) in blocks {
        *counts.entry((hash.0, medium)).or_default() += 1;
    }
    counts
}
