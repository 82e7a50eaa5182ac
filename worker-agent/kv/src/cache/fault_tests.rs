//! Random use of a cache while everything around it fails: no wrong byte is ever handed out, every
//! wait ends, and what routers hear adds up.

use super::state::{Question, QuestionPurpose};
use super::testkit::*;
use crate::store::{OwnerId, RequestId};
use crate::tier::TierEvent;
use crate::tier::{TierError, TierReport};
use crate::{Checksum, Now, SlotId};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const SLOTS: u32 = 48;
const SESSIONS: u128 = 24;
const DEPTH: usize = 10;
const WAIT_MAX: Duration = Duration::from_secs(2);

/// A request as its engine knows it.
struct OpenRequest {
    names: Vec<BlockName>,
    slots: Vec<SlotId>,
    pending: usize,
    /// Slots in which something else has changed bytes since they were handed out.
    struck: BTreeSet<SlotId>,
    asked_at: Now,
}

/// Engines, tiers and memory, all of them unreliable.
struct Chaos {
    rig: Rig,
    media: Vec<Media>,
    rng: SmallRng,
    now: Now,
    open: BTreeMap<(OwnerId, u64), OpenRequest>,
    /// Slots that engines hold to fill. Lost engines may still write to theirs.
    granted: BTreeMap<OwnerId, Vec<SlotId>>,
    lost: Vec<OwnerId>,
    next_request: u64,
    /// Blocks of media, by the events.
    held: BTreeSet<(u128, Medium)>,
    faults: usize,
    handed_out: usize,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let media = vec![Media::default(), Media::default()];
        let rig = Rig::new(SLOTS, &media);
        let granted = BTreeMap::from([(rig.owner, Vec::new())]);
        Self {
            rig,
            media,
            rng: SmallRng::seed_from_u64(seed),
            now: Now::ZERO,
            open: BTreeMap::new(),
            granted,
            lost: Vec::new(),
            next_request: 0,
            held: BTreeSet::new(),
            faults: 0,
            handed_out: 0,
        }
    }

    fn run(&mut self, faults: usize) {
        while self.faults < faults {
            match self.rng.random_range(0..1000) {
                0..250 => self.ask(),
                250..390 => self.compute(),
                390..440 => self.end(),
                440..470 => self.hint(),
                470..880 => self.finish(),
                880..920 => self.strike_memory(),
                920..940 => self.strike_media(),
                940..950 => self.report_nonsense(),
                950..980 => self.pass_time(),
                980..990 => self.hold_reads(),
                990..996 => self.change_engines(),
                996..999 => self.restart(),
                _ => self.rig.shared.clear(),
            }
            self.listen();
        }
        self.all_waits_end();
    }

    /// Reads of one tier begin at once from now on, or wait and can be dropped.
    fn hold_reads(&mut self) {
        let is_queue = self.rng.random_bool(0.7);
        if let Some(tier) = self.rig.tiers.choose(&mut self.rng) {
            tier.is_queue.store(is_queue, Relaxed);
        }
    }

    fn engine(&mut self) -> Option<OwnerId> {
        let live: Vec<_> =
            self.granted.keys().filter(|owner| !self.lost.contains(owner)).copied().collect();
        live.choose(&mut self.rng).copied()
    }

    fn prompt(&mut self) -> Vec<BlockName> {
        let session = self.rng.random_range(0..SESSIONS) * 64;
        names(session..session + self.rng.random_range(1..=DEPTH as u128))
    }

    fn request(&mut self) -> Option<(OwnerId, u64)> {
        let keys: Vec<_> = self.open.keys().copied().collect();
        keys.choose(&mut self.rng).copied()
    }

    /// Asks, or asks again.
    fn ask(&mut self) {
        let again = self.request().filter(|_| self.rng.random_bool(0.2));
        let Some(owner) = again.map(|(owner, _)| owner).or_else(|| self.engine()) else { return };
        let (request, names) = match again {
            Some(key) => (key.1, self.open[&key].names.clone()),
            None => {
                self.next_request += 1;
                (self.next_request, self.prompt())
            }
        };
        // Not known, about what a tier needs, and far more.
        let prefill = [0, 20, 1000].choose(&mut self.rng).copied().unwrap_or(0);
        let question = Question {
            owner,
            request: RequestId(request),
            names: &names,
            purpose: QuestionPurpose::Load(Duration::from_millis(prefill).into()),
        };
        let found = self.rig.shared.ask(question);
        self.check(&found.ready, &names);
        let (pending, asked_at) = (found.pending, self.now);
        let struck = BTreeSet::new();
        let asked = OpenRequest { names, slots: found.ready, pending, struck, asked_at };
        self.open.insert((owner, request), asked);
    }

    /// Computes what a request lacks, and ends it.
    fn compute(&mut self) {
        let Some(key) = self.request().filter(|key| self.open[key].pending == 0) else { return };
        let request = &self.open[&key];
        let mut missing = request.names[request.slots.len()..].to_vec();
        let Some(granted) = self.granted.get_mut(&key.0) else { return };
        let lacking = missing.len().saturating_sub(granted.len());
        granted.extend(self.rig.shared.grant(key.0, lacking));
        let mut filled = Vec::new();
        missing.reverse();
        while let (Some(slot), Some(name)) = (granted.last().copied(), missing.pop()) {
            granted.pop();
            self.rig.shared.arena().write(slot, &kv_of(name));
            filled.push((slot, block(name)));
        }
        granted.extend(self.rig.shared.filled(key.0, &filled));
        self.close(key);
    }

    fn end(&mut self) {
        if let Some(key) = self.request() {
            self.close(key);
        }
    }

    /// Slots stay as they are until the request ends.
    fn close(&mut self, key: (OwnerId, u64)) {
        let Some(request) = self.open.remove(&key) else { return };
        for (slot, name) in request.slots.iter().zip(&request.names) {
            let is_struck = request.struck.contains(slot);
            assert!(is_struck || self.rig.is_right(&[*slot], &[*name]), "{slot:?} changed in use");
        }
        self.rig.shared.end(key.0, RequestId(key.1));
    }

    fn hint(&mut self) {
        let names = self.prompt();
        if self.rng.random_bool(0.5) {
            let prefill = Duration::from_millis(self.rng.random_range(0..30));
            let hashes: Vec<_> = names.iter().copied().map(hash).collect();
            let reads = self.rig.shared.read_ahead(&hashes, prefill.into());
            // The request may end before its engine asks.
            if self.rng.random_bool(0.5) {
                self.rig.shared.end_ahead(reads);
            }
        } else {
            self.rig.shared.touch(&names);
        }
    }

    /// Some tier ends some work, in any order, every third time not as it should.
    fn finish(&mut self) {
        self.rig.step();
        let tier = self.rng.random_range(0..self.rig.tiers.len());
        let queued = self.rig.tiers[tier].queued();
        if queued == 0 {
            return;
        }
        let fault = match self.rng.random_range(0..30) {
            0 => Fault::Error(TierError::Failed),
            1 => Fault::Error(TierError::Missing),
            2 => Fault::Error(TierError::Corrupt),
            3 => Fault::Error(TierError::Busy),
            4 => Fault::Error(TierError::Full),
            5 | 6 => Fault::Half,
            7 => Fault::Flip(self.rng.random_range(0..BLOCK * 8)),
            8 => Fault::Stale,
            9 => Fault::Unnoticed,
            _ => Fault::None,
        };
        self.faults += usize::from(fault != Fault::None);
        self.rig.tiers[tier].finish(self.rng.random_range(0..queued), fault);
    }

    /// Bits of host memory change, also in slots that are in use.
    fn strike_memory(&mut self) {
        let slot = SlotId(self.rng.random_range(0..SLOTS));
        // A bit that flips back is no fault, and nobody could see it.
        self.rig.flip(slot, self.rng.random_range(0..BLOCK * 8));
        self.struck(slot);
        // A lost engine goes on with what it was doing.
        let held = self.lost.first().and_then(|owner| self.granted[owner].first().copied());
        if let Some(slot) = held {
            self.rig.shared.arena().write(slot, &[0xcc; BLOCK]);
            assert!(self.open.values().all(|of| !of.slots.contains(&slot)), "quarantine is broken");
            self.faults += 1;
        }
    }

    fn struck(&mut self, slot: SlotId) {
        self.faults += 1;
        for request in self.open.values_mut().filter(|request| request.slots.contains(&slot)) {
            request.struck.insert(slot);
        }
    }

    /// Bits of a medium change while nobody looks.
    fn strike_media(&mut self) {
        let mut media = self.media[self.rng.random_range(0..2)].lock();
        let names: Vec<_> = media.keys().copied().collect();
        let Some(stored) = names.choose(&mut self.rng).and_then(|name| media.get_mut(name)) else {
            return;
        };
        let bit = self.rng.random_range(0..BLOCK * 8);
        stored.kv[bit / 8] ^= 1 << (bit % 8);
        self.faults += 1;
    }

    /// A tier reports work that it was not given, or loses blocks.
    fn report_nonsense(&mut self) {
        let tier = &self.rig.tiers[self.rng.random_range(0..2)];
        let report = tier.place.report.clone();
        let slot = SlotId(self.rng.random_range(0..SLOTS * 2));
        let name = BlockName(self.rng.random_range(0..SESSIONS * 64));
        let checksum = Checksum(self.rng.random());
        report(match self.rng.random_range(0..4) {
            0 => TierReport::Gone(vec![name]),
            1 => TierReport::Found(vec![block(name)]),
            2 => TierReport::Read { name, slot, result: Ok(checksum) },
            _ => TierReport::Written { name, slot, result: Ok(()) },
        });
        self.faults += 1;
    }

    fn pass_time(&mut self) {
        let longest = if self.rng.random_bool(0.05) { 40_000 } else { 300 };
        let time = Duration::from_millis(self.rng.random_range(0..longest));
        self.now += time;
        self.rig.wait(time);
        self.listen();
        let waits = |of: &OpenRequest| of.pending > 0 && of.asked_at + WAIT_MAX <= self.now;
        assert!(!self.open.values().any(waits), "a request waits for longer than two seconds");
    }

    fn change_engines(&mut self) {
        if self.granted.len() < 3 {
            self.granted.insert(self.rig.connect(), Vec::new());
            return;
        }
        self.faults += 1;
        if self.rng.random_bool(0.5)
            && let Some(owner) = self.lost.pop()
        {
            self.rig.shared.buried(owner);
            self.granted.remove(&owner);
            return;
        }
        let Some(owner) = self.engine() else { return };
        let is_dead = self.rng.random_bool(0.5);
        self.open.retain(|(of, _), _| *of != owner);
        self.rig.shared.disconnect(owner, is_dead);
        if is_dead {
            self.granted.remove(&owner);
        } else {
            self.lost.push(owner);
        }
    }

    /// Everything but the media ends, in the middle of whatever it does.
    fn restart(&mut self) {
        self.faults += 1;
        self.rig = Rig::new(SLOTS, &self.media);
        self.now = Now::ZERO;
        self.open.clear();
        self.lost.clear();
        self.held.clear();
        self.granted = BTreeMap::from([(self.rig.owner, Vec::new())]);
    }

    /// Engines and routers hear what there is to hear.
    fn listen(&mut self) {
        for (owner, progress) in self.rig.told() {
            let key = (owner, progress.request.0);
            let Some(request) = self.open.get_mut(&key) else {
                panic!("progress of {key:?}, which has ended");
            };
            let told = request.slots.len();
            assert!(request.pending > 0, "progress after the last");
            request.slots.extend(&progress.slots);
            request.pending = progress.pending;
            let names = request.names[told..].to_vec();
            self.check(&progress.slots, &names);
        }
        for event in std::mem::take(&mut *self.rig.events.lock()) {
            match event {
                TierEvent::Stored { block, medium } => {
                    assert!(self.held.insert((block.name.0, medium)), "{block:?} {medium:?} twice");
                }
                TierEvent::Removed { block, medium } => {
                    assert!(self.held.remove(&(block.name.0, medium)), "{block:?} {medium:?}");
                }
                TierEvent::Cleared => self.held.clear(),
            }
        }
    }

    fn check(&mut self, slots: &[SlotId], names: &[BlockName]) {
        assert!(self.rig.is_right(slots, names), "wrong bytes in {slots:?} for {names:?}");
        self.handed_out += slots.len();
    }

    fn all_waits_end(&mut self) {
        self.rig.wait(WAIT_MAX);
        self.listen();
        assert!(self.open.values().all(|request| request.pending == 0), "a request waits on");
        // With all engines gone and all tiers done, every slot is free again.
        let owners: Vec<_> = self.granted.keys().copied().collect();
        for owner in owners {
            self.rig.shared.disconnect(owner, true);
            self.rig.shared.buried(owner);
        }
        self.rig.shared.clear();
        for _ in 0..100 {
            (0..self.rig.tiers.len()).for_each(|tier| self.rig.finish_all(tier, Fault::None));
        }
        let last: Vec<_> = (0..4).map(|_| self.rig.connect()).collect();
        let free: usize =
            last.iter().map(|owner| self.rig.shared.grant(*owner, SLOTS as usize).len()).sum();
        assert_eq!(free, SLOTS as usize, "slots are lost");
    }
}

/// Injects faults until there are so many, and returns the blocks handed out meanwhile.
fn inject(faults: usize, seeds: std::ops::Range<u64>) -> usize {
    let each = faults.div_ceil(seeds.clone().count());
    let run = |seed| {
        let mut chaos = Chaos::new(seed);
        chaos.run(each);
        chaos.handed_out
    };
    seeds.map(run).sum()
}

#[test]
fn no_wrong_byte_is_handed_out_while_everything_fails() {
    let handed_out = inject(10_000, 0..20);
    assert!(handed_out > 10_000, "only {handed_out} blocks were handed out");
}

/// `cargo test --release -p stator-kv hundred_thousand -- --ignored --nocapture`
#[test]
#[ignore = "takes a while"]
fn no_wrong_byte_is_handed_out_in_hundred_thousand_faults() {
    let faults = 100_000;
    let handed_out = inject(faults, 1000..1100);
    println!("{faults} faults, {handed_out} blocks handed out, 0 wrong bytes");
}
