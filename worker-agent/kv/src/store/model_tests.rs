//! Random work for a store, against a plain model of the memory and of the rules.
//!
//! The model knows which block's bytes are in each slot, and who may touch the slot. Whatever the
//! order of calls and reports, and whatever fails: what a request is told is there has the right
//! bytes until the request ends.

mod steps;

use super::*;
use crate::tier::{TierError, TierEvent, TierReport};
use crate::{Block, Checksum, Now, SlotId, TenantKey};
use proptest::collection::vec;
use proptest::prelude::*;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, BTreeSet};
use steps::{Step, any_step, sequence};

const SLOTS: u32 = 12;
/// Slots of each of two tenants, to whom the sequences belong in turn.
const QUOTA: usize = 8;
const MEDIA: [Medium; 2] = [Medium::Disk, Medium::Remote];

/// A request as its owner sees it.
#[derive(Default)]
struct Seen {
    names: Vec<BlockName>,
    /// Slots told to be ready, now and by earlier answers.
    ready: Vec<SlotId>,
    earlier: Vec<SlotId>,
    pending: usize,
    /// The block that did not come.
    missed: Option<BlockName>,
    /// When the wait is over at the latest.
    until: Now,
}

struct World {
    store: BlockStore,
    now: Now,
    owners: Vec<OwnerId>,
    lost: Vec<OwnerId>,
    /// The block whose bytes are in a slot.
    bytes: BTreeMap<SlotId, BlockName>,
    granted: BTreeMap<SlotId, OwnerId>,
    requests: BTreeMap<(OwnerId, u64), Seen>,
    reads: Vec<(TierId, BlockName, SlotId)>,
    writes: Vec<(TierId, BlockName, SlotId)>,
    /// Reads for requests that have not ended.
    ahead: Vec<AheadReads>,
    /// Slots of reads that their tier may drop.
    droppable: BTreeSet<SlotId>,
    /// How often requests were told of blocks that they waited for.
    told: usize,
    /// Blocks on each medium, by the events.
    events: BTreeSet<(Medium, BlockName)>,
}

fn hash(name: BlockName) -> SequenceHash {
    SequenceHash(name.0 as u64)
}

fn block(name: BlockName) -> Block {
    let tenant = TenantKey((name.0 / 100 % 2) as u64);
    let hash = Some(hash(name));
    Block { name, hash, parent: None, depth: (name.0 % 100) as u32, tenant }
}

impl World {
    fn new(admission: TierAdmission) -> Self {
        let tiers = MEDIA.map(|medium| TierSettings {
            admission,
            write_bytes_per_s: Some(400_000),
            ..TierSettings::new(medium)
        });
        let mut settings = StoreSettings::new(SLOTS, 4096, tiers.to_vec());
        settings.tenant_slots_max = Some(QUOTA);
        let mut store = BlockStore::new(settings);
        Self {
            owners: (0..3).map(|_| store.connect()).collect(),
            store,
            now: Now::ZERO,
            lost: Vec::new(),
            bytes: BTreeMap::new(),
            granted: BTreeMap::new(),
            requests: BTreeMap::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            ahead: Vec::new(),
            droppable: BTreeSet::new(),
            told: 0,
            events: BTreeSet::new(),
        }
    }

    /// Somebody is about to write into a slot: nobody else may write or read it.
    fn begins_to_write(&mut self, slot: SlotId) {
        assert!(slot.0 < SLOTS);
        assert!(!self.granted.contains_key(&slot), "granted to another");
        assert!(!self.reads.iter().any(|read| read.2 == slot), "read into by a tier");
        assert!(!self.writes.iter().any(|write| write.2 == slot), "written down by a tier");
        for (key, seen) in &self.requests {
            assert!(!seen.ready.contains(&slot), "pinned by {key:?}");
            assert!(!seen.earlier.contains(&slot), "pinned by {key:?}");
        }
        self.bytes.remove(&slot);
    }

