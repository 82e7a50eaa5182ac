use super::*;
use proptest::{collection::vec, prelude::*};
use std::collections::HashSet;

/// A chain of hashes for a path through a tree: equal paths, equal hashes.
fn chain(path: &[u8]) -> Arc<[SequenceHash]> {
    let mut hash = 1u64;
    path.iter()
        .map(|step| {
            hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(*step) + 1);
            SequenceHash(hash)
        })
        .collect()
}

/// The obvious model: all sequences of each worker.
#[derive(Default)]
struct Model(Vec<(u32, u32, Arc<[SequenceHash]>)>);

impl Model {
    fn blocks(&self, slot: u32) -> HashSet<SequenceHash> {
        let here = self.0.iter().filter(|(_, at, _)| *at == slot);
        here.flat_map(|(_, _, chain)| chain.iter().copied()).collect()
    }

    fn overlap(&self, slot: u32, sequence: &[SequenceHash]) -> u32 {
        let known = self.blocks(slot);
        sequence.iter().take_while(|hash| known.contains(hash)).count() as u32
    }
}

fn check_empty(running: &RunningPrefixes) {
    assert!(running.children.is_empty());
    assert_eq!(running.free.len(), running.nodes.len(), "a node is left");
}

#[test]
fn an_edge_is_whole_again_once_nothing_branches_off() {
    let mut running = RunningPrefixes::default();
    let (long, short) = (chain(&[1, 2, 3, 4]), chain(&[1, 2]));
    let (first, new) = running.insert(1, &long).expect("it has blocks");
    assert_eq!(new, 4);
    let (second, new) = running.insert(2, &short).expect("it has blocks");
    assert_eq!((new, running.children.len()), (2, 2));
    assert_eq!(running.remove(2, second), 2);
    assert_eq!(running.children.len(), 1);
    assert_eq!(running.remove(1, first), 4);
    check_empty(&running);
    assert_eq!(running.insert(1, &chain(&[])), None);
}

proptest! {
    #[test]
    fn agrees_with_a_set_of_all_blocks_of_each_worker(
        paths in vec((0u32..3, vec(0u8..2, 0..7)), 0..40),
        removals in vec(any::<prop::sample::Index>(), 0..40),
        query in vec(0u8..2, 0..7),
    ) {
        let (mut running, mut model) = (RunningPrefixes::default(), Model::default());
        let query = chain(&query);
        for (slot, path) in &paths {
            let chain = chain(path);
            let before = model.blocks(*slot).len();
            let inserted = running.insert(*slot, &chain);
            prop_assert_eq!(inserted.is_none(), path.is_empty());
            let Some((last, new)) = inserted else { continue };
            model.0.push((last, *slot, chain));
            prop_assert_eq!(new as usize, model.blocks(*slot).len() - before);
        }
        for at in removals {
            for slot in 0..3 {
                prop_assert_eq!(running.overlap(slot, &query), model.overlap(slot, &query));
            }
            if model.0.is_empty() {
                continue;
            }
            let (last, slot, removed) = model.0.swap_remove(at.index(model.0.len()));
            let left = model.blocks(slot);
            let gone: HashSet<_> = removed.iter().filter(|hash| !left.contains(hash)).collect();
            prop_assert_eq!(running.remove(slot, last) as usize, gone.len());
        }
        for (last, slot, _) in model.0 {
            running.remove(slot, last);
        }
        check_empty(&running);
    }

    /// Sequences that are no chains are counted wrongly, but nothing of them stays.
    #[test]
    fn collisions_leave_nothing_behind(
        sequences in vec((0u32..2, vec(0u64..3, 0..8)), 0..30),
        removals in vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let (mut running, mut inside, mut counted) = (RunningPrefixes::default(), Vec::new(), [0u64; 2]);
        let mut removals = removals.into_iter();
        for (slot, sequence) in sequences {
            let sequence: Arc<[_]> = sequence.into_iter().map(SequenceHash).collect();
            if let Some((last, new)) = running.insert(slot, &sequence) {
                counted[slot as usize] += new;
                inside.push((slot, last));
            }
            if let (Some(at), false) = (removals.next(), inside.is_empty()) {
                let (slot, last) = inside.swap_remove(at.index(inside.len()));
                counted[slot as usize] -= running.remove(slot, last);
            }
        }
        for (slot, last) in inside {
            counted[slot as usize] -= running.remove(slot, last);
        }
        prop_assert_eq!(counted, [0, 0]);
        check_empty(&running);
    }
}
