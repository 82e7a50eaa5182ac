use super::*;
use crate::testkit::{removed, stored, worker};
use crate::{Overlap, PredictionPolicy, WorkerHoldings};
use stator_protos::kv_event::Medium;
use std::collections::HashSet;

mod batches;
mod concurrent;
mod fleet;
mod model;

const LIFE: Generation = Generation(5);

fn sequence(hashes: &[u64]) -> Vec<SequenceHash> {
    hashes.iter().copied().map(SequenceHash).collect()
}

/// An index of three workers in which tables grow from one bucket on.
fn index() -> Index {
    let index = tiny(IndexSettings::default(), 2);
    for number in 0..3 {
        index.insert(worker(number), LIFE);
    }
    index
}

fn tiny(settings: IndexSettings, lanes: usize) -> Index {
    Index::with_layout(&settings, Layout::tiny(lanes))
}

fn overlap(index: &Index, of: WorkerRank, hashes: &[u64]) -> Overlap {
    let mut out = Overlaps::default();
    index.overlap(&sequence(hashes), &mut out);
    out.of(of)
}

fn held(index: &Index, worker: WorkerRank) -> Option<WorkerHoldings> {
    index.held_by(&[worker]).pop().expect("one was asked for")
}

fn on_device(hashes: &[u64]) -> KvEvent {
    stored(hashes, None, Medium::Device)
}

/// Does all that can be done in the background.
fn maintain(index: &Index) {
    while index.maintain(64) {}
    index.shared.sets.want_collection();
    index.maintain(0);
}

/// Applies `events` to worker 0 and expects it to hold so many of 1, 2, 3, 4 on each medium.
#[track_caller]
fn check(events: &[KvEvent], expected: [u32; 4]) {
    let index = index();
    for event in events {
        assert_eq!(index.apply(worker(0), LIFE, event), EventEffect::Yes);
    }
    let found = overlap(&index, worker(0), &[1, 2, 3, 4]);
    assert_eq!(Medium::ALL.map(|medium| found.on(medium)), expected);
    assert_eq!(overlap(&index, worker(1), &[1, 2, 3, 4]).blocks(), 0, "others hold nothing");
    let at_once = index.apply_all(worker(1), LIFE, events);
    let same = overlap(&index, worker(1), &[1, 2, 3, 4]);
    assert_eq!((at_once, same), (EventEffect::Yes, found));
}

#[test]
fn leading_blocks_count_on_their_medium() {
    use Medium::{Device, Host};
    check(&[on_device(&[1, 2])], [2, 0, 0, 0]);
    check(&[on_device(&[1, 2, 3]), stored(&[2, 3], Some(1), Host)], [1, 2, 0, 0]);
    check(&[on_device(&[1, 2, 3]), removed(&[3], Device)], [2, 0, 0, 0]);
    check(&[on_device(&[1, 2, 3]), KvEvent::Cleared, on_device(&[1])], [1, 0, 0, 0]);
    check(&[KvEvent::Cleared, on_device(&[0])], [0; 4]);
}

#[test]
fn repeats_and_removals_elsewhere_change_nothing() {
    use Medium::{Device, Host};
    check(&[on_device(&[1]), on_device(&[1]), removed(&[1], Device)], [0; 4]);
    check(&[on_device(&[1]), removed(&[1], Host), removed(&[7], Host)], [1, 0, 0, 0]);
    let moved = [on_device(&[1]), stored(&[1], None, Host), removed(&[1], Device)];
    check(&moved, [0, 1, 0, 0]);
}

#[test]
fn a_dead_life_never_comes_back() {
    let index = index();
    let event = on_device(&[1]);
    assert_eq!(index.apply(worker(0), Generation(4), &event), EventEffect::Stale);
    assert_eq!(index.apply(worker(0), Generation(6), &event), EventEffect::Yes);
    assert_eq!(index.apply(worker(0), LIFE, &KvEvent::Cleared), EventEffect::Stale);
    assert_eq!(index.replace(worker(0), LIFE, []), EventEffect::Stale);
    assert_eq!(overlap(&index, worker(0), &[1]).blocks(), 1);
    assert!(!index.insert(worker(0), LIFE));
    assert_eq!(index.generation(worker(0)), Some(Generation(6)));
    assert!(index.insert(worker(0), Generation(7)));
    assert_eq!(overlap(&index, worker(0), &[1]).blocks(), 0, "a new life holds nothing");

    index.remove(worker(0));
    assert_eq!(index.apply(worker(0), Generation(7), &event), EventEffect::UnknownWorker);
    assert_eq!(index.replace(worker(0), Generation(7), []), EventEffect::UnknownWorker);
    assert_eq!(index.generation(worker(0)), None);
}

