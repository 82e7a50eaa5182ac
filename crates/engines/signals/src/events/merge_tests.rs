use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Tokens of one of our blocks.
const OURS: u32 = 4;

fn seed() -> HashSeed {
    HashSeed::new(None, None)
}

/// An engine that names its blocks of `size` tokens by all tokens up to their end, and the
/// obvious account of which it holds.
struct Model {
    size: usize,
    held: BTreeMap<Vec<u32>, [u32; 4]>,
}

/// The engine's name of the block that ends a sequence.
fn name(sequence: &[u32]) -> u64 {
    sequence.iter().fold(1, |name, token| name * 7 + 1 + u64::from(*token))
}

impl Model {
    fn store(&mut self, sequence: &[u32], medium: Medium) {
        for end in (self.size..=sequence.len()).step_by(self.size) {
            self.held.entry(sequence[..end].to_vec()).or_default()[medium as usize] += 1;
        }
    }

    fn remove(&mut self, block: &[u32], medium: Medium) {
        let Some(copies) = self.held.get_mut(block) else { return };
        copies[medium as usize] = copies[medium as usize].saturating_sub(1);
        if *copies == [0; 4] {
            self.held.retain(|known, _| !known.starts_with(block));
        }
    }

    /// Our blocks whose parts are all there.
    fn blocks(&self) -> BTreeSet<(u64, Medium)> {
        let mut blocks = BTreeSet::new();
        let ends = self.held.keys().filter(|sequence| sequence.len() % OURS as usize == 0);
        for sequence in ends {
            for medium in Medium::ALL {
                let mut parts = (0..OURS as usize / self.size)
                    .map(|part| &sequence[..sequence.len() - part * self.size]);
                let there =
                    |part: &[u32]| self.held.get(part).is_some_and(|c| c[medium as usize] > 0);
                if parts.all(there) {
                    blocks.insert((ours(sequence), medium));
                }
            }
        }
        blocks
    }
}

/// Our name of the block that ends a sequence.
fn ours(sequence: &[u32]) -> u64 {
    let mut last = None;
    for tokens in sequence.chunks_exact(OURS as usize) {
        last = Some(next_sequence_hash(last, block_hash(tokens, seed())));
    }
    last.expect("a block").0
}

/// Blocks of `size` tokens from `from` tokens on.
fn stored(sequence: &[u32], from: usize, size: usize, medium: Medium) -> Stored {
    let ends = (from + size..=sequence.len()).step_by(size);
    Stored {
        hashes: ends.map(|end| name(&sequence[..end])).collect(),
        parent: (from > 0).then(|| name(&sequence[..from])),
        tokens: sequence[from..].to_vec(),
        block_size: size as u32,
        medium,
        lora_name: None,
    }
}

