//! Tests of reads from tiers, writes to them, and pauses.

use super::tests::{Bench, DISK, block, names};
use super::*;
use crate::cost::{EnginePace, ReadCost, SourceId};
use crate::tier::{TierError, TierEvent, TierRead, TierReport};
use crate::{Block, Checksum};
use proptest::prelude::*;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::num::NonZeroU8;

fn ms(of: u64) -> Duration {
    Duration::from_millis(of)
}

fn disk() -> TierSettings {
    TierSettings::new(Medium::Disk)
}

impl Bench {
    fn ask_with(&mut self, request: u64, range: std::ops::Range<u128>, prefill: Duration) -> Found {
        let names = names(range);
        self.store.ask(self.owner, RequestId(request), &names, prefill, self.now)
    }

    /// Ends all reads in flight, each `per_block` after the one before.
    fn serve(&mut self, per_block: Duration) {
        for read in self.reads() {
            self.now += per_block;
            self.read_ends(read, Ok(()));
        }
        self.actions();
    }
}

#[test]
fn tier_never_slower_than_recompute() {
    let mut bench = Bench::with_disk(64);
    bench.found(0..48);
    // The tier is not known yet: it is tried.
    assert_eq!(bench.ask_with(1, 0..16, ms(1)).pending, 16);
    bench.serve(ms(10));
    let found = bench.ask_with(2, 16..32, ms(1));
    assert_eq!((found.ready.len(), found.pending), (0, 0));
    assert_eq!(bench.store.status(bench.now).tiers[0].stats.refused_by_cost, 16);
    assert_eq!(bench.ask_with(3, 16..32, ms(50)).pending, 16);
}

#[test]
fn a_tier_found_too_slow_is_measured_again_without_a_wait() {
    let mut bench = Bench::with_disk(200);
    bench.found(0..180);
    bench.ask_with(1, 0..16, ms(1));
    bench.serve(ms(10));
    bench.end(1);
    for at in 1..5_u32 {
        bench.now += Duration::from_secs(11);
        let from = u128::from(at) * 14;
        if bench.ask_with(2, from + 2..from + 16, ms(1)).pending > 0 {
            return;
        }
        bench.end(2);
        // By now the tier is fast: eight blocks come at once.
        bench.serve(Duration::ZERO);
    }
    panic!("the tier is never read again");
}

impl Bench {
    /// The tier would read these blocks from this source.
    fn located(&mut self, range: std::ops::Range<u128>, source: u8, (latency, block): (u64, u64)) {
        let source = SourceId(NonZeroU8::new(source).unwrap());
        let cost = Some(ReadCost { latency: ms(latency), block: ms(block) });
        let report = TierReport::Located { names: names(range), source, cost };
        self.store.report(DISK, report, self.now);
    }
}

proptest! {
    /// Of a prompt that one of two agents has, as much is loaded as is faster from that one, whatever
    /// the other costs and both of them did in the mean.
    #[test]
    fn the_cost_of_a_source_decides(
        costs in [(0..60_u64, 1..20_u64), (0..60_u64, 1..20_u64)],
        mean in 0..30_u64,
        prefill in 1..20_u64,
        blocks in 1..40_u64,
    ) {
        let mut bench = Bench::with_disk(128);
        bench.found(0..216);
        bench.ask_with(1, 200..216, ms(1));
        bench.serve(ms(mean));
        for (source, cost) in (1..).zip(costs) {
            let first = u128::from(source) * 50;
            bench.located(first..first + u128::from(blocks), source, cost);
        }
        for (source, (latency, block)) in (1_u8..).zip(costs) {
            // In quarters of a millisecond: a load counts as a quarter longer than it takes.
            let time = |loaded: u64| match loaded {
                0 => 4 * blocks * prefill,
                loaded => 5 * (latency + loaded * block) + 4 * (blocks - loaded) * prefill,
            };
            let best = (0..=blocks).min_by_key(|loaded| time(*loaded)).unwrap_or_default();
            let first = u128::from(source) * 50;
            let asked = first..first + u128::from(blocks);
            let found = bench.ask_with(1 + u64::from(source), asked, ms(prefill));
            prop_assert_eq!(found.pending as u64, best);
        }
    }
}

#[test]
fn a_source_found_too_slow_is_measured_again_without_a_wait() {
    let mut bench = Bench::with_disk(64);
    bench.found(0..40);
    bench.located(0..40, 1, (0, 50));
    assert_eq!(bench.ask_with(1, 0..20, ms(1)).pending, 0);
    assert_eq!(bench.reads(), []);
    bench.now += Duration::from_secs(5);
    // The same cost once more is no news.
    bench.located(0..40, 1, (0, 50));
    assert_eq!(bench.ask_with(2, 0..20, ms(1)).pending, 0);
    assert_eq!(bench.reads().len(), 8);
    assert_eq!(bench.ask_with(3, 20..40, ms(1)).pending, 0);
    assert_eq!(bench.reads(), []);
    bench.located(0..40, 1, (1, 0));
    assert_eq!(bench.ask_with(4, 20..40, ms(1)).pending, 20);
}