#[test]
fn an_unknown_state_holds_nothing_until_replaced() {
    let index = index();
    index.apply(worker(0), LIFE, &on_device(&[1, 2]));
    index.unknown(worker(0));
    assert_eq!((index.stats().held, overlap(&index, worker(0), &[1]).blocks()), (0, 0));
    assert_eq!(index.apply(worker(0), LIFE, &on_device(&[1, 2])), EventEffect::UnknownState);
    index.predict(worker(0), &sequence(&[1]), Time::from_millis(10));
    assert_eq!((index.stats().predicted, index.is_known(worker(0))), (0, false));

    let snapshot = sequence(&[1, 2, 3]).into_iter().map(|hash| (hash, Medium::Device));
    assert_eq!(index.replace(worker(0), LIFE, snapshot), EventEffect::Yes);
    assert_eq!(index.apply(worker(0), LIFE, &removed(&[3], Medium::Device)), EventEffect::Yes);
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3]).blocks(), 2);
}

#[test]
fn slots_are_used_again_once_swept() {
    let index = index();
    for round in 0..5000 {
        index.apply(worker(0), LIFE, &on_device(&[1, 2, 3, round + 10]));
        index.apply(worker(0), LIFE, &KvEvent::Cleared);
    }
    assert!(index.stats().sweeping < 200, "retiring sweeps if nobody else does");
    assert!(index.shared.published.view().slots() <= 512);
    maintain(&index);
    let stats = index.stats();
    assert_eq!((stats.blocks, stats.held, stats.sets, stats.sweeping), (0, 0, 0, 0));
}

#[test]
fn clearing_nothing_costs_nothing() {
    let index = index();
    (0..1000).for_each(|_| _ = index.apply(worker(0), LIFE, &KvEvent::Cleared));
    assert_eq!(index.stats().sweeping, 0);
}

#[test]
fn beyond_the_bound_the_oldest_blocks_are_dropped() {
    let index = tiny(IndexSettings { max_bytes: 64 << 10, ..IndexSettings::default() }, 1);
    (0..2).for_each(|number| _ = index.insert(worker(number), LIFE));
    for hash in 1..=20_000 {
        index.apply(worker(hash % 2), LIFE, &on_device(&[hash]));
    }
    let stats = index.stats();
    assert!(stats.bytes <= 64 << 10, "{stats:?}");
    assert_eq!(stats.held as u64 + stats.dropped, 20_000);
    assert!(stats.blocks > 2500, "{stats:?}");
    let held = |hashes: std::ops::Range<u64>| {
        hashes.filter(|&hash| overlap(&index, worker(hash % 2), &[hash]).blocks() == 1).count()
    };
    assert_eq!((held(1..10_000), held(19_900..20_001)), (0, 101), "the young stay");
}

#[test]
fn a_conversation_whose_beginning_was_dropped_is_found() {
    let index = tiny(IndexSettings { max_bytes: 64 << 10, ..IndexSettings::default() }, 1);
    index.insert(worker(0), LIFE);
    let chain: Vec<u64> = (1..=20_000).collect();
    for block in &chain {
        index.apply(worker(0), LIFE, &on_device(&[*block]));
    }
    assert_eq!(overlap(&index, worker(0), &chain[..9000]).blocks(), 0, "it was dropped");
    let turn: Vec<u64> = chain.iter().copied().chain(50_000..51_000).collect();
    assert_eq!(overlap(&index, worker(0), &turn).blocks(), 20_000);
}