fn follow(index: &mut BTreeSet<(u64, Medium)>, events: &[KvEvent]) {
    for event in events {
        match event {
            KvEvent::Stored(stored) => {
                assert_eq!(stored.block_size, OURS);
                let new = stored.hashes.iter().all(|hash| index.insert((*hash, stored.medium)));
                assert!(new, "what is there is not told again");
            }
            KvEvent::Removed(removed) => {
                let known =
                    removed.hashes.iter().all(|hash| index.remove(&(*hash, removed.medium)));
                assert!(known, "only what was told is removed");
            }
            KvEvent::Cleared => index.clear(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Store(Vec<u32>, Medium),
    /// The block that ends the first so many of a sequence's parts.
    Remove(Vec<u32>, usize, Medium),
}

fn any_step() -> impl Strategy<Value = Step> {
    let sequence = || vec(0u32..2, 0..13);
    let medium = || prop_oneof![4 => Just(Medium::Device), 1 => Just(Medium::Host)];
    prop_oneof![
        (sequence(), medium()).prop_map(|(sequence, medium)| Step::Store(sequence, medium)),
        (sequence(), 1usize..13, medium())
            .prop_map(|(sequence, parts, medium)| Step::Remove(sequence, parts, medium)),
    ]
}

proptest! {
    /// Whatever is stored and removed, in whatever order, ours are there where all parts are.
    #[test]
    fn agrees_with_counting_parts(steps in vec(any_step(), 0..60), size in prop_oneof![Just(1), Just(2)]) {
        let (mut merger, mut index) = (Merger::new(OURS, usize::MAX), BTreeSet::new());
        let mut model = Model { size, held: BTreeMap::new() };
        for step in steps {
            let mut out = Vec::new();
            match step {
                Step::Store(mut sequence, medium) => {
                    sequence.truncate(sequence.len() / size * size);
                    let event = stored(&sequence, 0, size, medium);
                    let count = event.hashes.len();
                    prop_assert_eq!(merger.store(&event, seed(), count, &mut out), count);
                    model.store(&sequence, medium);
                }
                Step::Remove(mut sequence, parts, medium) => {
                    sequence.truncate(parts * size);
                    sequence.truncate(sequence.len() / size * size);
                    let before = model.held.get(&sequence).map(|copies| copies[medium as usize]);
                    let expected = before.filter(|copies| *copies > 0).map(|copies| copies > 1);
                    prop_assert_eq!(merger.remove(name(&sequence), medium, &mut out), expected);
                    model.remove(&sequence, medium);
                }
            }
            follow(&mut index, &out);
            prop_assert_eq!(&index, &model.blocks());
            let blocks: BTreeSet<_> = merger.blocks().map(|(hash, medium)| (hash.0, medium)).collect();
            prop_assert_eq!(&blocks, &index);
            prop_assert_eq!(merger.parts.len(), model.held.len());
        }
    }
}

#[test]
fn a_run_may_continue_in_the_middle_of_our_block() {
    let (mut merger, mut out) = (Merger::new(OURS, 100), Vec::new());
    let sequence = [1, 2, 3, 4, 5, 6, 7, 8];
    let first = stored(&sequence[..6], 0, 1, Medium::Device);
    assert_eq!(merger.store(&first, seed(), 6, &mut out), 6);
    let second = stored(&sequence, 6, 1, Medium::Device);
    assert_eq!(merger.store(&second, seed(), 2, &mut out), 2);
    let mut index = BTreeSet::new();
    follow(&mut index, &out);
    let [one, two] = [&sequence[..4], &sequence[..]].map(ours);
    assert_eq!(index, [(one, Medium::Device), (two, Medium::Device)].into());
    let parents = out.iter().map(|event| match event {
        KvEvent::Stored(stored) => stored.parent,
        other => panic!("{other:?}"),
    });
    assert_eq!(parents.collect::<Vec<_>>(), [None, Some(one)]);
}

#[test]
fn what_continues_nothing_known_is_not_stored() {
    let (mut merger, mut out) = (Merger::new(OURS, 100), Vec::new());
    let event = stored(&[1, 2, 3, 4], 2, 1, Medium::Device);
    assert_eq!(merger.store(&event, seed(), 2, &mut out), 0);
    assert!(out.is_empty() && merger.parts.is_empty());
}

#[test]
fn a_block_that_names_itself_as_its_parent_is_not_believed() {
    let (mut merger, mut out) = (Merger::new(OURS, 100), Vec::new());
    let mut event = stored(&[1, 2, 3, 4], 0, 1, Medium::Device);
    event.hashes = vec![5; 4];
    assert_eq!(merger.store(&event, seed(), 4, &mut out), 1);
    assert!(out.is_empty() && merger.parts.is_empty());
}

#[test]
fn there_is_room_for_so_many_parts_and_no_more() {
    let (mut merger, mut out) = (Merger::new(OURS, 3), Vec::new());
    let event = stored(&[1, 2, 3, 4], 0, 1, Medium::Device);
    assert_eq!(merger.store(&event, seed(), 4, &mut out), 3);
    assert!(out.is_empty());
}
