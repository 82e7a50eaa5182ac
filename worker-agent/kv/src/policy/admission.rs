//! Chooses which blocks are worth a write to a tier: all, or those that are used a second time.
//!
//! While a tier is small against what is asked for, blocks that are used once only push out others, and
//! second touches have as many hits for a fraction of the writes. A tier that is large has room for all,
//! and what is written at its second use only is missed at that use. Two shadows of the tier count hits and
//! writes of both ways: all is written where enough of the further writes is hit. Source: the study of the
//! public traces in docs/benchmarks/kv.md.

use super::ghosts::Ghosts;
use super::sample::SequenceSample;
use super::{Eviction, Lru};
use crate::SlotId;
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::collections::VecDeque;

/// Fewest blocks of a shadow's tier: a smaller one would say nothing about long prompts.
const SHADOW_BLOCKS_MIN: usize = 512;
/// Smallest share of the sequences that is sampled: one of 64.
const SHIFT_MAX: u32 = 6;
/// Sampled blocks between two comparisons, for each block of a shadow.
const ROUND_PER_BLOCK: u64 = 2;
/// Comparisons in a row after which the choice changes.
const ROUNDS_TO_LEAD: u32 = 2;
/// Further writes that one further hit may cost.
const WRITES_PER_HIT: u64 = 16;
/// Names that a shadow remembers for each block of its tiers, as the store does.
const SEEN_PER_BLOCK: usize = 16;

/// The choice for one tier, and the two shadows that show what each would have found.
pub struct AdmissionSelector {
    sample: SequenceSample,
    through: ShadowTiers,
    second_touch: ShadowTiers,
    /// Sampled blocks since the last comparison, and how many make a round.
    asked: u64,
    round: u64,
    is_second_touch: bool,
    rounds_led: u32,
}

impl AdmissionSelector {
    /// A selector for a tier of so many blocks below a host memory of so many, which begins with all.
    pub fn new(host_blocks: usize, tier_blocks: usize) -> Self {
        let mut shift = 0;
        while shift < SHIFT_MAX && tier_blocks >> (shift + 1) >= SHADOW_BLOCKS_MIN {
            shift += 1;
        }
        let shadow = |is_second_touch| {
            let [host, tier] = [host_blocks, tier_blocks].map(|blocks| (blocks >> shift).max(1));
            ShadowTiers::new(host, tier, is_second_touch)
        };
        let (through, second_touch) = (shadow(false), shadow(true));
        let round = ROUND_PER_BLOCK * through.tier_blocks as u64;
        let sample = SequenceSample::new(shift);
        Self {
            sample,
            through,
            second_touch,
            asked: 0,
            round,
            is_second_touch: false,
            rounds_led: 0,
        }
    }

    /// Whether a block is written at its second use only.
    pub fn is_second_touch(&self) -> bool {
        self.is_second_touch
    }

    /// An engine asks for the blocks of a prompt.
    pub fn ask(&mut self, names: &[BlockName]) {
        if !self.sample.has(names) {
            return;
        }
        self.through.ask(names);
        self.second_touch.ask(names);
        self.asked += names.len() as u64;
        if self.asked >= self.round {
            self.asked = 0;
            self.compare();
        }
    }

    fn compare(&mut self) {
        let (all, second) = (&self.through, &self.second_touch);
        let further_hits = all.hits.saturating_sub(second.hits);
        let further_writes = all.writes.saturating_sub(second.writes);
        let spares = further_hits * WRITES_PER_HIT <= further_writes;
        self.rounds_led = if spares == self.is_second_touch { 0 } else { self.rounds_led + 1 };
        if self.rounds_led >= ROUNDS_TO_LEAD {
            self.rounds_led = 0;
            self.is_second_touch = spares;
        }
        // The past fades: what holds now is to count.
        for shadow in [&mut self.through, &mut self.second_touch] {
            shadow.hits = shadow.hits * 3 / 4;
            shadow.writes = shadow.writes * 3 / 4;
        }
    }
}

