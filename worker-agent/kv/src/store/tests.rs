//! The store's rules, by name. `Bench` is a store with one owner and short ways to speak to it.

use super::*;
use crate::tier::{TierError, TierEvent, TierReport};
use crate::{Block, Checksum, Now, SlotId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::BTreeSet;

pub(super) const DISK: TierId = TierId(0);

pub(super) struct Bench {
    pub(super) store: BlockStore,
    pub(super) owner: OwnerId,
    pub(super) now: Now,
}

pub(super) fn names(range: std::ops::Range<u128>) -> Vec<BlockName> {
    range.map(BlockName).collect()
}

pub(super) fn block(name: u128) -> Block {
    Block {
        name: BlockName(name),
        hash: None,
        parent: None,
        depth: name as u32,
        tenant: crate::TenantKey::default(),
    }
}

impl Bench {
    pub(super) fn new(slots: u32, tiers: Vec<TierSettings>) -> Self {
        let mut settings = StoreSettings::new(slots, 4096, tiers);
        settings.granted_max = slots as usize;
        let mut store = BlockStore::new(settings);
        let owner = store.connect();
        Self { store, owner, now: Now::ZERO }
    }

    pub(super) fn with_disk(slots: u32) -> Self {
        Self::new(slots, vec![TierSettings::new(Medium::Disk)])
    }

    pub(super) fn fill(&mut self, range: std::ops::Range<u128>) -> Vec<Filled> {
        range.map(|name| self.fill_one(name)).collect()
    }

    pub(super) fn fill_one(&mut self, name: u128) -> Filled {
        let slot = self.store.grant(self.owner, 1, self.now)[0];
        self.store.filled(self.owner, slot, block(name), Checksum(name as u64), self.now)
    }

    pub(super) fn ask(&mut self, request: u64, range: std::ops::Range<u128>) -> Found {
        let names = names(range);
        self.store.ask(self.owner, RequestId(request), &names, Duration::ZERO, self.now)
    }

    pub(super) fn end(&mut self, request: u64) {
        self.store.end(self.owner, RequestId(request), self.now);
    }

    pub(super) fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.store.next_action()).collect()
    }

    pub(super) fn reads(&mut self) -> Vec<(BlockName, SlotId)> {
        let read = |action| match action {
            Action::Read { read, .. } => Some((read.name, read.slot)),
            _ => None,
        };
        self.actions().into_iter().filter_map(read).collect()
    }

    pub(super) fn writes(&mut self) -> Vec<(BlockName, SlotId)> {
        let write = |action| match action {
            Action::Write { write, .. } => Some((write.block.name, write.slot)),
            _ => None,
        };
        self.actions().into_iter().filter_map(write).collect()
    }

    /// The answers to waiting requests: request, slots, pending.
    pub(super) fn answers(&mut self) -> Vec<(u64, usize, usize)> {
        let ready = |action| match action {
            Action::Ready { request, slots, pending, .. } => {
                Some((request.0, slots.len(), pending))
            }
            _ => None,
        };
        self.actions().into_iter().filter_map(ready).collect()
    }

    pub(super) fn found(&mut self, range: std::ops::Range<u128>) {
        let blocks = range.map(block).collect();
        self.store.report(DISK, TierReport::Found(blocks), self.now);
    }

    pub(super) fn read_ends(&mut self, of: (BlockName, SlotId), result: Result<(), TierError>) {
        let (name, slot) = of;
        let result = result.map(|()| Checksum(name.0 as u64));
        self.store.report(DISK, TierReport::Read { name, slot, result }, self.now);
    }

    pub(super) fn write_ends(&mut self, of: (BlockName, SlotId), result: Result<(), TierError>) {
        let (name, slot) = of;
        self.store.report(DISK, TierReport::Written { name, slot, result }, self.now);
    }
}

#[test]
fn a_filled_block_is_found_by_all_owners() {
    let mut bench = Bench::new(8, Vec::new());
    assert_eq!(bench.fill(0..3), vec![Filled::Registered; 3]);
    let other = bench.store.connect();
    let found = bench.store.ask(other, RequestId(1), &names(0..5), Duration::ZERO, bench.now);
    assert_eq!((found.ready.len(), found.pending), (3, 0));
}

#[test]
fn a_block_that_is_there_leaves_the_slot_to_its_owner() {
    let mut bench = Bench::new(4, Vec::new());
    let granted = bench.store.grant(bench.owner, 2, bench.now);
    let mut fill =
        |slot, name| bench.store.filled(bench.owner, slot, block(name), Checksum(0), bench.now);
    assert_eq!(fill(granted[0], 1), Filled::Registered);
    assert_eq!(fill(granted[1], 1), Filled::Duplicate);
    assert_eq!(fill(granted[1], 2), Filled::Registered);
    assert_eq!(fill(granted[1], 3), Filled::NotGranted);
    assert_eq!(fill(SlotId(99), 3), Filled::NotGranted);
}

