//! Reads from the tiers: what a request loads, and what it had better compute.

use super::index::KnownBlock;
use super::load_step::LoadStep;
use super::requests::PinnedRequest;
use super::slots::{ReadFate, SlotState};
use super::tiers::tiers_of;
use super::{Action, AheadReads, BlockStore, LoanTerms, TierId};
use crate::cost::{EnginePace, LoadSource, TIERS_MAX, blocks_to_load, saves_time};
use crate::tier::{TierRead, Urgency};
use crate::{Block, Now, SlotId};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::time::Duration;

/// Blocks that are read to measure a tier again which was long found too slow.
const PROBE_BLOCKS: usize = 8;

/// The set of all tiers.
const ALL_TIERS: u8 = u8::MAX;

impl BlockStore {
    /// Pins the blocks behind the ready ones that are loaded faster than computed: those on their
    /// way, those that a tier can read, and those that are here behind such a gap. Returns their number.
    pub(super) fn load_behind(
        &mut self,
        names: &[BlockName],
        asked: &mut PinnedRequest,
        pace: EnginePace,
        now: Now,
    ) -> usize {
        let mut steps = std::mem::take(&mut self.steps);
        if let Some(tier) = self.plan_loads(names, ALL_TIERS, pace, &mut steps, now) {
            self.tier_mut(tier).stats.refused_by_load += 1;
        }
        let load = self.worth_loading(&steps, pace);
        let loaded = self.start_loads(&steps[..load], Urgency::Demand, asked, now);
        self.refuse(&steps[load..], now);
        steps.clear();
        self.steps = steps;
        loaded
    }

    /// Pins the blocks behind the ready ones that another agent may read: those on their way from the
    /// disk, those that the disk is expected to read in time, and those that are here behind such a gap.
    pub(super) fn load_to_lend(
        &mut self,
        names: &[BlockName],
        asked: &mut PinnedRequest,
        terms: LoanTerms,
        now: Now,
    ) {
        let mut steps = std::mem::take(&mut self.steps);
        let disks = self.disks();
        self.plan_loads(names, disks, EnginePace::default(), &mut steps, now);
        steps.truncate(self.worth_lending(&steps, disks, terms));
        self.start_loads(&steps, terms.urgency, asked, now);
        steps.clear();
        self.steps = steps;
    }

    /// Pins the blocks of these steps, and starts to read those that are not here, up to the first that
    /// has no room. Returns their number.
    fn start_loads(
        &mut self,
        steps: &[LoadStep],
        urgency: Urgency,
        asked: &mut PinnedRequest,
        now: Now,
    ) -> usize {
        // What is here is pinned first: a read needs a slot and may evict another block.
        for slot in steps.iter().filter_map(|step| step.slot) {
            self.pin(slot);
        }
        for (at, step) in steps.iter().enumerate() {
            let slot = step.slot.or_else(|| {
                let slot = self.read(step.block, step.source, urgency, now)?;
                self.pin(slot);
                Some(slot)
            });
            let Some(slot) = slot else {
                let behind = steps[at..].iter().rev();
                behind.filter_map(|step| step.slot).for_each(|slot| self.unpin(slot));
                return at;
            };
            asked.slots.push(slot);
        }
        steps.len()
    }

    /// Starts to read blocks that nobody waits for, as many as are there in a row.
    pub(super) fn prefetch(&mut self, names: &[BlockName], now: Now) {
        let mut steps = std::mem::take(&mut self.steps);
        self.plan_loads(names, ALL_TIERS, EnginePace::default(), &mut steps, now);
        for slot in self.read_all(&steps, Urgency::Prefetch, now) {
            self.slots[slot].is_ahead = true;
        }
        steps.clear();
        self.steps = steps;
    }

    /// Starts to read the leading blocks of a prompt, by the hashes of KV events, as far as that is
    /// faster than to compute them. A request for it has come, whose engine has not asked yet. Its reads
    /// are wanted until [`BlockStore::end_ahead`].
    pub fn read_ahead(
        &mut self,
        hashes: &[SequenceHash],
        pace: EnginePace,
        now: Now,
    ) -> AheadReads {
        self.expire(now);
        let names: Vec<_> = hashes.iter().map_while(|hash| self.index.name(*hash)).collect();
        let mut steps = std::mem::take(&mut self.steps);
        self.plan_loads(&names, ALL_TIERS, pace, &mut steps, now);
        steps.truncate(self.worth_loading(&steps, pace));
        let slots = self.read_all(&steps, Urgency::Demand, now);
        steps.clear();
        self.steps = steps;
        let reads = slots.into_iter().map(|slot| {
            let of = &mut self.slots[slot];
            of.ahead += 1;
            (slot, of.reads)
        });
        AheadReads(reads.collect())
    }