#[test]
fn nobody_waits_longer_than_computing_takes() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..3);
    bench.ask_with(1, 0..3, ms(20));
    assert_eq!(bench.store.next_deadline(), Some(ms(60)));
}

#[test]
fn a_tier_that_hangs_gets_no_more_reads() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..4);
    bench.ask(1, 0..1);
    let read = bench.reads()[0];
    bench.now += Duration::from_secs(3);
    assert_eq!(bench.ask(2, 1..3).pending, 0);
    assert_eq!(bench.store.status(bench.now).tiers[0].stats.refused_by_load, 1);
    bench.read_ends(read, Ok(()));
    assert_eq!(bench.ask(3, 1..3).pending, 2);
}

#[test]
fn the_nearest_tier_that_works_is_read() {
    let tiers = vec![TierSettings { reads_max: 1, ..disk() }, TierSettings::new(Medium::Remote)];
    let mut bench = Bench::new(8, tiers);
    bench.found(0..3);
    let blocks = (0..3).map(super::tests::block).collect();
    bench.store.report(TierId(1), TierReport::Found(blocks), bench.now);
    assert_eq!(bench.ask(1, 0..3).pending, 3);
    let tiers = bench.store.status(bench.now).tiers;
    assert_eq!((tiers[0].stats.demanded, tiers[1].stats.demanded), (1, 2));
}

#[test]
fn of_tiers_that_hold_a_block_the_one_that_saves_most_is_read() {
    let mut bench = Bench::new(256, vec![disk(), TierSettings::new(Medium::Remote)]);
    let far = TierId(1);
    let mut demanded = Vec::new();
    for round in 0..4 {
        let range = round * 32..(round + 1) * 32;
        bench.found(range.clone());
        // The far tier has them from the second round on.
        if round > 0 {
            let blocks = range.clone().map(block).collect();
            bench.store.report(far, TierReport::Found(blocks), bench.now);
        }
        bench.ask_with(round as u64, range, ms(2));
        // A block takes 2 ms to compute: from the disk it takes twice as long, from afar an eighth.
        for action in bench.actions() {
            let Action::Read { tier, read: TierRead { name, slot, .. } } = action else { continue };
            bench.now += if tier == far { ms(1) / 4 } else { ms(4) };
            let read = TierReport::Read { name, slot, result: Ok(Checksum(name.0 as u64)) };
            bench.store.report(tier, read, bench.now);
        }
        bench.end(round as u64);
        let tiers = bench.store.status(bench.now).tiers;
        demanded.push((tiers[0].stats.demanded, tiers[1].stats.demanded));
    }
    assert_eq!(demanded, [(32, 0), (32, 32), (32, 64), (32, 96)]);
}

/// The tier finds these blocks, by hashes that equal their names; returns the hashes.
fn found_by_hash(bench: &mut Bench, range: std::ops::Range<u128>) -> Vec<SequenceHash> {
    let hash = |name: u128| SequenceHash(name as u64);
    let named = |name| Block { hash: Some(hash(name)), ..block(name) };
    bench.store.report(DISK, TierReport::Found(range.clone().map(named).collect()), bench.now);
    bench.actions();
    range.map(hash).collect()
}

#[test]
fn what_was_read_ahead_is_ready_when_its_engine_asks() {
    let mut bench = Bench::with_disk(8);
    let mut hashes = found_by_hash(&mut bench, 0..2);
    hashes.extend([SequenceHash(7), SequenceHash(8)]);
    bench.store.read_ahead(&hashes, EnginePace::default(), bench.now);
    // No second read of what is on its way.
    bench.store.read_ahead(&hashes, EnginePace::default(), bench.now);
    assert_eq!(bench.store.status(bench.now).tiers[0].stats.demanded, 2);
    bench.serve(ms(1));
    assert_eq!(bench.ask(1, 0..4).ready.len(), 2);
}

#[test]
fn nothing_is_read_ahead_that_is_faster_to_compute() {
    let mut bench = Bench::with_disk(64);
    let hashes = found_by_hash(&mut bench, 0..32);
    bench.store.read_ahead(&hashes[..16], ms(1).into(), bench.now);
    bench.serve(ms(10));
    bench.store.read_ahead(&hashes[16..], ms(1).into(), bench.now);
    assert_eq!(bench.reads(), []);
    bench.store.read_ahead(&hashes[16..], ms(50).into(), bench.now);
    assert_eq!(bench.reads().len(), 16);
    // It is the question of the engine that counts what is not worth its load.
    assert_eq!(bench.store.status(bench.now).tiers[0].stats.refused_by_cost, 0);
}

#[test]
fn writes_keep_to_their_budget() {
    let tier = TierSettings { write_bytes_per_s: Some(2 * 4096), ..disk() };
    let mut bench = Bench::new(32, vec![tier]);
    bench.fill(0..5);
    let first = bench.writes();
    assert_eq!(first.len(), 2);
    first.into_iter().for_each(|write| bench.write_ends(write, Ok(())));
    assert_eq!(bench.writes().len(), 0);
    bench.now += ms(500);
    bench.store.expire(bench.now);
    assert_eq!(bench.writes().len(), 1);
}

