use super::*;
use crate::Overlap;
use proptest::{collection::vec, prelude::*, sample::select};
use stator_protos::WorkerId;
use stator_protos::kv_event::{Removed, Stored};
use std::collections::{HashMap, HashSet};

fn worker(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number / 2), rank: (number % 2) as u16 }
}

fn sequence(hashes: &[u64]) -> Vec<SequenceHash> {
    hashes.iter().copied().map(SequenceHash).collect()
}

fn stored(hashes: &[u64], medium: Medium) -> KvEvent {
    let (hashes, parent, tokens) = (hashes.to_vec(), None, Vec::new());
    KvEvent::Stored(Stored { hashes, parent, tokens, block_size: 16, medium, lora_name: None })
}

fn removed(hashes: &[u64], medium: Medium) -> KvEvent {
    KvEvent::Removed(Removed { hashes: hashes.to_vec(), medium })
}

const LIFE: Generation = Generation(5);

fn index() -> Index {
    let mut index = Index::new(1000);
    for number in 0..3 {
        index.insert(worker(number), LIFE);
    }
    index
}

fn overlap(index: &Index, of: WorkerRank, hashes: &[u64]) -> Overlap {
    let mut out = Overlaps::default();
    index.overlap(&sequence(hashes), &mut out);
    out.of(of)
}

/// Applies `events` to worker 0 and expects it to hold so many blocks of 1, 2, 3, 4.
#[track_caller]
fn check(events: &[KvEvent], expected: u32) {
    let mut index = index();
    for event in events {
        assert_eq!(index.apply(worker(0), LIFE, event), Applied::Yes);
    }
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3, 4]).blocks(), expected);
    assert_eq!(overlap(&index, worker(1), &[1, 2, 3, 4]).blocks(), 0, "others hold nothing");
}

#[test]
fn only_leading_blocks_without_a_gap_count() {
    let device = Medium::Device;
    check(&[stored(&[1, 2, 4], device)], 2);
    check(&[stored(&[2, 3, 4], device)], 0);
    check(&[stored(&[3, 4], device), stored(&[1, 2], device)], 4);
    check(&[stored(&[1, 2, 3, 4], device), removed(&[2], device)], 1);
    check(&[stored(&[1, 2, 3, 4], device), KvEvent::Cleared], 0);
}

#[test]
fn a_block_stored_twice_is_there_until_removed_twice() {
    let device = Medium::Device;
    let twice = [stored(&[1, 2], device), stored(&[1], device)];
    check(&[&twice[..], &[removed(&[1], device)]].concat(), 2);
    check(&[&twice[..], &[removed(&[1, 1], device)]].concat(), 0);
    check(&[removed(&[1, 7], device), stored(&[1], device)], 1);
}

#[test]
fn the_nearest_copy_says_where_a_block_is() {
    let mut index = index();
    for event in [
        stored(&[1, 2, 3], Medium::Host),
        stored(&[1, 3], Medium::Device),
        stored(&[3, 4], Medium::Disk),
        removed(&[3], Medium::Device),
    ] {
        index.apply(worker(2), LIFE, &event);
    }
    let overlap = overlap(&index, worker(2), &[1, 2, 3, 4, 5]);
    let by_medium = Medium::ALL.map(|medium| overlap.on(medium));
    assert_eq!((by_medium, overlap.blocks()), ([1, 2, 1, 0], 4));
}

#[test]
fn a_dead_life_never_comes_back() {
    let mut index = index();
    let event = stored(&[1], Medium::Device);
    assert_eq!(index.apply(worker(0), Generation(4), &event), Applied::Stale);
    assert_eq!(index.apply(worker(0), Generation(6), &event), Applied::Yes);
    assert_eq!(index.apply(worker(0), LIFE, &KvEvent::Cleared), Applied::Stale);
    assert_eq!(overlap(&index, worker(0), &[1]).blocks(), 1);
    assert!(!index.insert(worker(0), LIFE));
    assert_eq!(index.generation(worker(0)), Some(Generation(6)));
    assert!(index.insert(worker(0), Generation(7)));
    assert_eq!(overlap(&index, worker(0), &[1]).blocks(), 0, "a new life holds nothing");

    index.remove(worker(0));
    assert_eq!(index.apply(worker(0), Generation(7), &event), Applied::UnknownWorker);
    assert_eq!(index.replace(worker(0), Generation(7), []), Applied::UnknownWorker);
}