#[test]
fn hashes_made_to_collide_are_dropped() {
    let index = Index::new(IndexSettings { max_bytes: 8 << 20, ..IndexSettings::default() });
    index.insert(worker(0), LIFE);
    // The inverse of the factor by which hashes are scattered: all of these have one home.
    let inverse = (0..6).fold(1u64, |inverse, _| {
        inverse.wrapping_mul(2u64.wrapping_sub(inverse.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    });
    let hashes: Vec<u64> = (0..50_000u64).map(|number| number.wrapping_mul(inverse)).collect();
    index.apply(worker(0), LIFE, &on_device(&hashes));
    let stats = index.stats();
    assert!(stats.dropped > 40_000 && stats.bytes < 8 << 20, "{stats:?}");
    assert_eq!(overlap(&index, worker(0), &hashes[..9]).blocks(), 9);
    index.apply(worker(0), LIFE, &removed(&hashes, Medium::Device));
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn tables_that_share_huge_pages_answer_as_others_do() {
    const BLOCKS: u32 = 400_000;
    let index = index();
    let blocks: Vec<u64> = (1..=u64::from(BLOCKS)).collect();
    let held = || -> u32 {
        blocks.chunks(1000).map(|part| overlap(&index, worker(0), part).blocks()).sum()
    };
    for part in blocks.chunks(1000) {
        index.apply(worker(0), LIFE, &on_device(part));
    }
    assert_eq!(held(), BLOCKS);
    assert!(!index.maintain(1), "it joins one page and leaves time for writers");
    let joins = std::iter::repeat_with(|| index.join_page()).take_while(|more| *more).count();
    assert_eq!(joins > 1, cfg!(target_os = "linux"));
    assert_eq!(held(), BLOCKS);
    index.apply(worker(0), LIFE, &removed(&blocks[1000..], Medium::Device));
    assert_eq!(held(), 1000);
}

#[test]
fn predictions_end_and_can_be_renewed() {
    let index = index();
    let at = Time::from_millis;
    index.predict(worker(0), &sequence(&[1, 2, 3]), at(10));
    index.predict(worker(0), &sequence(&[1]), at(20));
    index.apply(worker(1), LIFE, &stored(&[1, 2], None, Medium::Host));
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3]).blocks(), 3);
    assert_eq!(overlap(&index, worker(1), &[1, 2, 3]).on(Medium::Host), 2);
    index.expire(at(10));
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3]).blocks(), 1);
    index.expire(at(20));
    assert_eq!((overlap(&index, worker(0), &[1]).blocks(), index.stats().predicted), (0, 0));
    index.predict(worker(0), &sequence(&[1]), at(30));
    index.remove(worker(0));
    assert_eq!((index.stats().predicted, index.predictions(0, 9)), (0, None));
}

#[test]
fn predictions_have_a_bound() {
    let index = tiny(IndexSettings { max_predicted: 3, ..IndexSettings::default() }, 1);
    index.insert(worker(0), LIFE);
    index.predict(worker(0), &sequence(&[1, 2]), Time::from_millis(10));
    index.predict(worker(0), &sequence(&[3, 4, 5, 6]), Time::from_millis(20));
    assert_eq!(index.stats().predicted, 3);
    assert_eq!(overlap(&index, worker(0), &[1]).blocks(), 0);
    assert_eq!(overlap(&index, worker(0), &[3, 4, 5, 6]).blocks(), 3);
}

#[test]
fn least_recently_sent_prompts_are_forgotten_first() {
    let predicting = PredictionPolicy::Lru { blocks_per_worker: 5 };
    let index = tiny(IndexSettings { predicting, ..IndexSettings::default() }, 1);
    (0..2).for_each(|number| _ = index.insert(worker(number), LIFE));
    let now = Time::default();
    for prompt in [&[1, 2, 3][..], &[1, 7], &[1, 2], &[1, 8]] {
        index.predict(worker(0), &sequence(prompt), now);
        index.predict(worker(1), &sequence(&[9]), now);
        index.expire(now);
    }
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3]).blocks(), 3);
    index.predict(worker(0), &sequence(&[1, 8, 9]), now);
    let left = |prompt: &[u64]| overlap(&index, worker(0), prompt).blocks();
    assert_eq!((left(&[1, 2, 3]), left(&[1, 7]), left(&[1, 8, 9])), (2, 2, 3));
    assert_eq!((index.stats().predicted, overlap(&index, worker(1), &[9]).blocks()), (6, 1));
}

#[test]
fn who_has_the_most_gives_way_where_each_worker_has_its_own_order() {
    let predicting = PredictionPolicy::Lru { blocks_per_worker: 100 };
    let index = tiny(IndexSettings { predicting, max_predicted: 6, ..IndexSettings::default() }, 1);
    (0..3).for_each(|number| _ = index.insert(worker(number), LIFE));
    let predict = |number, prompt: &[u64]| {
        index.predict(worker(number), &sequence(prompt), Time::default());
    };
    predict(0, &[1, 2]);
    predict(1, &[3, 4]);
    predict(1, &[5, 6]);
    predict(2, &[7, 8]);
    let left = |number, prompt: &[u64]| overlap(&index, worker(number), prompt).blocks();
    let first = (left(0, &[1, 2]), left(1, &[3, 4]), left(1, &[5, 6]), left(2, &[7, 8]));
    assert_eq!(first, (2, 0, 2, 2));
}