    fn check_bytes(&self, names: &[BlockName], slots: &[SlotId]) {
        for (name, slot) in names.iter().zip(slots) {
            assert_eq!(self.bytes.get(slot), Some(name), "wrong bytes in {slot:?}");
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Grant { owner, wanted } => {
                let owner = self.owners[owner];
                let slots = self.store.grant(owner, wanted, self.now);
                self.act();
                for slot in slots {
                    self.begins_to_write(slot);
                    self.granted.insert(slot, owner);
                }
            }
            Step::Fill { owner, pick, name } => self.fill(self.owners[owner], pick, name),
            Step::Ask { owner, request, names, prefill_ms } => {
                self.ask((self.owners[owner], request), names, prefill_ms);
            }
            Step::Lend { owner, request, names, terms } => {
                self.lend((self.owners[owner], request), names, terms);
            }
            Step::End { owner, request } => {
                let owner = self.owners[owner];
                self.requests.remove(&(owner, request));
                self.store.end(owner, RequestId(request), self.now);
            }
            Step::ReadAhead { names, prefill_ms } => {
                let hashes: Vec<_> = names.into_iter().map(hash).collect();
                let pace = Duration::from_millis(prefill_ms).into();
                self.ahead.push(self.store.read_ahead(&hashes, pace, self.now));
            }
            Step::EndAhead { pick } => {
                let place = pick.checked_rem(self.ahead.len());
                if let Some(reads) = place.map(|place| self.ahead.swap_remove(place)) {
                    self.store.end_ahead(reads, self.now);
                }
            }
            Step::Touch { names } => self.store.touch(&names, self.now),
            Step::EndRead { pick, error } => self.end_read(pick, error),
            Step::EndWrite { pick, error } => self.end_write(pick, error),
            Step::Found { tier, names } => {
                let blocks = names.into_iter().map(block).collect();
                self.store.report(TierId(tier), TierReport::Found(blocks), self.now);
            }
            Step::Gone { tier, names } => {
                self.store.report(TierId(tier), TierReport::Gone(names), self.now);
            }
            Step::Odd { tier, slot, name } => self.odd(TierId(tier), SlotId(slot), name),
            Step::Disconnect { owner, is_dead } => {
                let gone = std::mem::replace(&mut self.owners[owner], self.store.connect());
                self.store.disconnect(gone, is_dead);
                self.lost.push(gone);
                if is_dead {
                    self.bury(gone);
                }
            }
            Step::Bury { pick } => {
                if !self.lost.is_empty() {
                    let gone = self.lost[pick % self.lost.len()];
                    self.store.buried(gone);
                    self.bury(gone);
                }
            }
            Step::Clear => self.store.clear(),
            Step::ClearHost => self.store.clear_host(),
            Step::ClearTier { tier } => self.store.clear_tier(TierId(tier)),
            Step::Keep { names, ms } => {
                let until = self.now + Duration::from_millis(ms);
                let outcome = self.store.keep(&names, until, self.now);
                assert!(outcome.here + outcome.coming + outcome.refused <= names.len());
                assert!(self.store.status(self.now).host.kept <= SLOTS as usize / 2 + names.len());
            }
            Step::Forget { names } => self.forget(&names),
            Step::Limit { slots } => self.store.set_slot_limit(slots),
            Step::Shrink { most } => self.shrink(most),
            Step::Switch { tier, is_on } => self.store.set_tier_on(TierId(tier), is_on),
            Step::Wait { ms } => {
                self.now += Duration::from_millis(ms);
                self.store.expire(self.now);
            }
        }
        self.act();
    }

    fn shrink(&mut self, most: usize) {
        let before = self.store.status(self.now).host.used;
        self.store.shrink(most, self.now);
        let host = self.store.status(self.now).host;
        assert!(before - host.used <= most);
        assert!(host.used == before || host.used >= host.limit);
    }

    /// Forgotten blocks are in no tier any more.
    fn forget(&mut self, names: &[BlockName]) {
        self.store.forget(names);
        self.act();
        assert!(!self.events.iter().any(|(_, name)| names.contains(name)), "not forgotten");
    }

    fn bury(&mut self, owner: OwnerId) {
        self.lost.retain(|lost| *lost != owner);
        self.granted.retain(|_, of| *of != owner);
        self.requests.retain(|key, _| key.0 != owner);
    }

    fn fill(&mut self, owner: OwnerId, pick: usize, name: BlockName) {
        let own: Vec<_> = self.granted.iter().filter(|(_, of)| **of == owner).collect();
        let slot = if own.is_empty() { SlotId(0) } else { *own[pick % own.len()].0 };
        let is_granted = !own.is_empty();
        if is_granted {
            self.bytes.insert(slot, name);
        }
        let filled = self.store.filled(owner, slot, block(name), Checksum(0), self.now);
        match filled {
            Filled::Registered => assert_eq!(self.granted.remove(&slot), Some(owner)),
            Filled::Duplicate => assert!(is_granted),
            Filled::NotGranted => assert!(!is_granted),
            Filled::OverQuota => {
                assert!(is_granted);
                self.bytes.remove(&slot);
            }
        }
    }