#[test]
fn the_deepest_block_is_evicted_first() {
    let mut bench = Bench::new(4, Vec::new());
    bench.ask(1, 0..4);
    bench.fill(0..4);
    bench.end(1);
    bench.fill(10..12);
    assert_eq!(bench.ask(2, 0..4).ready.len(), 2);
}

/// Block `depth` of a prompt, whose blocks have hashes for routers.
fn hashed(prompt: u64, depth: u32) -> Block {
    let hash = |depth: u32| SequenceHash(prompt * 1000 + u64::from(depth));
    let (name, parent) = (u128::from(hash(depth).0), depth.checked_sub(1).map(hash));
    Block { hash: Some(hash(depth)), parent, depth, ..block(name) }
}

proptest! {
    /// Blocks come in the order in which they are computed, those of four prompts in turns. Of each prompt
    /// the deepest block leaves first, with quotas of tenants and without, also where memory is too small
    /// for one prompt.
    #[test]
    fn of_what_was_just_computed_the_deepest_leaves_first(
        fills in vec(0..4_usize, 1..60),
        policy in select(vec![PolicyName::Lru, PolicyName::TwoQueueShort, PolicyName::SecondTouch]),
        tenant_slots_max in prop::option::of(4..8_usize),
    ) {
        let mut settings = StoreSettings::new(8, 4096, Vec::new());
        (settings.policy, settings.tenant_slots_max) = (Some(policy), tenant_slots_max);
        let mut store = BlockStore::new(settings);
        let owner = store.connect();
        let (mut depths, mut held) = ([0; 4], BTreeSet::new());
        for prompt in fills {
            let slot = store.grant(owner, 1, Now::ZERO)[0];
            let block = hashed(prompt as u64, depths[prompt]);
            store.filled(owner, slot, block, Checksum(0), Now::ZERO);
            depths[prompt] += 1;
            let place = |block: Block| (block.name.0 / 1000, block.depth);
            while let Some(Action::Event(event)) = store.next_action() {
                match event {
                    TierEvent::Stored { block, .. } => drop(held.insert(place(block))),
                    TierEvent::Removed { block, .. } => {
                        let (of, depth) = place(block);
                        prop_assert!(held.remove(&(of, depth)));
                        let behind = held.range((of, depth)..(of + 1, 0)).next();
                        prop_assert_eq!(behind, None, "block {} of {}", depth, of);
                    }
                    TierEvent::Cleared => unreachable!("nobody clears"),
                }
            }
        }
    }
}

#[test]
fn a_pinned_slot_is_not_evicted() {
    let mut bench = Bench::new(4, Vec::new());
    bench.fill(0..3);
    assert_eq!(bench.ask(1, 0..3).ready.len(), 3);
    assert_eq!(bench.store.grant(bench.owner, 4, bench.now).len(), 1);
    bench.end(1);
    assert_eq!(bench.store.grant(bench.owner, 4, bench.now).len(), 3);
}

#[test]
fn blocks_below_are_read_and_then_ready_in_order() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..3);
    let found = bench.ask(1, 0..5);
    assert_eq!((found.ready.len(), found.pending), (0, 3));
    let reads = bench.reads();
    bench.read_ends(reads[1], Ok(()));
    assert_eq!(bench.answers(), []);
    bench.read_ends(reads[0], Ok(()));
    assert_eq!(bench.answers(), [(1, 2, 1)]);
    bench.read_ends(reads[2], Ok(()));
    assert_eq!(bench.answers(), [(1, 1, 0)]);
}

#[test]
fn failed_key_is_a_miss_for_its_request() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..3);
    bench.ask(1, 0..3);
    let reads = bench.reads();
    bench.read_ends(reads[0], Ok(()));
    bench.read_ends(reads[1], Err(TierError::Failed));
    bench.read_ends(reads[2], Ok(()));
    assert_eq!(bench.answers(), [(1, 1, 2), (1, 0, 0)]);
    // The tier may still have the block, but not for this request.
    let again = bench.ask(1, 0..3);
    assert_eq!((again.ready.len(), again.pending), (1, 0));
    let other = bench.ask(2, 0..3);
    assert_eq!((other.ready.len(), other.pending), (1, 2));
}

#[test]
fn a_corrupt_block_is_forgotten() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..1);
    bench.ask(1, 0..1);
    let read = bench.reads()[0];
    bench.read_ends(read, Err(TierError::Corrupt));
    let removed = Action::Event(TierEvent::Removed { block: block(0), medium: Medium::Disk });
    assert!(bench.actions().contains(&removed));
    assert_eq!(bench.ask(2, 0..1), Found::default());
}

#[test]
fn every_wait_ends_also_when_the_tier_is_silent() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..2);
    bench.ask(1, 0..2);
    let reads = bench.reads();
    bench.now = bench.store.next_deadline().expect("a request waits");
    assert!(bench.now <= Duration::from_secs(2));
    bench.store.expire(bench.now);
    assert_eq!(bench.answers(), [(1, 0, 0)]);
    // A late read is of use to others.
    bench.read_ends(reads[0], Ok(()));
    assert_eq!(bench.answers(), []);
    assert_eq!(bench.ask(2, 0..2).ready.len(), 1);
}

