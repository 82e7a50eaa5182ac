use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const WORKER: WorkerRank = WorkerRank { worker: stator_protos::WorkerId(7), rank: 0 };
const RANKS: usize = 3;

/// What the worker was said to hold, as an index keeps it.
#[derive(Default)]
struct Ear(Mutex<Told>);

#[derive(Default)]
struct Told {
    life: Option<Generation>,
    /// `None` where it is not known.
    blocks: Option<BTreeSet<(u64, Medium)>>,
}

impl KvSink for Ear {
    fn apply(&self, _: WorkerRank, generation: Generation, events: &[KvEvent]) {
        let mut told = self.0.lock();
        assert_eq!(Some(generation), told.life);
        let blocks = told.blocks.as_mut().expect("events follow on what is known");
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    let new = |hash: &u64| blocks.insert((*hash, stored.medium));
                    assert!(stored.hashes.iter().all(new), "what is there is not told again");
                }
                KvEvent::Removed(removed) => {
                    let known = |hash: &u64| blocks.remove(&(*hash, removed.medium));
                    assert!(removed.hashes.iter().all(known), "only what was told is removed");
                }
                KvEvent::Cleared => panic!("the other ranks hold what they hold"),
            }
        }
    }

    fn replace(&self, _: WorkerRank, life: Generation, blocks: Vec<(SequenceHash, Medium)>) {
        let mut told = self.0.lock();
        assert_eq!(Some(life), told.life);
        told.blocks = Some(blocks.into_iter().map(|(hash, medium)| (hash.0, medium)).collect());
    }

    fn unknown(&self, worker: WorkerRank) {
        assert_eq!(worker, WORKER);
        self.0.lock().blocks = None;
    }
}

impl WorkerSink for Ear {
    fn life(&self, worker: WorkerRank, generation: Generation) {
        assert_eq!(worker, WORKER);
        *self.0.lock() = Told { life: Some(generation), blocks: None };
    }
}

/// What a rank's follower says, as far as a rank may say it.
#[derive(Clone, Debug)]
enum Step {
    Life,
    Unknown,
    Replace(Vec<(u64, Medium)>),
    Cleared,
    /// It is there now, wherever it was before.
    Store(u64, Medium),
    Remove(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let (hash, medium) = (0..6u64, proptest::sample::select(&Medium::ALL[..]));
    prop_oneof![
        1 => Just(Step::Life),
        1 => Just(Step::Unknown),
        1 => vec((hash.clone(), medium.clone()), 0..4).prop_map(Step::Replace),
        1 => Just(Step::Cleared),
        6 => (hash.clone(), medium).prop_map(|(hash, medium)| Step::Store(hash, medium)),
        4 => hash.prop_map(Step::Remove),
    ]
}

/// The obvious account: what each rank holds; `None` where it is not known.
type Model = [Option<BTreeMap<u64, Medium>>; RANKS];

fn stored(hash: u64, medium: Medium) -> KvEvent {
    let (hashes, parent, tokens, lora_name) = (vec![hash], None, Vec::new(), None);
    KvEvent::Stored(Stored { hashes, parent, tokens, block_size: 4, medium, lora_name })
}

/// Says it to the rank's sink, and notes it in the model.
fn step(
    sink: &dyn WorkerSink,
    holds: &mut Option<BTreeMap<u64, Medium>>,
    life: Generation,
    step: Step,
) {
    let apply = |events: &[KvEvent]| sink.apply(WORKER, life, events);
    match (step, holds) {
        (Step::Life, holds) => {
            *holds = None;
            sink.life(WORKER, life);
        }
        (Step::Unknown, holds) => {
            *holds = None;
            sink.unknown(WORKER);
        }
        (Step::Replace(blocks), holds) => {
            let blocks: BTreeMap<_, _> = blocks.into_iter().collect();
            let told = blocks.iter().map(|(hash, medium)| (SequenceHash(*hash), *medium));
            sink.replace(WORKER, life, told.collect());
            *holds = Some(blocks);
        }
        // Of a rank whose blocks are not known there are no events.
        (_, None) => {}
        (Step::Cleared, Some(holds)) => {
            holds.clear();
            apply(&[KvEvent::Cleared]);
        }
        (Step::Store(hash, medium), Some(holds)) => {
            let before = holds.insert(hash, medium).filter(|before| *before != medium);
            let removed = before.map(|medium| Removed { hashes: vec![hash], medium });
            let removed = removed.map(KvEvent::Removed);
            apply(&[stored(hash, medium)].into_iter().chain(removed).collect::<Vec<_>>());
        }
        (Step::Remove(hash), Some(holds)) => {
            let Some(medium) = holds.remove(&hash) else { return };
            apply(&[KvEvent::Removed(Removed { hashes: vec![hash], medium })]);
        }
    }
}

fn union(model: &Model) -> Option<BTreeSet<(u64, Medium)>> {
    let known = model.iter().flatten();
    let mut nearest = BTreeMap::new();
    for (hash, medium) in known.clone().flatten() {
        let found = nearest.entry(*hash).or_insert(*medium);
        *found = (*found).min(*medium);
    }
    known.count().checked_sub(1).map(|_| nearest.into_iter().collect())
}

proptest! {
    /// Whatever the ranks say in whatever order, the worker holds what any rank holds, where that
    /// is nearest, from the first rank's first life on.
    #[test]
    fn the_worker_holds_what_any_of_its_ranks_holds(
        steps in vec((0..RANKS, any_step()), 0..60),
    ) {
        let ear = Arc::new(Ear::default());
        let sinks = Union::sinks(RANKS, WORKER, ear.clone());
        let (mut model, mut life) = (Model::default(), None);
        for (number, (rank, said)) in steps.into_iter().enumerate() {
            let generation = Generation(number as u64);
            if rank == 0 && matches!(said, Step::Life) {
                life = Some(generation);
            }
            step(&*sinks[rank], &mut model[rank], generation, said);
            let told = ear.0.lock();
            prop_assert_eq!(told.life, life);
            prop_assert_eq!(&told.blocks, &life.and_then(|_| union(&model)));
        }
    }
}

#[test]
fn as_many_ranks_as_a_set_of_bits_has_are_told_apart() {
    let ear = Arc::new(Ear::default());
    let sinks = Union::sinks(RANKS_MAX, WORKER, ear.clone());
    let life = Generation(1);
    sinks[0].life(WORKER, life);
    for sink in [&sinks[0], &sinks[RANKS_MAX - 1]] {
        sink.replace(WORKER, life, vec![(SequenceHash(5), Medium::Host)]);
    }
    sinks[0].unknown(WORKER);
    assert_eq!(ear.0.lock().blocks, Some([(5, Medium::Host)].into()));
    sinks[RANKS_MAX - 1].unknown(WORKER);
    assert_eq!(ear.0.lock().blocks, None);
}