    /// No tenant has more blocks in host memory than its quota.
    fn check_quota(&self) {
        for tenant in 0..2 {
            let is_own = |of: &&(Medium, BlockName)| block(of.1).tenant == TenantKey(tenant);
            let held = self.events.iter().filter(|(medium, _)| *medium == Medium::Host);
            assert!(held.filter(is_own).count() <= QUOTA, "tenant {tenant}");
        }
    }

    fn ask(&mut self, key: (OwnerId, u64), names: Vec<BlockName>, prefill_ms: u64) {
        // Waits that are over end first, so that the actions of the question are its own.
        self.store.expire(self.now);
        self.act();
        let prefill = Duration::from_millis(prefill_ms);
        let found = self.store.ask(key.0, RequestId(key.1), &names, prefill, self.now);
        self.answered(key, names, found, Duration::from_secs(2));
    }

    /// Only disks are read for other agents, within bounds.
    fn lend(&mut self, key: (OwnerId, u64), names: Vec<BlockName>, terms: LoanTerms) {
        self.store.expire(self.now);
        self.act();
        let before = self.reads.len();
        let found = self.store.lend(key.0, RequestId(key.1), &names, terms, self.now);
        self.answered(key, names, found, terms.wait.min(Duration::from_secs(2)));
        self.act();
        let reads = &self.reads[before..];
        assert!(
            reads.len() <= terms.reads_max && reads.iter().all(|(tier, ..)| *tier == TierId(0))
        );
    }

    fn answered(
        &mut self,
        key: (OwnerId, u64),
        names: Vec<BlockName>,
        found: Found,
        wait: Duration,
    ) {
        let mut seen = self.requests.remove(&key).unwrap_or_default();
        seen.earlier.append(&mut seen.ready);
        let all = found.ready.len() + found.pending;
        assert!(all <= names.len());
        if let Some(missed) = names.iter().position(|name| Some(*name) == seen.missed) {
            assert!(all <= missed, "a failed block is offered again");
        }
        self.check_bytes(&names, &found.ready);
        let Found { ready, pending } = found;
        let new = Seen { names, ready, pending, until: self.now + wait, ..seen };
        self.requests.insert(key, new);
    }

    fn end_read(&mut self, pick: usize, error: Option<TierError>) {
        if self.reads.is_empty() {
            return;
        }
        let (tier, name, slot) = self.reads.swap_remove(pick % self.reads.len());
        let is_droppable = self.droppable.remove(&slot);
        // A read that may be dropped may have begun already.
        let is_dropped = is_droppable && pick.is_multiple_of(2);
        let error = if is_dropped { Some(TierError::Cancelled) } else { error };
        let result = error.map_or(Ok(Checksum(0)), Err);
        if error.is_none() {
            self.bytes.insert(slot, name);
        }
        let told = self.told;
        self.store.report(tier, TierReport::Read { name, slot, result }, self.now);
        self.act();
        assert!(
            !is_droppable || self.told == told,
            "a request waited for a read that may be dropped"
        );
    }

    fn end_write(&mut self, pick: usize, error: Option<TierError>) {
        if self.writes.is_empty() {
            return;
        }
        let (tier, name, slot) = self.writes.swap_remove(pick % self.writes.len());
        assert_eq!(self.bytes.get(&slot), Some(&name), "changed while it was written");
        let result = error.map_or(Ok(()), Err);
        self.store.report(tier, TierReport::Written { name, slot, result }, self.now);
    }