#[test]
fn an_unknown_state_holds_nothing_until_replaced() {
    let mut index = index();
    let event = stored(&[1, 2], Medium::Device);
    index.apply(worker(0), LIFE, &event);
    index.unknown(worker(0));
    assert_eq!((index.held(), overlap(&index, worker(0), &[1]).blocks()), (0, 0));
    assert_eq!(index.apply(worker(0), LIFE, &event), Applied::UnknownState);
    index.predict(worker(0), &sequence(&[1]), Time::from_millis(10));
    assert_eq!(index.predicted(), 0);

    let snapshot = sequence(&[1, 2, 3]).into_iter().map(|hash| (hash, Medium::Device));
    assert_eq!(index.replace(worker(0), LIFE, snapshot), Applied::Yes);
    assert_eq!(index.apply(worker(0), LIFE, &removed(&[3], Medium::Device)), Applied::Yes);
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3]).blocks(), 2);
}

#[test]
fn beyond_the_bound_the_oldest_blocks_are_dropped() {
    let mut index = Index::new(4);
    index.insert(worker(0), LIFE);
    index.insert(worker(1), LIFE);
    index.apply(worker(0), LIFE, &stored(&[1, 2], Medium::Device));
    index.apply(worker(1), LIFE, &stored(&[1, 2], Medium::Device));
    assert_eq!((index.held(), index.dropped()), (4, 0));
    index.apply(worker(1), LIFE, &stored(&[3], Medium::Device));
    assert_eq!((index.held(), index.dropped()), (3, 2), "block 1 went, with both its holders");
    assert_eq!(overlap(&index, worker(1), &[2, 3]).blocks(), 2);
    index.apply(worker(0), LIFE, &removed(&[1], Medium::Device));
    assert_eq!(index.held(), 3, "what was dropped may be removed");
}

#[test]
fn predictions_end_and_can_be_renewed() {
    let mut index = index();
    let at = Time::from_millis;
    index.predict(worker(0), &sequence(&[1, 2, 3]), at(10));
    index.predict(worker(0), &sequence(&[1]), at(20));
    index.apply(worker(1), LIFE, &stored(&[1, 2], Medium::Host));
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3]).blocks(), 3);
    assert_eq!(overlap(&index, worker(1), &[1, 2, 3]).on(Medium::Host), 2);
    index.expire(at(10));
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3]).blocks(), 1);
    index.expire(at(20));
    assert_eq!((overlap(&index, worker(0), &[1]).blocks(), index.predicted()), (0, 0));
    index.predict(worker(0), &sequence(&[1]), at(30));
    index.remove(worker(0));
    assert_eq!(index.predicted(), 0);
}

#[test]
fn predictions_have_a_bound() {
    let mut index = Index::new(3);
    index.insert(worker(0), LIFE);
    index.predict(worker(0), &sequence(&[1, 2]), Time::from_millis(10));
    index.predict(worker(0), &sequence(&[3, 4, 5]), Time::from_millis(20));
    assert_eq!(index.predicted(), 3);
    assert_eq!(overlap(&index, worker(0), &[3, 4, 5]).blocks(), 3);
}

/// The obvious index: a list of lives, a count per worker, medium and block.
#[derive(Default)]
struct Model {
    lives: HashMap<WorkerRank, (Generation, bool)>,
    copies: HashMap<(WorkerRank, Medium, u64), u32>,
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Generation),
    Remove,
    Unknown,
    Replace(Generation, Vec<(u64, Medium)>),
    Apply(Generation, KvEvent),
}

impl Model {
    fn clear(&mut self, worker: WorkerRank) {
        self.copies.retain(|key, _| key.0 != worker);
    }

