//! Tests of reads that nobody wants any more.

use super::tests::{Bench, DISK, block, names};
use super::*;
use crate::cost::EnginePace;
use crate::tier::{TierError, TierReport};
use crate::{Block, SlotId};
use proptest::prelude::*;
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, BTreeSet};

impl Bench {
    /// Reads that begin and reads that may be dropped, in order.
    fn ordered(&mut self) -> [Vec<(BlockName, SlotId)>; 2] {
        let (mut begun, mut dropped) = (Vec::new(), Vec::new());
        for action in self.actions() {
            match action {
                Action::Read { read, .. } => begun.push((read.name, read.slot)),
                Action::Cancel { name, slot, .. } => dropped.push((name, slot)),
                _ => {}
            }
        }
        [begun, dropped]
    }

    fn used(&self) -> usize {
        self.store.status(self.now).host.used
    }
}

#[test]
fn reads_of_a_request_that_ended_are_dropped() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..2);
    bench.ask(1, 0..2);
    let [begun, _] = bench.ordered();
    bench.end(1);
    let [_, mut dropped] = bench.ordered();
    dropped.sort_unstable();
    assert_eq!(dropped, begun);
    assert_eq!(bench.used(), 2, "the slots are the tier's until it reports");
    begun.iter().for_each(|read| bench.read_ends(*read, Err(TierError::Cancelled)));
    let status = bench.store.status(bench.now);
    assert_eq!((status.host.used, status.tiers[0].reads_in_flight), (0, 0));
    assert_eq!((status.tiers[0].stats.dropped, status.stats.odd_reports), (2, 0));
    // The tier still has them, and is as good as before.
    assert_eq!(bench.ask(2, 0..2).pending, 2);
}

#[test]
fn a_read_stays_until_the_last_request_that_waits_for_it_has_ended() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..3);
    bench.ask(1, 0..2);
    bench.ask(2, 0..3);
    bench.ordered();
    bench.end(1);
    assert_eq!(bench.ordered(), [vec![], vec![]]);
    bench.end(2);
    assert_eq!(bench.ordered()[1].len(), 3);
}

#[test]
fn a_late_read_is_dropped() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..2);
    bench.ask(1, 0..2);
    bench.ordered();
    bench.now += Duration::from_secs(2);
    bench.store.expire(bench.now);
    assert_eq!(bench.ordered()[1].len(), 2);
}

#[test]
fn a_dropped_read_that_had_begun_is_of_use_to_the_next_request() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..1);
    bench.ask(1, 0..1);
    let [begun, _] = bench.ordered();
    bench.end(1);
    bench.read_ends(begun[0], Ok(()));
    assert_eq!(bench.ask(2, 0..1).ready, [begun[0].1]);
}

#[test]
fn a_dropped_block_that_is_asked_for_again_is_read_anew() {
    for first in [Ok(()), Err(TierError::Cancelled), Err(TierError::Failed)] {
        let mut bench = Bench::with_disk(8);
        bench.found(0..1);
        bench.ask(1, 0..1);
        let [before, _] = bench.ordered();
        bench.end(1);
        assert_eq!(bench.ask(2, 0..1).pending, 1);
        let [after, _] = bench.ordered();
        assert_ne!(after[0].1, before[0].1);
        bench.read_ends(before[0], first);
        assert_eq!((bench.used(), bench.answers()), (1, vec![]), "{first:?}");
        bench.read_ends(after[0], Ok(()));
        assert_eq!(bench.answers(), [(2, 1, 0)]);
    }
}

#[test]
fn what_is_read_ahead_or_to_be_kept_is_not_dropped() {
    let named = |name: u128| Block { hash: Some(SequenceHash(name as u64)), ..block(name) };
    let mut bench = Bench::with_disk(16);
    let found = TierReport::Found((0..4).map(named).collect());
    bench.store.report(DISK, found, bench.now);
    bench.ask(1, 0..4);
    let read_ahead = |bench: &mut Bench| {
        bench.store.read_ahead(&[SequenceHash(0)], EnginePace::default(), bench.now)
    };
    let ahead = [read_ahead(&mut bench), read_ahead(&mut bench)];
    bench.store.keep(&names(1..2), Duration::from_secs(9), bench.now);
    bench.ordered();
    bench.end(1);
    let dropped: Vec<_> = bench.ordered()[1].iter().map(|(name, _)| name.0).collect();
    assert_eq!(dropped, [3, 2]);
    // It is dropped with the last request that it was read for.
    let [first, last] = ahead;
    bench.store.end_ahead(first, bench.now);
    assert_eq!(bench.ordered()[1], []);
    bench.store.end_ahead(last, bench.now);
    assert_eq!(bench.ordered()[1].len(), 1);
}