    /// Reports of work that was never given.
    fn odd(&mut self, tier: TierId, slot: SlotId, name: BlockName) {
        if !self.reads.contains(&(tier, name, slot)) {
            let result = Ok(Checksum(0));
            self.store.report(tier, TierReport::Read { name, slot, result }, self.now);
        }
        self.act();
        if !self.writes.contains(&(tier, name, slot)) {
            self.store.report(tier, TierReport::Written { name, slot, result: Ok(()) }, self.now);
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.store.next_action() {
            match action {
                Action::Read { tier, read } => {
                    self.begins_to_write(read.slot);
                    self.reads.push((tier, read.name, read.slot));
                }
                Action::Cancel { tier, name, slot } => {
                    assert!(self.reads.contains(&(tier, name, slot)), "there is no such read");
                    assert!(self.droppable.insert(slot), "dropped twice");
                }
                Action::Write { tier, write } => {
                    self.check_bytes(&[write.block.name], &[write.slot]);
                    self.writes.push((tier, write.block.name, write.slot));
                }
                Action::Ready { owner, request, slots, pending } => {
                    self.ready((owner, request.0), slots, pending);
                }
                Action::Event(TierEvent::Stored { block, medium }) => {
                    assert!(self.events.insert((medium, block.name)), "stored twice");
                }
                Action::Event(TierEvent::Removed { block, medium }) => {
                    assert!(self.events.remove(&(medium, block.name)), "removed twice");
                }
                Action::Event(TierEvent::Cleared) => self.events.clear(),
                // What a tier does then is its own affair.
                Action::Forget { .. } | Action::Clear { .. } => {}
            }
        }
    }

    fn ready(&mut self, key: (OwnerId, u64), slots: Vec<SlotId>, pending: usize) {
        self.told += 1;
        assert!(!self.lost.contains(&key.0), "told to a lost owner");
        let mut seen = self.requests.remove(&key).expect("told to a request that is there");
        assert!(seen.pending > 0, "told although nothing is awaited");
        assert!(slots.len() + pending <= seen.pending);
        assert!(!slots.is_empty() || pending == 0, "told nothing new");
        let is_cut = slots.len() + pending < seen.pending;
        self.check_bytes(&seen.names[seen.ready.len()..], &slots);
        seen.ready.extend(slots);
        seen.pending = pending;
        if is_cut {
            assert_eq!(pending, 0);
            seen.missed = seen.names.get(seen.ready.len()).copied();
        }
        self.requests.insert(key, seen);
    }

    /// Answers stay true, no wait is too long, and quotas hold.
    fn check(&self) {
        self.check_quota();
        for (key, seen) in &self.requests {
            self.check_bytes(&seen.names, &seen.ready);
            let waits = seen.pending > 0 && !self.lost.contains(&key.0);
            assert!(!waits || self.now < seen.until, "waits on");
        }
    }

    /// Ends all that goes on: what is visible is what the events say, and all slots are there.
    fn finish(mut self) {
        self.run(Step::Wait { ms: 40_000 });
        self.check();
        while !self.reads.is_empty() {
            self.run(Step::EndRead { pick: 0, error: None });
        }
        for of in 0..4 {
            for name in sequence(of, 8) {
                let is_there = self.events.contains(&(Medium::Host, name));
                let is_below = MEDIA.iter().any(|medium| self.events.contains(&(*medium, name)));
                let mut owner = self.store.connect();
                std::mem::swap(&mut owner, &mut self.owners[0]);
                self.ask((self.owners[0], 9), vec![name], 0);
                let seen = &self.requests[&(self.owners[0], 9)];
                assert_eq!(seen.ready.len() == 1, is_there, "{name:?}");
                assert!(is_there || is_below || seen.pending == 0, "{name:?}");
                let asker = std::mem::replace(&mut self.owners[0], owner);
                self.store.disconnect(asker, true);
                self.bury(asker);
                self.act();
            }
        }
        for owner in self.owners.clone() {
            self.store.disconnect(owner, true);
            self.bury(owner);
        }
        for owner in std::mem::take(&mut self.lost) {
            self.store.buried(owner);
            self.bury(owner);
        }
        self.act();
        while !self.reads.is_empty() || !self.writes.is_empty() {
            self.run(Step::EndRead { pick: 0, error: Some(TierError::Failed) });
            self.run(Step::EndWrite { pick: 0, error: None });
        }
        self.store.clear();
        self.act();
        let status = self.store.status(self.now);
        let host = status.host;
        assert_eq!((host.used, host.granted, host.pinned, host.kept), (0, 0, 0, 0));
        assert!(status.tiers.iter().all(|tier| tier.reads_in_flight + tier.writes_in_flight == 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn rules_hold_whatever_happens(
        steps in vec(any_step(), 0..150),
        writes_through in any::<bool>(),
    ) {
        let admission = if writes_through { TierAdmission::Through } else { TierAdmission::SecondTouch };
        let mut world = World::new(admission);
        for step in steps {
            world.run(step);
            world.check();
        }
        world.finish();
    }
}