    fn enter(&mut self, worker: WorkerRank, generation: Generation) -> Applied {
        match self.lives.get(&worker).copied() {
            None => return Applied::UnknownWorker,
            Some((known, _)) if generation < known => return Applied::Stale,
            Some((known, false)) if generation == known => return Applied::UnknownState,
            Some((known, true)) if generation == known => {}
            Some(_) => {
                self.clear(worker);
                self.lives.insert(worker, (generation, true));
            }
        }
        Applied::Yes
    }

    fn step(&mut self, worker: WorkerRank, step: &Step) {
        match step {
            Step::Insert(generation) => {
                self.lives.entry(worker).or_insert((*generation, true));
                self.enter(worker, *generation);
            }
            Step::Remove => {
                self.clear(worker);
                self.lives.remove(&worker);
            }
            Step::Unknown => {
                self.clear(worker);
                if let Some(life) = self.lives.get_mut(&worker) {
                    life.1 = false;
                }
            }
            Step::Replace(generation, blocks) => {
                let entered = self.enter(worker, *generation);
                if matches!(entered, Applied::Yes | Applied::UnknownState) {
                    self.clear(worker);
                    self.lives.insert(worker, (*generation, true));
                    for &(hash, medium) in blocks {
                        *self.copies.entry((worker, medium, hash)).or_default() += 1;
                    }
                }
            }
            Step::Apply(generation, event) => {
                if self.enter(worker, *generation) == Applied::Yes {
                    self.apply(worker, event);
                }
            }
        }
        self.copies.retain(|_, copies| *copies > 0);
    }

    fn apply(&mut self, worker: WorkerRank, event: &KvEvent) {
        match event {
            KvEvent::Stored(stored) => {
                for &hash in &stored.hashes {
                    *self.copies.entry((worker, stored.medium, hash)).or_default() += 1;
                }
            }
            KvEvent::Removed(removed) => {
                for &hash in &removed.hashes {
                    let copies = self.copies.entry((worker, removed.medium, hash)).or_default();
                    *copies = copies.saturating_sub(1);
                }
            }
            KvEvent::Cleared => self.clear(worker),
        }
    }

    fn overlap(&self, worker: WorkerRank, hashes: &[u64]) -> Overlap {
        let mut overlap = Overlap::default();
        for &hash in hashes {
            let held = |medium: &Medium| self.copies.contains_key(&(worker, *medium, hash));
            match Medium::ALL.into_iter().find(held) {
                Some(medium) => overlap.count(medium),
                None => break,
            }
        }
        overlap
    }
}