#[test]
fn a_report_says_more_than_a_prediction() {
    let index = index();
    index.predict(worker(0), &sequence(&[1, 2, 3]), Time::from_millis(10));
    index.apply(worker(0), LIFE, &stored(&[1, 2], None, Medium::Disk));
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3, 4]), Overlap::new([1, 0, 2, 0]));
    index.expire(Time::from_millis(10));
    assert_eq!(overlap(&index, worker(0), &[1, 2, 3, 4]), Overlap::new([0, 0, 2, 0]));
}

#[test]
fn what_a_worker_holds_can_be_given_to_another_index() {
    let (one, other) = (index(), index());
    let hashes: Vec<u64> = (1..=500).collect();
    one.apply(worker(1), LIFE, &on_device(&hashes));
    one.apply(worker(1), LIFE, &stored(&hashes[300..], None, Medium::Host));
    one.apply(worker(0), LIFE, &on_device(&hashes[..400]));
    let both = one.held_by(&[worker(9), worker(1), worker(0)]);
    let sizes: Vec<_> = both.iter().map(|held| held.as_ref().map(|h| h.blocks.len())).collect();
    assert_eq!(sizes, [None, Some(500), Some(400)]);
    let WorkerHoldings { generation, blocks } = both[1].clone().expect("its state is known");
    assert_eq!(generation, LIFE);
    assert_eq!(other.replace(worker(1), generation, blocks), EventEffect::Yes);
    for index in [&one, &other] {
        assert_eq!(overlap(index, worker(1), &hashes), Overlap::new([300, 200, 0, 0]));
    }
    one.unknown(worker(1));
    assert_eq!(held(&one, worker(1)), None);
}

#[test]
fn what_others_know_of_a_worker_counts_while_nothing_else_is_known() {
    let index = index();
    let blocks = |hashes: &[u64]| -> Vec<(SequenceHash, Medium)> {
        hashes.iter().map(|&hash| (SequenceHash(hash), Medium::Device)).collect()
    };
    assert_eq!(index.restore(worker(1), LIFE, blocks(&[1])), EventEffect::KnownState);
    index.unknown(worker(1));
    assert_eq!(index.restore(worker(1), LIFE, blocks(&[1, 2])), EventEffect::Yes);
    assert_eq!(overlap(&index, worker(1), &[1, 2, 3]).blocks(), 2);
    index.unknown(worker(1));
    // Its own feed is done while what others know is still written.
    let mut late = blocks(&[1, 2]).into_iter();
    let slowly = std::iter::from_fn(|| {
        if late.len() == 1 {
            let feed = || index.replace(worker(1), LIFE, blocks(&[1, 2, 3]));
            std::thread::scope(|scope| _ = scope.spawn(feed));
        }
        late.next()
    });
    assert_eq!(index.restore(worker(1), LIFE, slowly), EventEffect::KnownState);
    assert_eq!(overlap(&index, worker(1), &[1, 2, 3]).blocks(), 3);
    assert_eq!(index.restore(worker(1), Generation(LIFE.0 - 1), []), EventEffect::Stale);
    assert_eq!(index.restore(worker(9), LIFE, []), EventEffect::UnknownWorker);
}

#[test]
fn predictions_can_be_listed_in_parts() {
    let index = index();
    index.predict(worker(0), &sequence(&[1, 2, 3]), Time::from_millis(5));
    index.predict(worker(1), &sequence(&[2, 7]), Time::from_millis(9));
    let list = |most| {
        let mut all = HashSet::new();
        for part in (0..).step_by(most).map_while(|from| index.predictions(from, most)) {
            assert!(part.len() <= most);
            all.extend(part);
        }
        all
    };
    assert!([1, 2, 100].into_iter().all(|most| list(most).len() == 5));
    index.expire(Time::from_millis(5));
    let left = [2, 7].map(|hash| (worker(1), SequenceHash(hash)));
    assert_eq!(list(2), HashSet::from(left));
}