    /// The request that blocks were read ahead for has ended.
    pub fn end_ahead(&mut self, reads: AheadReads, now: Now) {
        self.expire(now);
        for (slot, number) in reads.0 {
            let of = &mut self.slots[slot];
            let is_read = matches!(of.state, SlotState::Reading { fate: ReadFate::Wanted, .. });
            // The slot may be read into again by now, for others.
            if is_read && of.reads == number {
                of.ahead -= 1;
                self.settle(slot);
            }
        }
    }

    /// Reads what is neither here nor on its way, up to the first block that has no room. Returns the
    /// slots of reads under way, also of those that others began: these may not want them to the end.
    fn read_all(&mut self, steps: &[LoadStep], urgency: Urgency, now: Now) -> Vec<SlotId> {
        let mut slots = Vec::new();
        for step in steps {
            let slot = step.slot.or_else(|| self.read(step.block, step.source, urgency, now));
            let Some(slot) = slot else { break };
            if matches!(self.slots[slot].state, SlotState::Reading { .. }) {
                slots.push(slot);
            }
        }
        slots
    }

    /// Number of leading steps that take less time than to compute their blocks.
    fn worth_loading(&self, steps: &[LoadStep], pace: EnginePace) -> usize {
        let time = |source, reads| self.read_time(source, reads);
        blocks_to_load(steps.iter().map(|step| step.source), time, pace)
    }

    /// Number of leading steps that are here, or that a disk is expected to have read in time.
    fn worth_lending(&self, steps: &[LoadStep], disks: u8, terms: LoanTerms) -> usize {
        let (mut reads, mut all) = ([0; TIERS_MAX], 0);
        let is_lent = |step: &&LoadStep| {
            let (tier, new) = match step.source {
                LoadSource::Host => return true,
                LoadSource::InFlight(tier) => (tier, 0),
                LoadSource::Tier(tier) | LoadSource::Located { tier, .. } => (tier, 1),
            };
            reads[tier] += new;
            all += new;
            let is_disk = disks & TierId(tier as u8).bit() != 0;
            let is_in_time = self.tiers[tier].speed.time(reads[tier]) < terms.wait;
            is_disk && is_in_time && all <= terms.reads_max
        };
        steps.iter().take_while(is_lent).count()
    }

    /// One bit for each tier on a disk.
    fn disks(&self) -> u8 {
        let tiers = tiers_of(ALL_TIERS).zip(&self.tiers);
        let disks = tiers.filter(|(_, state)| state.settings.medium == Medium::Disk);
        disks.fold(0, |bits, (tier, _)| bits | tier.bit())
    }

    /// The source of each block, up to the first that none of these tiers has or whose tiers take no
    /// reads now. Returns the nearest of those tiers.
    fn plan_loads(
        &self,
        names: &[BlockName],
        tiers: u8,
        pace: EnginePace,
        steps: &mut Vec<LoadStep>,
        now: Now,
    ) -> Option<TierId> {
        let mut planned = [0; TIERS_MAX];
        for (at, name) in names.iter().enumerate() {
            let known = self.index.find(*name)?;
            let (block, slot) = (known.block(*name), known.slot);
            let source = match slot.map(|slot| self.slots[slot].state) {
                Some(SlotState::Reading { tier, .. }) => LoadSource::InFlight(tier.into()),
                Some(_) => LoadSource::Host,
                None => {
                    let takes = |tier: &TierId| {
                        self.tier(*tier).takes_read(planned[usize::from(*tier)], now)
                    };
                    let open = tiers_of(known.tiers & tiers).filter(takes);
                    let sources = open.map(|tier| (tier, self.source_at(known, tier)));
                    // So many blocks of the prompt may come from there.
                    let left = names.len() - at;
                    let first = sources.min_by_key(|(_, source)| self.rank(*source, left, pace));
                    let Some((tier, source)) = first else {
                        return tiers_of(known.tiers & tiers).next();
                    };
                    planned[usize::from(tier)] += 1;
                    source
                }
            };
            steps.push(LoadStep { block, slot, source });
        }
        None
    }

    /// The source of a block at a tier that has it.
    fn source_at(&self, known: &KnownBlock, tier: TierId) -> LoadSource {
        let has_cost = |source: &_| self.tier(tier).sources.cost(*source).is_some();
        match known.source.filter(has_cost) {
            Some(source) => LoadSource::Located { tier: tier.into(), source },
            None => LoadSource::Tier(tier.into()),
        }
    }