#[test]
fn a_block_computed_while_its_read_hangs_is_visible() {
    let mut bench = Bench::with_disk(8);
    bench.found(0..1);
    bench.ask(1, 0..1);
    let read = bench.reads()[0];
    assert_eq!(bench.fill_one(0), Filled::Registered);
    assert_eq!(bench.ask(2, 0..1).ready.len(), 1);
    bench.read_ends(read, Ok(()));
    assert_eq!(bench.answers(), [(1, 1, 0)]);
}

#[test]
fn a_filled_block_is_written_through_and_read_back() {
    let mut bench = Bench::with_disk(2);
    bench.fill(0..1);
    let write = bench.writes()[0];
    // Its slot stays while it is written.
    assert_eq!(bench.store.grant(bench.owner, 2, bench.now).len(), 1);
    bench.write_ends(write, Ok(()));
    let stored = Action::Event(TierEvent::Stored { block: block(0), medium: Medium::Disk });
    assert!(bench.actions().contains(&stored));
    assert_eq!(bench.ask(1, 0..1).pending, 1);
}

#[test]
fn slots_of_a_lost_engine_stay_until_it_is_buried() {
    let mut bench = Bench::new(4, Vec::new());
    bench.fill(0..2);
    let lost = bench.store.connect();
    assert_eq!(bench.store.grant(lost, 1, bench.now).len(), 1);
    bench.store.ask(lost, RequestId(1), &names(0..2), Duration::ZERO, bench.now);
    bench.store.disconnect(lost, false);
    assert_eq!(bench.store.grant(bench.owner, 4, bench.now).len(), 1);
    bench.store.buried(lost);
    assert_eq!(bench.store.grant(bench.owner, 4, bench.now).len(), 3);
}

#[test]
fn slots_of_a_dead_engine_are_free_at_once() {
    let mut bench = Bench::new(4, Vec::new());
    bench.fill(0..2);
    let dead = bench.store.connect();
    bench.store.grant(dead, 2, bench.now);
    bench.store.ask(dead, RequestId(1), &names(0..2), Duration::ZERO, bench.now);
    bench.store.disconnect(dead, true);
    assert_eq!(bench.store.grant(bench.owner, 4, bench.now).len(), 4);
}

#[test]
fn a_clear_forgets_all_and_frees_what_nobody_uses() {
    let mut bench = Bench::with_disk(8);
    bench.fill(0..2);
    bench.ask(1, 0..1);
    let writes = bench.writes();
    bench.store.clear();
    assert_eq!(bench.ask(2, 0..2), Found::default());
    // One slot is read by a request, one by the tier.
    assert_eq!(bench.store.grant(bench.owner, 8, bench.now).len(), 6);
    bench.write_ends(writes[0], Ok(()));
    bench.write_ends(writes[1], Ok(()));
    bench.end(1);
    assert_eq!(bench.store.grant(bench.owner, 8, bench.now).len(), 2);
    assert_eq!(bench.ask(3, 0..2), Found::default());
}

#[test]
fn a_tier_that_keeps_failing_is_left_alone() {
    let mut bench = Bench::with_disk(16);
    bench.found(0..9);
    for request in 0..3 {
        bench.ask(request, 0..1);
        let read = bench.reads()[0];
        bench.read_ends(read, Err(TierError::Failed));
    }
    assert_eq!(bench.ask(7, 0..1), Found::default());
    bench.now += Duration::from_secs(30);
    assert_eq!(bench.ask(8, 0..1).pending, 1);
}

#[test]
fn shared_prefix_has_no_convoy() {
    let mut bench = Bench::with_disk(16);
    bench.found(0..8);
    // Three requests for one prefix that is on disk, and one that computes most of it.
    let waits = [1, 2, 3].map(|request| bench.ask(request, 0..8).pending);
    assert_eq!(waits, [8, 8, 8]);
    let names = names(0..8);
    let quick = Duration::from_millis(1);
    bench.store.ask(bench.owner, RequestId(4), &names, quick, bench.now);
    // Each block is read once, and nobody waits for another request: only for the block.
    let reads = bench.reads();
    assert_eq!(reads.len(), 8);
    for (at, read) in reads.into_iter().enumerate() {
        bench.read_ends(read, Ok(()));
        let mut told = bench.answers();
        told.sort_unstable();
        let left = 7 - at;
        assert_eq!(told[..3], [(1, 1, left), (2, 1, left), (3, 1, left)], "after block {at}");
    }
    // The one that computes in a millisecond a block did not wait longer than that.
    bench.now += Duration::from_millis(9);
    bench.store.expire(bench.now);
    assert_eq!(bench.store.next_deadline(), None);
}