#[test]
fn a_full_tier_is_not_written_to_for_a_while() {
    let mut bench = Bench::with_disk(32);
    bench.fill(0..1);
    let write = bench.writes()[0];
    bench.write_ends(write, Err(TierError::Full));
    bench.fill(1..2);
    assert_eq!(bench.writes().len(), 0);
    bench.now += Duration::from_secs(10);
    bench.store.expire(bench.now);
    assert_eq!(bench.writes()[0].0, BlockName(1));
}

#[test]
fn a_busy_tier_gets_the_block_later() {
    let mut bench = Bench::with_disk(32);
    bench.fill(0..1);
    let write = bench.writes()[0];
    bench.write_ends(write, Err(TierError::Busy));
    assert_eq!(bench.writes().len(), 0);
    bench.now += ms(100);
    bench.store.expire(bench.now);
    assert_eq!(bench.writes(), [write]);
}

#[test]
fn on_the_second_touch_a_block_is_written() {
    let tier = TierSettings { admission: TierAdmission::SecondTouch, ..disk() };
    let mut bench = Bench::new(8, vec![tier]);
    bench.fill(0..3);
    assert_eq!(bench.writes(), []);
    bench.ask(1, 0..2);
    bench.end(1);
    // A call that does nothing else continues the writes.
    bench.store.expire(bench.now);
    assert_eq!(bench.writes().len(), 2);
    assert_eq!(bench.ask(2, 0..2).ready.len(), 2);
    bench.store.expire(bench.now);
    assert_eq!(bench.writes(), []);
}

#[test]
fn a_used_block_is_written_before_it_is_evicted() {
    let mut bench = Bench::with_disk(8);
    // Nothing is written while the tier is paused, and the write is given up for newer blocks.
    bench.fill(0..1);
    let write = bench.writes()[0];
    bench.ask(1, 0..1);
    bench.end(1);
    bench.write_ends(write, Err(TierError::Full));
    bench.now += Duration::from_secs(10);
    let granted = bench.store.grant(bench.owner, 8, bench.now);
    assert_eq!(granted.len(), 7);
    let again = bench.writes();
    assert_eq!(again, [write]);
    bench.write_ends(write, Ok(()));
    assert_eq!(bench.store.grant(bench.owner, 1, bench.now), [write.1]);
    assert_eq!(bench.store.status(bench.now).stats.evictions_for_good, 0);
}

#[test]
fn a_block_that_left_the_tier_is_not_read() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..2);
    bench.store.report(DISK, TierReport::Gone(names(0..1)), bench.now);
    assert_eq!(bench.ask(1, 0..2), Found::default());
    let tiers = bench.store.status(bench.now).tiers;
    assert_eq!((tiers[0].held, tiers[0].stats.gone), (1, 1));
}

#[test]
fn a_request_that_asks_again_keeps_what_it_was_told() {
    let mut bench = Bench::new(4, Vec::new());
    bench.fill(0..3);
    bench.ask(1, 0..3);
    bench.ask(1, 0..1);
    bench.ask(1, 0..1);
    assert_eq!(bench.store.grant(bench.owner, 4, bench.now).len(), 1);
    bench.end(1);
    assert_eq!(bench.store.grant(bench.owner, 4, bench.now).len(), 3);
}

#[test]
fn what_another_agent_holds_is_read_but_neither_told_nor_relied_on() {
    let peer = TierSettings {
        admission: TierAdmission::Never,
        is_announced: false,
        ..TierSettings::new(Medium::Remote)
    };
    let mut bench = Bench::new(2, vec![peer, disk()]);
    bench.found(0..1);
    assert_eq!(bench.actions(), []);
    assert_eq!(bench.ask(1, 0..1).pending, 1);
    let read = bench.reads()[0];
    bench.read_ends(read, Ok(()));
    let actions = bench.actions();
    let block = super::tests::block(0);
    assert!(actions.contains(&Action::Event(TierEvent::Stored { block, medium: Medium::Host })));
    let write = actions.iter().find_map(|action| match action {
        Action::Write { tier: TierId(1), write } => Some((write.block.name, write.slot)),
        _ => None,
    });
    // The disk is full, and the block used once more.
    let (name, slot) = write.expect("the disk is to have it");
    let report = TierReport::Written { name, slot, result: Err(TierError::Full) };
    bench.store.report(TierId(1), report, bench.now);
    bench.end(1);
    bench.ask(2, 0..1);
    bench.end(2);
    bench.now += Duration::from_secs(10);
    // Its only copy here is written before it goes, whatever another has.
    assert_eq!(bench.store.grant(bench.owner, 2, bench.now).len(), 1);
    assert_eq!(bench.writes(), [(name, slot)]);
    bench.store.report(DISK, TierReport::Gone(names(0..1)), bench.now);
    assert_eq!(bench.actions(), []);
}
