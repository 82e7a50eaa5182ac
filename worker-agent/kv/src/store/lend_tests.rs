//! Tests of what a store does for other agents.

use super::tests::{Bench, DISK, block, names};
use super::*;
use crate::cost::{ReadCost, SourceId};
use crate::tier::{TierError, TierReport, Urgency};
use proptest::prelude::*;
use stator_protos::kv_event::Medium;
use std::num::NonZeroU8;

const PEER: TierId = TierId(1);

fn ms(of: u64) -> Duration {
    Duration::from_millis(of)
}

fn terms(wait_ms: u64, reads_max: usize) -> LoanTerms {
    LoanTerms { wait: ms(wait_ms), reads_max, urgency: Urgency::Demand }
}

impl Bench {
    fn lend(&mut self, loan: u64, range: std::ops::Range<u128>, terms: LoanTerms) -> Found {
        self.store.lend(self.owner, RequestId(loan), &names(range), terms, self.now)
    }

    /// The disk takes this long for each block: it has just read some.
    fn measured(&mut self, per_block: Duration) {
        self.found(900..908);
        self.ask(9_000, 900..908);
        for read in self.reads() {
            self.now += per_block;
            self.read_ends(read, Ok(()));
        }
        self.end(9_000);
        self.actions();
    }
}

#[test]
fn what_is_on_disk_is_lent_behind_what_is_in_memory() {
    let mut bench = Bench::with_disk(16);
    bench.fill(0..2);
    bench.found(2..5);
    bench.fill(5..6);
    bench.actions();
    let found = bench.lend(1, 0..7, terms(500, 8));
    assert_eq!((found.ready.len(), found.pending), (2, 4));
    for read in bench.reads() {
        bench.read_ends(read, Ok(()));
    }
    assert_eq!(bench.answers(), [(1, 1, 3), (1, 1, 2), (1, 2, 0)]);
    assert_eq!(bench.store.status(bench.now).host.pinned, 6);
    bench.end(1);
    assert_eq!(bench.store.status(bench.now).host.pinned, 0);
}

#[test]
fn a_loan_waits_no_longer_than_its_reader_can() {
    let mut bench = Bench::with_disk(16);
    bench.found(0..2);
    assert_eq!(bench.lend(1, 0..2, terms(500, 8)).pending, 2);
    assert_eq!(bench.store.next_deadline(), Some(ms(500)));
    bench.now = ms(500);
    bench.store.expire(bench.now);
    assert_eq!(bench.answers(), [(1, 0, 0)]);
    // Nor longer than requests of its own.
    let mut bench = Bench::with_disk(16);
    bench.found(0..2);
    bench.lend(1, 0..2, terms(60_000, 8));
    assert_eq!(bench.store.next_deadline(), Some(ms(2_000)));
}

#[test]
fn a_disk_that_fails_ends_the_wait_at_once() {
    let mut bench = Bench::with_disk(16);
    bench.found(0..3);
    bench.lend(1, 0..3, terms(500, 8));
    let reads = bench.reads();
    bench.read_ends(reads[0], Ok(()));
    bench.read_ends(reads[1], Err(TierError::Failed));
    assert_eq!(bench.answers(), [(1, 1, 2), (1, 0, 0)]);
}

#[test]
fn nothing_is_read_for_a_loan_that_would_be_late() {
    let mut bench = Bench::with_disk(64);
    bench.measured(ms(10));
    bench.found(0..32);
    let within = |bench: &mut Bench, wait_ms| {
        let pending = bench.lend(1, 0..32, terms(wait_ms, 64)).pending;
        for read in bench.reads() {
            bench.read_ends(read, Err(TierError::Busy));
        }
        bench.end(1);
        bench.actions();
        pending
    };
    assert_eq!(within(&mut bench, 0), 0);
    let some = within(&mut bench, 105);
    assert!((7..=11).contains(&some), "{some}");
    assert_eq!(within(&mut bench, 1_000), 32);
}

#[test]
fn nothing_is_read_from_other_agents_for_other_agents() {
    let peer = TierSettings { is_announced: false, ..TierSettings::new(Medium::Remote) };
    let mut bench = Bench::new(16, vec![TierSettings::new(Medium::Disk), peer]);
    bench.fill(0..1);
    let blocks = |range: std::ops::Range<u128>| range.map(block).collect();
    bench.store.report(PEER, TierReport::Found(blocks(1..4)), bench.now);
    let source = SourceId(NonZeroU8::MIN);
    let cost = Some(ReadCost { latency: ms(0), block: ms(0) });
    let located = TierReport::Located { names: names(2..4), source, cost };
    bench.store.report(PEER, located, bench.now);
    bench.actions();
    let found = bench.lend(1, 0..4, terms(500, 8));
    assert_eq!((found.ready.len(), found.pending), (1, 0));
    // Nor are blocks waited for that are on their way from there.
    assert_eq!(bench.ask(2, 0..4).pending, 3);
    assert_eq!(bench.lend(3, 0..4, terms(500, 8)).pending, 0);
    // The disk is read, wherever else a block is.
    bench.store.report(DISK, TierReport::Found(blocks(4..6)), bench.now);
    bench.store.report(PEER, TierReport::Found(blocks(4..6)), bench.now);
    assert_eq!(bench.lend(4, 4..6, terms(500, 8)).pending, 2);
}

proptest! {
    /// A loan has as many blocks in a row as are in memory, or on disk within both bounds.
    #[test]
    fn a_loan_has_what_its_terms_allow(
        places in proptest::collection::vec(0..3_u8, 0..30),
        reads_max in 0..12_usize,
        wait_ms in 1..9_u64,
    ) {
        let mut bench = Bench::with_disk(64);
        for (name, place) in (0..).zip(&places) {
            match place {
                0 => drop(bench.fill_one(name)),
                1 => bench.found(name..name + 1),
                _ => {}
            }
        }
        bench.actions();
        let found = bench.lend(1, 0..places.len() as u128, terms(wait_ms, reads_max));
        let mut reads = 0;
        let lent = places.iter().take_while(|place| {
            reads += usize::from(**place == 1);
            **place < 2 && reads <= reads_max
        });
        prop_assert_eq!(found.ready.len() + found.pending, lent.count());
        let ready = places.iter().take_while(|place| **place == 0).count();
        prop_assert_eq!(found.ready.len(), ready);
        prop_assert_eq!(bench.reads().len(), reads.min(reads_max));
    }
}
