//! Chooses the policy that has the most hits on a sample of the sequences.

use super::Eviction;
use super::lru::Lru;
use super::sample::SequenceSample;
use super::second_touch::SecondTouch;
use super::shadow::ShadowCache;
use super::tiny_lfu::WindowTinyLfu;
use super::two_queue::TwoQueue;
use crate::SlotId;
use stator_protos::name::BlockName;

/// Fewest slots of a shadow: a smaller one would say nothing about long prompts.
const SHADOW_SLOTS_MIN: usize = 512;
/// Smallest share of the sequences that is sampled: one of 64.
const SHIFT_MAX: u32 = 6;
/// Sampled blocks between two comparisons, for each slot of a shadow.
const ROUND_PER_SLOT: u64 = 4;
/// Comparisons in a row that a policy has to lead.
const ROUNDS_TO_LEAD: u32 = 2;
/// Lead, as a share of the current policy's hits: one in 50.
const LEAD: u64 = 50;

/// A policy for the blocks of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// [`Lru`].
    Lru,
    /// [`TwoQueue`] with 10 % for new blocks.
    TwoQueueShort,
    /// [`TwoQueue`] with 60 % for new blocks.
    TwoQueueLong,
    /// [`WindowTinyLfu`] with a window of 1 %.
    TinyLfu,
    /// [`SecondTouch`].
    SecondTouch,
}

impl PolicyName {
    /// All policies; the first is used until another has shown that it is better.
    pub const ALL: [Self; 5] =
        [Self::Lru, Self::TwoQueueShort, Self::TwoQueueLong, Self::TinyLfu, Self::SecondTouch];

    /// The name in configuration and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::TwoQueueShort => "two-queue-short",
            Self::TwoQueueLong => "two-queue-long",
            Self::TinyLfu => "tiny-lfu",
            Self::SecondTouch => "second-touch",
        }
    }

    /// The policy for this many slots.
    pub fn build(self, slots: usize) -> Box<dyn Eviction> {
        match self {
            Self::Lru => Box::new(Lru::default()),
            Self::TwoQueueShort => Box::new(TwoQueue::new(slots, 10)),
            Self::TwoQueueLong => Box::new(TwoQueue::new(slots, 60)),
            Self::TinyLfu => Box::new(WindowTinyLfu::new(slots, 1)),
            Self::SecondTouch => Box::new(SecondTouch::new(slots)),
        }
    }
}

impl std::str::FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown policy {0:?}: expected one of lru, two-queue-short, two-queue-long, tiny-lfu, second-touch"
)]
pub struct UnknownPolicy(pub String);

/// The policy in use, and the shadows that show which would be best.
pub struct PolicySelector {
    policy: Box<dyn Eviction>,
    current: usize,
    names: Vec<BlockName>,
    sample: SequenceSample,
    shadows: Vec<ShadowCache>,
    /// Sampled blocks since the last comparison, and how many make a round.
    asked: u64,
    round: u64,
    leader: usize,
    rounds_led: u32,
}

impl PolicySelector {
    /// A selector for this many slots, which begins with LRU.
    pub fn new(slots: usize) -> Self {
        let mut shift = 0;
        while shift < SHIFT_MAX && slots >> (shift + 1) >= SHADOW_SLOTS_MIN {
            shift += 1;
        }
        let shadow_slots = (slots >> shift).max(1);
        let shadows = PolicyName::ALL
            .iter()
            .map(|policy| ShadowCache::new(policy.build(shadow_slots), shadow_slots));
        Self {
            policy: PolicyName::ALL[0].build(slots),
            current: 0,
            names: vec![BlockName(0); slots],
            sample: SequenceSample::new(shift),
            shadows: shadows.collect(),
            asked: 0,
            round: ROUND_PER_SLOT * shadow_slots as u64,
            leader: 0,
            rounds_led: 0,
        }
    }

    /// A selector that stays with one policy.
    pub fn fixed(policy: PolicyName, slots: usize) -> Self {
        let current = PolicyName::ALL.iter().position(|name| *name == policy).unwrap_or(0);
        let shadows = Vec::new();
        Self { policy: policy.build(slots), current, shadows, ..Self::new(slots) }
    }

    /// The policy in use.
    pub fn current(&self) -> PolicyName {
        PolicyName::ALL[self.current]
    }

    /// An engine asks for the blocks of a prompt.
    pub fn ask(&mut self, names: &[BlockName]) {
        if self.shadows.is_empty() || !self.sample.has(names) {
            return;
        }
        self.shadows.iter_mut().for_each(|shadow| shadow.ask(names));
        self.asked += names.len() as u64;
        if self.asked >= self.round {
            self.asked = 0;
            self.compare();
        }
    }

    fn compare(&mut self) {
        let hits = |at: &usize| self.shadows[*at].hits();
        let best = (0..self.shadows.len()).max_by_key(hits).unwrap_or(self.current);
        let own = hits(&self.current);
        let leads = hits(&best) > own + own / LEAD;
        self.rounds_led = match leads {
            true if best == self.leader => self.rounds_led + 1,
            true => 1,
            false => 0,
        };
        self.leader = best;
        // The past fades: a policy is to lead now.
        self.shadows.iter_mut().for_each(|shadow| shadow.fade());
        if self.rounds_led >= ROUNDS_TO_LEAD {
            self.rounds_led = 0;
            self.switch(best);
        }
    }

    /// Hands all blocks that may be evicted to another policy, in the order in which they would be
    /// evicted. Held blocks follow when they are released. Takes time for each block, and is rare.
    fn switch(&mut self, to: usize) {
        let mut next = PolicyName::ALL[to].build(self.names.len());
        while let Some(slot) = self.policy.evict() {
            next.release(slot, self.names[slot.0 as usize]);
        }
        self.policy = next;
        self.current = to;
    }
}

impl Eviction for PolicySelector {
    fn hold(&mut self, slot: SlotId) {
        self.policy.hold(slot);
    }

    fn release(&mut self, slot: SlotId, name: BlockName) {
        self.names[slot.0 as usize] = name;
        self.policy.release(slot, name);
    }

    fn release_behind(&mut self, slot: SlotId, name: BlockName, prefix: Option<SlotId>) {
        self.names[slot.0 as usize] = name;
        self.policy.release_behind(slot, name, prefix);
    }

    fn evict(&mut self) -> Option<SlotId> {
        self.policy.evict()
    }

    fn forget(&mut self, slot: SlotId) {
        self.policy.forget(slot);
    }
}