/// Host memory and a tier below it, without their KV.
struct ShadowTiers {
    host: FxHashMap<BlockName, SlotId>,
    names: Vec<BlockName>,
    free: Vec<SlotId>,
    order: Lru,
    /// Blocks of the tier, and whether they were read since they were written.
    tier: FxHashMap<BlockName, bool>,
    /// The tier's blocks, oldest first.
    written: VecDeque<BlockName>,
    tier_blocks: usize,
    /// Blocks that were seen before, where only these are written.
    seen: Option<Ghosts>,
    hits: u64,
    writes: u64,
}

impl ShadowTiers {
    fn new(host_blocks: usize, tier_blocks: usize, is_second_touch: bool) -> Self {
        let names = SEEN_PER_BLOCK * host_blocks.max(tier_blocks);
        let seen = is_second_touch.then(|| Ghosts::new(names));
        let (host, order, tier, written) = Default::default();
        Self {
            host,
            names: vec![BlockName(0); host_blocks],
            free: (0..host_blocks as u32).map(SlotId).collect(),
            order,
            tier,
            written,
            tier_blocks,
            seen,
            hits: 0,
            writes: 0,
        }
    }

    /// A prompt comes: leading blocks that are somewhere are hits, all others are computed.
    fn ask(&mut self, names: &[BlockName]) {
        for name in names {
            if !self.host.contains_key(name) {
                let Some(was_read) = self.tier.get_mut(name) else { break };
                *was_read = true;
            }
            self.hits += 1;
        }
        // Deepest first, as requests release their blocks.
        for name in names.iter().rev() {
            self.touch(*name);
        }
    }

    /// Writes a block to the tier, in place of the oldest that was not read; those before it that were
    /// read are written anew.
    fn write(&mut self, name: BlockName) {
        self.writes += 1;
        self.tier.insert(name, false);
        self.written.push_back(name);
        while self.tier.len() > self.tier_blocks
            && let Some(oldest) = self.written.pop_front()
        {
            match self.tier.get_mut(&oldest) {
                Some(was_read) if *was_read => {
                    *was_read = false;
                    self.written.push_back(oldest);
                    self.writes += 1;
                }
                _ => drop(self.tier.remove(&oldest)),
            }
        }
    }

    fn touch(&mut self, name: BlockName) {
        // The second use is told whether or not the block is still in host memory.
        let is_known = self.seen.as_mut().is_none_or(|seen| seen.replace(name));
        if is_known && !self.tier.contains_key(&name) {
            self.write(name);
        }
        let slot = self.host.get(&name).copied().or_else(|| {
            let slot = self.free.pop().or_else(|| {
                let victim = self.order.evict()?;
                self.host.remove(&self.names[victim.0 as usize]);
                Some(victim)
            })?;
            self.names[slot.0 as usize] = name;
            self.host.insert(name, slot);
            Some(slot)
        });
        if let Some(slot) = slot {
            self.order.hold(slot);
            self.order.release(slot, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(conversation: u128, blocks: u128) -> Vec<BlockName> {
        (0..blocks).map(|at| BlockName(conversation << 32 | at)).collect()
    }

    #[test]
    fn a_small_tier_is_spared_what_is_used_once() {
        let mut selector = AdmissionSelector::new(50, 600);
        for round in 0..2_000 {
            // Three prompts come again and again, between many that never do.
            selector.ask(&prompt(round % 3, 40));
            (0..8).for_each(|other| selector.ask(&prompt(1_000 + round * 8 + other, 40)));
        }
        assert!(selector.is_second_touch());
    }

    #[test]
    fn a_tier_with_room_for_all_takes_all() {
        let mut selector = AdmissionSelector::new(50, 100_000);
        for round in 0..20_000 {
            // Each conversation has two turns, far apart: what is not written at the first is missed.
            selector.ask(&prompt(round, 20));
            selector.ask(&prompt(round.saturating_sub(500), 40));
        }
        assert!(!selector.is_second_touch());
    }
}
