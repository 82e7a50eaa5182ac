//! Batches in which blocks come and go several times, against a plain set.

use super::*;
use proptest::{collection::vec, prelude::*};

/// Blocks that there are, so few that most come several times.
const BLOCKS: u64 = 48;

fn hash(block: u64) -> u64 {
    (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

fn any_batch() -> impl Strategy<Value = Vec<(bool, Vec<u64>)>> {
    vec((any::<bool>(), vec(0..BLOCKS, 1..80)), 1..10)
}

proptest! {
    /// What a batch looked up before it changed anything may be wrong by the time it is used.
    #[test]
    fn a_block_has_one_cell_however_often_it_comes(
        batches in vec(any_batch(), 1..5),
        lanes in 0u32..3,
    ) {
        let (index, mut held) = (tiny(IndexSettings::default(), 1 << lanes), HashSet::new());
        index.insert(worker(0), LIFE);
        for batch in batches {
            let events: Vec<KvEvent> = batch.iter().map(|(stores, blocks)| {
                let hashes: Vec<u64> = blocks.iter().map(|&block| hash(block)).collect();
                if *stores { on_device(&hashes) } else { removed(&hashes, Medium::Device) }
            }).collect();
            for (stores, blocks) in &batch {
                match stores {
                    true => held.extend(blocks),
                    false => held.retain(|block| !blocks.contains(block)),
                }
            }
            index.apply_all(worker(0), LIFE, &events);
            let stats = index.stats();
            prop_assert_eq!((stats.blocks, stats.held), (held.len(), held.len()));
            for block in 0..BLOCKS {
                let found = overlap(&index, worker(0), &[hash(block)]).blocks();
                prop_assert_eq!(found == 1, held.contains(&block), "block {}", block);
            }
        }
    }
}
