//! Prompts and fleets of the sizes that there are, against literal sets.

use super::*;
use proptest::{collection::vec, prelude::*};

const WORKERS: u64 = 12;
/// Blocks that all prompts begin with.
const SHARED: usize = 24;

/// The prompt of a conversation.
fn prompt(conversation: u64, blocks: usize) -> Vec<u64> {
    let block =
        |place: u64| if place < SHARED as u64 { place } else { (conversation + 1) << 32 | place };
    (1..=blocks as u64).map(|place| block(place - 1) + 1).collect()
}

#[derive(Clone, Debug)]
enum SetStep {
    /// A worker answers a conversation that has come to so many blocks.
    Answer(u64, usize),
    /// It evicts what a conversation has beyond so many blocks.
    Evict(u64, usize),
    Restart,
}

fn any_step() -> impl Strategy<Value = (u64, SetStep)> {
    let step = prop_oneof![
        6 => (0u64..6, 1usize..1600).prop_map(|(of, blocks)| SetStep::Answer(of, blocks)),
        3 => (0u64..6, SHARED..1600).prop_map(|(of, blocks)| SetStep::Evict(of, blocks)),
        1 => Just(SetStep::Restart),
    ];
    (0..WORKERS, step)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Wherever in deep prompts workers stop, the index finds it as a look at every block does.
    #[test]
    fn deep_prompts_are_found_as_far_as_they_are_held(steps in vec(any_step(), 1..60)) {
        let index = Index::new(IndexSettings::default());
        (0..WORKERS).for_each(|number| _ = index.insert(worker(number), LIFE));
        let mut held = vec![HashSet::new(); WORKERS as usize];
        let mut out = Overlaps::default();
        for (life, (number, step)) in (LIFE.0 + 1..).zip(steps) {
            let (rank, held_here) = (worker(number), &mut held[number as usize]);
            let generation = index.generation(rank).expect("it is registered");
            match step {
                SetStep::Answer(conversation, blocks) => {
                    let blocks = prompt(conversation, blocks);
                    index.apply(rank, generation, &on_device(&blocks));
                    held_here.extend(blocks);
                }
                SetStep::Evict(conversation, blocks) => {
                    let mut gone = prompt(conversation, 1600).split_off(blocks);
                    gone.retain(|hash| held_here.remove(hash));
                    index.apply(rank, generation, &removed(&gone, Medium::Device));
                }
                SetStep::Restart => {
                    index.insert(rank, Generation(life));
                    held_here.clear();
                }
            }
            for conversation in 0..6 {
                let asked = prompt(conversation, 1 + (life as usize * 397 + 600) % 1600);
                index.overlap(&sequence(&asked), &mut out);
                for (number, held) in (0..).zip(&held) {
                    let expected = asked.iter().take_while(|hash| held.contains(hash)).count();
                    prop_assert_eq!(out.of(worker(number)).blocks() as usize, expected);
                }
            }
        }
    }
}

/// Each worker that comes to hold a shared prompt makes a new set, as long as all before it.
#[test]
fn ten_thousand_workers_share_a_prompt() {
    const FLEET: u64 = 10_000;
    let index = Index::new(IndexSettings { max_bytes: 64 << 20, ..IndexSettings::default() });
    let shared = prompt(0, 3);
    for number in 0..FLEET {
        index.insert(worker(number), LIFE);
        index.apply(worker(number), LIFE, &on_device(&shared));
    }
    let mut own = shared.clone();
    own.push(7);
    index.apply(worker(77), LIFE, &on_device(&own));
    let check = |workers: usize, own_depth: u32| {
        let mut out = Overlaps::default();
        index.overlap(&sequence(&own), &mut out);
        assert_eq!(out.iter().count(), workers);
        assert_eq!((out.of(worker(9)).blocks(), out.of(worker(77)).blocks()), (3, own_depth));
    };
    check(FLEET as usize, 4);
    let stats = index.stats();
    assert_eq!((stats.held as u64, stats.dropped), (3 * FLEET + 1, 0));
    assert!(stats.bytes <= 64 << 20, "{stats:?}");

    // Half of them restart at once.
    (0..FLEET / 2)
        .map(|half| half * 2)
        .for_each(|number| _ = index.insert(worker(number), Generation(9)));
    check(FLEET as usize / 2, 4);
    maintain(&index);
    check(FLEET as usize / 2, 4);
    assert_eq!(index.stats().sets, 2);
}