    /// Rank of a source for so many blocks, the first of which is to be read from it: the fastest of
    /// those that save time, then those that were never measured, then all others. Of equal ones the
    /// nearest is taken, and where nothing is measured all are equal.
    fn rank(&self, source: LoadSource, blocks: usize, pace: EnginePace) -> (u8, Duration) {
        let time = self.read_time(source, blocks);
        let is_measured = match source {
            LoadSource::Tier(tier) => self.tiers[tier].speed.measured().is_some(),
            _ => true,
        };
        match is_measured {
            true if saves_time(time, blocks, pace) => (0, time),
            false => (1, time),
            true => (2, time),
        }
    }

    /// Counts blocks that are faster to compute. If their tier was not measured for long, reads a
    /// few of them, for which nobody waits: it may have become faster.
    fn refuse(&mut self, steps: &[LoadStep], now: Now) {
        for step in steps {
            if let LoadSource::Tier(tier) | LoadSource::Located { tier, .. } = step.source {
                self.tiers[tier].stats.refused_by_cost += 1;
            }
        }
        let Some(first) = steps.first().map(|step| step.source) else { return };
        let is_due = match first {
            LoadSource::Host | LoadSource::InFlight(_) => false,
            LoadSource::Tier(tier) => {
                let speed = &self.tiers[tier].speed;
                speed.is_stale(now) && speed.in_flight() == 0
            }
            LoadSource::Located { tier, source } => self.tiers[tier].sources.probe(source, now),
        };
        if is_due {
            let alike = |step: &&LoadStep| step.source == first;
            for step in steps.iter().take_while(alike).take(PROBE_BLOCKS) {
                if let Some(slot) = self.read(step.block, step.source, Urgency::Prefetch, now) {
                    self.slots[slot].is_ahead = true;
                }
            }
        }
    }

    /// Predicted time until `reads` new reads from a source, and those in flight there, have ended.
    fn read_time(&self, source: LoadSource, reads: usize) -> Duration {
        match source {
            LoadSource::Host => Duration::ZERO,
            LoadSource::InFlight(tier) | LoadSource::Tier(tier) => {
                self.tiers[tier].speed.time(reads)
            }
            LoadSource::Located { tier, source } => {
                let cost = self.tiers[tier].sources.cost(source);
                cost.map_or(Duration::ZERO, |cost| cost.time(reads))
            }
        }
    }

    /// Nobody waits for a read any more: its tier may drop it. Whoever asks for the block from now on has
    /// it read anew, so that no drop comes too late.
    pub(super) fn drop_read(&mut self, slot: SlotId) {
        let of = &mut self.slots[slot];
        let name = of.name;
        let SlotState::Reading { tier, fate, .. } = &mut of.state else { return };
        let tier = *tier;
        if *fate == ReadFate::Wanted {
            *fate = ReadFate::Dropped;
            self.index.unset_slot(name);
        }
        self.actions.push_back(Action::Cancel { tier, name, slot });
    }

    /// Whether somebody wants a block that is being read and that no request waits for.
    pub(super) fn is_wanted_ahead(&self, slot: SlotId) -> bool {
        let of = &self.slots[slot];
        let hash = self.index.find(of.name).and_then(|known| known.hash);
        of.is_ahead
            || of.ahead > 0
            || self.kept.has(of.name)
            || hash.is_some_and(|hash| self.pins.awaits(&hash))
    }

    fn read(
        &mut self,
        block: Block,
        source: LoadSource,
        urgency: Urgency,
        now: Now,
    ) -> Option<SlotId> {
        let (LoadSource::Tier(at) | LoadSource::Located { tier: at, .. }) = source else {
            return None;
        };
        // Two names of a prompt may be the same.
        if let Some(slot) = self.index.slot(block.name) {
            return Some(slot);
        }
        if !self.make_room_of(block.tenant, now) {
            return None;
        }
        let slot = self.take_slot(now)?;
        self.tenants.add(slot, block.tenant);
        let tier = TierId(at as u8);
        let state = self.tier_mut(tier);
        let ticket = state.speed.start(now);
        match urgency {
            Urgency::Demand => state.stats.demanded += 1,
            _ => state.stats.prefetched += 1,
        }
        self.slots[slot].state = SlotState::Reading { tier, ticket, fate: ReadFate::Wanted };
        self.slots[slot].name = block.name;
        (self.slots[slot].is_ahead, self.slots[slot].ahead) = (false, 0);
        self.slots[slot].reads += 1;
        self.index.set_slot(block, slot);
        let read = TierRead { name: block.name, slot, urgency };
        self.actions.push_back(Action::Read { tier, read });
        Some(slot)
    }
}