#[test]
fn the_end_of_a_request_drops_no_later_read_into_the_same_slot() {
    let mut bench = Bench::with_disk(1);
    let named = |name: u128| Block { hash: Some(SequenceHash(name as u64)), ..block(name) };
    let found = TierReport::Found((0..2).map(named).collect());
    bench.store.report(DISK, found, bench.now);
    let ahead = bench.store.read_ahead(&[SequenceHash(0)], EnginePace::default(), bench.now);
    let [begun, _] = bench.ordered();
    bench.read_ends(begun[0], Err(TierError::Busy));
    assert_eq!(bench.ask(1, 1..2).pending, 1);
    bench.ordered();
    bench.store.end_ahead(ahead, bench.now);
    assert_eq!(bench.ordered()[1], []);
}

#[test]
fn a_block_that_was_computed_meanwhile_is_not_read_any_more() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..1);
    bench.ask(1, 0..1);
    bench.ordered();
    bench.fill_one(0);
    assert_eq!(bench.ordered()[1], [], "a request waits for it");
    bench.end(1);
    let [_, dropped] = bench.ordered();
    assert_eq!(dropped.len(), 1);
    bench.read_ends(dropped[0], Err(TierError::Cancelled));
    assert_eq!((bench.used(), bench.ask(2, 0..1).ready.len()), (1, 1));
}

#[test]
fn a_tier_that_only_drops_reads_makes_no_progress() {
    let mut bench = Bench::with_disk(16);
    bench.found(0..6);
    bench.ask(1, 0..1);
    bench.ask(2, 1..3);
    bench.ordered();
    bench.now += Duration::from_millis(1_500);
    bench.end(2);
    for read in bench.ordered()[1].clone() {
        bench.read_ends(read, Err(TierError::Cancelled));
    }
    bench.now += Duration::from_millis(600);
    assert!(bench.store.status(bench.now).tiers[0].is_stalled);
    assert_eq!(bench.ask(3, 3..6).pending, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Ask {
        request: u64,
        first: u128,
        count: u128,
    },
    End {
        request: u64,
    },
    /// The read at this place ends: dropped if it may be, and `drops`.
    Finish {
        pick: usize,
        drops: bool,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..6_u64, 0..8_u128, 1..6_u128)
            .prop_map(|(request, first, count)| Step::Ask { request, first, count }),
        3 => (0..6_u64).prop_map(|request| Step::End { request }),
        4 => (any::<usize>(), any::<bool>())
            .prop_map(|(pick, drops)| Step::Finish { pick, drops }),
    ]
}

proptest! {
    /// Whatever the order of questions, ends and completions: every request that stays gets all blocks
    /// that it was promised, and when all have ended no slot and no read is left.
    #[test]
    fn no_wanted_read_is_dropped_and_no_slot_leaks(
        steps in proptest::collection::vec(any_step(), 0..80),
    ) {
        // Slots of dropped reads stay with the tier: there is room for all of them.
        let mut bench = Bench::with_disk(512);
        bench.found(0..16);
        let mut reads: Vec<(BlockName, SlotId)> = Vec::new();
        let mut droppable = BTreeSet::new();
        let mut waiting: BTreeMap<u64, usize> = BTreeMap::new();
        let finish = (0..500).map(|_| Step::Finish { pick: 0, drops: true });
        let ends = (0..6).map(|request| Step::End { request });
        for step in steps.into_iter().chain(finish.clone()).chain(ends).chain(finish) {
            match step {
                Step::Ask { request, first, count } => {
                    // A number is that of one request.
                    if waiting.contains_key(&request) {
                        continue;
                    }
                    let found = bench.ask(request, first..first + count);
                    prop_assert_eq!(found.ready.len() + found.pending, count as usize);
                    waiting.insert(request, found.pending);
                }
                Step::End { request } => {
                    waiting.remove(&request);
                    bench.end(request);
                }
                Step::Finish { .. } if reads.is_empty() => {}
                Step::Finish { pick, drops } => {
                    let read = reads.swap_remove(pick % reads.len());
                    let is_dropped = droppable.remove(&read.1) && drops;
                    let result = if is_dropped { Err(TierError::Cancelled) } else { Ok(()) };
                    bench.read_ends(read, result);
                }
            }
            for action in bench.actions() {
                match action {
                    Action::Read { read, .. } => reads.push((read.name, read.slot)),
                    Action::Cancel { slot, .. } => prop_assert!(droppable.insert(slot)),
                    Action::Ready { request, slots, pending, .. } => {
                        let left = waiting.get_mut(&request.0).expect("it waits");
                        prop_assert_eq!(slots.len() + pending, *left, "a block did not come");
                        *left = pending;
                    }
                    _ => {}
                }
            }
            if reads.is_empty() {
                prop_assert!(waiting.values().all(|left| *left == 0));
            }
        }
        let status = bench.store.status(bench.now);
        prop_assert_eq!((status.host.pinned, status.tiers[0].reads_in_flight), (0, 0));
        prop_assert!(reads.is_empty() && droppable.is_empty());
        bench.store.clear();
        prop_assert_eq!(bench.used(), 0);
    }
}
