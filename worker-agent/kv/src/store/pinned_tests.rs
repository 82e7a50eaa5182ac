//! Tests of clients' pins in host memory.

use super::tests::{Bench, block, names};
use super::*;
use crate::{Block, Checksum};
use stator_pins::{PinLimits, PinOutcome, PinWish};
use stator_protos::kv_event::Medium;

const MINUTE: Duration = Duration::from_secs(60);
const WISH: PinWish = PinWish { tenant: 1, time: MINUTE };

/// A store of which clients may pin half, and one of them a quarter.
fn bench(slots: u32, tiers: Vec<TierSettings>) -> Bench {
    let mut settings = StoreSettings::new(slots, 4096, tiers);
    settings.granted_max = slots as usize;
    settings.pins = PinLimits { share_percent: 50, ..PinLimits::default() };
    let mut store = BlockStore::new(settings);
    let owner = store.connect();
    Bench { store, owner, now: Now::ZERO }
}

/// A block whose hash has the number of its name.
fn hashed(name: u128) -> Block {
    Block { hash: Some(SequenceHash(name as u64)), ..block(name) }
}

fn fill(bench: &mut Bench, range: std::ops::Range<u128>) {
    for name in range {
        let slot = bench.store.grant(bench.owner, 1, bench.now)[0];
        bench.store.filled(bench.owner, slot, hashed(name), Checksum(1), bench.now);
    }
}

fn pin(bench: &mut Bench, range: std::ops::Range<u64>) -> PinOutcome {
    let hashes: Vec<_> = range.map(SequenceHash).collect();
    bench.store.pin_prompt(&hashes, WISH, bench.now)
}

/// Numbers of the blocks that are in host memory, of those in question.
fn here(bench: &mut Bench, range: std::ops::Range<u128>) -> Vec<u128> {
    let is_here = |name: &u128| {
        let found = bench.ask(77, *name..*name + 1);
        bench.end(77);
        !found.ready.is_empty()
    };
    range.filter(is_here).collect()
}

#[test]
fn a_pinned_prompt_outlives_a_flood_until_its_time_is_over() {
    let mut bench = bench(16, Vec::new());
    fill(&mut bench, 0..3);
    assert_eq!(pin(&mut bench, 0..6), PinOutcome { pinned: 4, refused: 2 });
    // One block is computed after the wish.
    fill(&mut bench, 3..6);
    fill(&mut bench, 20..60);
    assert_eq!(here(&mut bench, 0..6), [0, 1, 2, 3]);
    assert_eq!(bench.store.status(bench.now).host.client_pins, 4);
    assert_eq!(bench.store.next_deadline(), Some(MINUTE));
    bench.now += MINUTE;
    fill(&mut bench, 60..90);
    assert_eq!(here(&mut bench, 0..6), Vec::<u128>::new());
    assert_eq!(bench.store.status(bench.now).host.client_pins, 0);
}

#[test]
fn a_block_whose_hash_is_learnt_late_is_pinned_then() {
    let mut bench = bench(16, Vec::new());
    bench.fill(0..2);
    pin(&mut bench, 0..2);
    bench.store.learn(hashed(0), bench.now);
    fill(&mut bench, 20..60);
    assert_eq!(here(&mut bench, 0..2), [0]);
}

#[test]
fn a_pinned_block_in_a_tier_is_read() {
    let mut bench = bench(16, vec![TierSettings::new(Medium::Disk)]);
    fill(&mut bench, 0..2);
    for write in bench.writes() {
        bench.write_ends(write, Ok(()));
    }
    bench.store.clear_host();
    assert_eq!(pin(&mut bench, 0..2).pinned, 2);
    for read in bench.reads() {
        bench.read_ends(read, Ok(()));
    }
    fill(&mut bench, 20..60);
    assert_eq!(here(&mut bench, 0..2), [0, 1]);
}

#[test]
fn what_is_forgotten_is_pinned_no_longer() {
    let mut bench = bench(16, Vec::new());
    fill(&mut bench, 0..4);
    pin(&mut bench, 0..4);
    bench.store.forget(&names(0..1));
    assert_eq!(here(&mut bench, 0..4), [1, 2, 3]);
    assert_eq!(bench.store.status(bench.now).host.client_pins, 3);
    bench.store.clear();
    let host = bench.store.status(bench.now).host;
    assert_eq!((host.client_pins, host.pinned, host.used), (0, 0, 0));
}