fn run(index: &mut Index, worker: WorkerRank, step: &Step) {
    match step {
        Step::Insert(generation) => {
            index.insert(worker, *generation);
        }
        Step::Remove => index.remove(worker),
        Step::Unknown => index.unknown(worker),
        Step::Replace(generation, blocks) => {
            let blocks = blocks.iter().map(|&(hash, medium)| (SequenceHash(hash), medium));
            index.replace(worker, *generation, blocks);
        }
        Step::Apply(generation, event) => {
            index.apply(worker, *generation, event);
        }
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let generation = || (0u64..3).prop_map(Generation);
    let medium = || select(&Medium::ALL[..]);
    let hashes = || vec(0u64..12, 0..8);
    let blocks = || vec((0u64..12, medium()), 0..12);
    let store = (generation(), hashes(), medium());
    let remove = (generation(), hashes(), medium());
    prop_oneof![
        2 => generation().prop_map(Step::Insert),
        1 => Just(Step::Remove),
        1 => Just(Step::Unknown),
        2 => (generation(), blocks()).prop_map(|(life, blocks)| Step::Replace(life, blocks)),
        8 => store.prop_map(|(life, hashes, medium)| Step::Apply(life, stored(&hashes, medium))),
        6 => remove.prop_map(|(life, hashes, medium)| Step::Apply(life, removed(&hashes, medium))),
        1 => generation().prop_map(|life| Step::Apply(life, KvEvent::Cleared)),
    ]
}

proptest! {
    /// Whatever is stored, removed, lost, restarted or replaced, duplicates and gaps included,
    /// the index answers as the obvious sets do.
    #[test]
    fn agrees_with_plain_sets(
        steps in vec((0u64..5, any_step()), 0..120),
        queries in vec(vec(0u64..12, 0..8), 1..8),
    ) {
        let (mut index, mut model) = (Index::new(10_000), Model::default());
        for (number, step) in &steps {
            run(&mut index, worker(*number), step);
            model.step(worker(*number), step);
        }
        prop_assert_eq!(index.held(), model.copies.len());
        let mut out = Overlaps::default();
        for query in &queries {
            index.overlap(&sequence(query), &mut out);
            let found: Vec<_> = out.iter().map(|(worker, _)| worker).collect();
            prop_assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len());
            for number in 0..5 {
                let expected = model.overlap(worker(number), query);
                prop_assert_eq!(out.of(worker(number)), expected);
            }
        }
    }

    /// A small index stays within its bound and never claims a block that is not there.
    #[test]
    fn a_full_index_only_forgets(
        steps in vec((0u64..5, any_step()), 0..120),
        query in vec(0u64..12, 0..8),
        max_blocks in 0usize..20,
    ) {
        let (mut index, mut model) = (Index::new(max_blocks), Model::default());
        for (number, step) in &steps {
            run(&mut index, worker(*number), step);
            model.step(worker(*number), step);
            prop_assert!(index.held() <= max_blocks);
        }
        let mut out = Overlaps::default();
        index.overlap(&sequence(&query), &mut out);
        for number in 0..5 {
            let expected = model.overlap(worker(number), &query);
            prop_assert!(out.of(worker(number)).blocks() <= expected.blocks());
        }
        (0..5).for_each(|number| index.remove(worker(number)));
        prop_assert_eq!(index.held(), 0);
    }
}

/// Everything that is predicted, asked for in parts of `most`.
fn predictions(index: &Index, most: usize) -> HashSet<(WorkerRank, SequenceHash)> {
    let mut all = HashSet::new();
    for part in (0..).step_by(most).map_while(|from| index.predictions(from, most)) {
        assert!(part.len() <= most);
        all.extend(part);
    }
    all
}

#[test]
fn what_a_worker_holds_can_be_given_to_another_index() {
    let (mut one, mut other) = (index(), index());
    let events = [
        stored(&[1, 2, 3], Medium::Device),
        stored(&[1], Medium::Device),
        stored(&[2], Medium::Host),
    ];
    for event in &events {
        one.apply(worker(1), LIFE, event);
    }
    let held = one.held_by(worker(1)).expect("its state is known");
    assert_eq!((held.generation, held.blocks.len()), (LIFE, 5));
    assert_eq!(other.replace(worker(1), held.generation, held.blocks), Applied::Yes);
    for index in [&mut one, &mut other] {
        index.apply(worker(1), LIFE, &removed(&[1], Medium::Device));
        assert_eq!(overlap(index, worker(1), &[1, 2, 3]).blocks(), 3, "one copy is left");
        index.apply(worker(1), LIFE, &removed(&[1], Medium::Device));
        assert_eq!(overlap(index, worker(1), &[1, 2, 3]).blocks(), 0);
    }
    one.unknown(worker(1));
    assert_eq!((one.held_by(worker(1)), one.is_known(worker(1))), (None, false));
    assert_eq!(one.held_by(worker(9)), None);
}

#[test]
fn predictions_can_be_listed_in_parts() {
    let mut index = index();
    index.predict(worker(0), &sequence(&[1, 2, 3]), Time::from_millis(5));
    index.predict(worker(1), &sequence(&[2, 7]), Time::from_millis(9));
    for most in [1, 2, 100] {
        assert_eq!(predictions(&index, most).len(), 5);
    }
    index.expire(Time::from_millis(5));
    let left = [2, 7].map(|hash| (worker(1), SequenceHash(hash)));
    assert_eq!(predictions(&index, 2), HashSet::from(left));
    index.remove(worker(1));
    assert!(predictions(&index, 2).is_empty());
}
