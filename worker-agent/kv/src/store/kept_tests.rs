//! Tests of operators' actions: keeping, forgetting, limiting and switching off.

use super::tests::{Bench, DISK, names};
use super::*;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Names of the blocks that are in host memory, of those in question.
fn here(bench: &mut Bench, range: std::ops::Range<u128>) -> Vec<u128> {
    let is_here = |name: &u128| {
        let found = bench.ask(77, *name..*name + 1);
        bench.end(77);
        !found.ready.is_empty()
    };
    range.filter(is_here).collect()
}

#[test]
fn a_kept_block_stays_until_its_time_is_over() {
    let mut bench = Bench::new(8, Vec::new());
    bench.fill(0..4);
    let outcome = bench.store.keep(&names(0..2), bench.now + MINUTE, bench.now);
    assert_eq!(outcome, KeepOutcome { here: 2, ..KeepOutcome::default() });
    bench.fill(10..30);
    assert_eq!(here(&mut bench, 0..4), [0, 1]);
    assert_eq!(bench.store.next_deadline(), Some(MINUTE));
    bench.now += MINUTE;
    bench.fill(40..60);
    assert_eq!(here(&mut bench, 0..4), Vec::<u128>::new());
    assert_eq!(bench.store.status(bench.now).host.kept, 0);
}

#[test]
fn a_block_in_a_tier_is_read_and_then_kept() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..2);
    let outcome = bench.store.keep(&names(0..3), bench.now + MINUTE, bench.now);
    assert_eq!(outcome, KeepOutcome { coming: 2, ..KeepOutcome::default() });
    for read in bench.reads() {
        bench.read_ends(read, Ok(()));
    }
    bench.fill(10..30);
    assert_eq!(here(&mut bench, 0..3), [0, 1]);
}

#[test]
fn half_of_the_slots_can_be_kept_and_no_more() {
    let mut bench = Bench::new(8, Vec::new());
    bench.fill(0..6);
    let outcome = bench.store.keep(&names(0..6), bench.now + MINUTE, bench.now);
    assert_eq!(outcome, KeepOutcome { here: 4, coming: 0, refused: 2 });
    // To be kept for longer takes no further place.
    let outcome = bench.store.keep(&names(0..1), bench.now + 2 * MINUTE, bench.now);
    assert_eq!(outcome.here, 1);
    bench.now += MINUTE;
    bench.store.expire(bench.now);
    assert_eq!(bench.store.status(bench.now).host.kept, 1);
}

#[test]
fn what_is_forgotten_is_nowhere_and_its_tiers_are_told() {
    let mut bench = Bench::with_disk(8);
    bench.fill(0..2);
    for write in bench.writes() {
        bench.write_ends(write, Ok(()));
    }
    bench.store.keep(&names(0..1), bench.now + MINUTE, bench.now);
    bench.actions();
    let outcome = bench.store.forget(&names(0..1));
    assert_eq!(outcome, ForgetOutcome { host: 1, below: 1 });
    let told = Action::Forget { tier: DISK, names: names(0..1).into() };
    assert!(bench.actions().contains(&told));
    assert_eq!(bench.ask(1, 0..1), Found::default());
    assert_eq!(here(&mut bench, 0..2), [1]);
    assert_eq!(bench.store.status(bench.now).host.kept, 0);
}

#[test]
fn a_request_keeps_a_block_that_is_forgotten_meanwhile() {
    let mut bench = Bench::new(2, Vec::new());
    bench.fill(0..1);
    let slot = bench.ask(1, 0..1).ready[0];
    assert_eq!(bench.store.forget(&names(0..1)).host, 1);
    assert_ne!(bench.store.grant(bench.owner, 2, bench.now), [slot]);
    bench.end(1);
    assert_eq!(bench.store.grant(bench.owner, 2, bench.now), [slot]);
}

#[test]
fn one_tier_is_cleared_and_the_others_keep_theirs() {
    let mut bench = Bench::with_disk(8);
    bench.fill(0..2);
    for write in bench.writes() {
        bench.write_ends(write, Ok(()));
    }
    bench.store.clear_host();
    assert_eq!(bench.ask(1, 0..2).pending, 2);
    for read in bench.reads() {
        bench.read_ends(read, Ok(()));
    }
    bench.end(1);
    bench.actions();
    bench.store.clear_tier(DISK);
    assert!(bench.actions().contains(&Action::Clear { tier: DISK }));
    assert_eq!(bench.store.status(bench.now).tiers[0].held, 0);
    assert_eq!(bench.ask(2, 0..2).ready.len(), 2);
}

#[test]
fn fewer_slots_evict_in_order_a_few_at_a_time() {
    let mut bench = Bench::new(8, Vec::new());
    bench.fill(0..8);
    let held = bench.ask(1, 0..1).ready;
    bench.store.set_slot_limit(3);
    // Whoever wants a slot meanwhile is refused, and waits for nothing.
    assert_eq!(bench.store.grant(bench.owner, 1, bench.now), []);
    assert!(bench.store.shrink(2, bench.now));
    assert!(!bench.store.shrink(9, bench.now));
    let host = bench.store.status(bench.now).host;
    assert_eq!((host.used, host.limit, host.slots), (3, 3, 8));
    assert_eq!(bench.ask(1, 0..1).ready, held);
    bench.store.set_slot_limit(99);
    assert_eq!(bench.store.grant(bench.owner, 9, bench.now).len(), 5 + 2);
}

#[test]
fn a_tier_that_is_off_is_neither_read_nor_written() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..1);
    bench.store.set_tier_on(DISK, false);
    bench.fill(5..6);
    assert_eq!((bench.ask(1, 0..1).pending, bench.writes().len()), (0, 0));
    assert!(bench.store.status(bench.now).tiers[0].is_off);
    bench.store.set_tier_on(DISK, true);
    assert_eq!(bench.ask(2, 0..1).pending, 1);
    bench.store.expire(bench.now);
    assert_eq!(bench.writes().len(), 1);
}

#[test]
fn a_write_budget_holds_from_the_moment_that_it_is_set() {
    let mut bench = Bench::with_disk(64);
    bench.store.set_write_budget(DISK, Some(4096), bench.now);
    bench.fill(0..4);
    assert_eq!(bench.writes().len(), 1);
    bench.now += Duration::from_secs(1);
    bench.store.expire(bench.now);
    assert_eq!(bench.writes().len(), 1);
    bench.store.set_write_budget(DISK, None, bench.now);
    bench.store.expire(bench.now);
    assert_eq!(bench.writes().len(), 2);
}
