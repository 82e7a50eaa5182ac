//! The requests of one priority.

use crate::bounds::QueueUsage;
use crate::entry::FlowId;
use crate::flows::Flows;
use crate::heap::Heap;
use crate::settings::BandPolicy;
use crate::slots::{NONE, Slots};
use crate::stats::OutcomeCounts;

/// The requests of one priority, or of those nearest to it.
#[derive(Debug)]
pub(crate) struct Band {
    pub(crate) priority: i32,
    /// Whether it stays when it is idle.
    pub(crate) configured: bool,
    pub(crate) policy: BandPolicy,
    pub(crate) flows: Flows,
    pub(crate) usage: QueueUsage,
    pub(crate) counts: OutcomeCounts,
    /// Time when a request last came or went, in nanoseconds.
    pub(crate) last_used: u64,
    deadlines: Heap,
    oldest: u32,
    newest: u32,
}

impl Band {
    pub(crate) fn new(priority: i32, policy: BandPolicy, configured: bool) -> Self {
        Self {
            priority,
            configured,
            policy,
            flows: Flows::new(policy.fairness),
            usage: QueueUsage::default(),
            counts: OutcomeCounts::default(),
            last_used: 0,
            deadlines: Heap::default(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Lets a request wait.
    pub(crate) fn insert(&mut self, slots: &mut Slots, slot: u32, flow: FlowId, key: u64) {
        let (bytes, tokens) = (slots[slot].bytes, slots[slot].tokens);
        self.usage = self.usage.plus(QueueUsage::one(bytes, tokens));
        self.last_used = slots[slot].arrival;
        self.flows.insert(slots, slot, flow, key);
        let deadline = (slots[slot].deadline, slots[slot].number);
        self.deadlines.push(deadline, slot, &mut slots.at_deadline);
        (slots[slot].older, slots[slot].newer) = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = slot,
            newest => slots[newest].newer = slot,
        }
        self.newest = slot;
    }

    /// Takes a request out, because it is served or for another reason.
    pub(crate) fn remove(&mut self, slots: &mut Slots, slot: u32, served: bool, now: u64) {
        let (bytes, tokens) = (slots[slot].bytes, slots[slot].tokens);
        self.usage = self.usage.minus(QueueUsage::one(bytes, tokens));
        self.last_used = now;
        self.flows.remove(slots, slot, served, now);
        self.deadlines.remove(slot, &mut slots.at_deadline);
        self.deadlines.shrink();
        let (older, newer) = (slots[slot].older, slots[slot].newer);
        match older {
            NONE => self.oldest = newer,
            older => slots[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => slots[newer].older = older,
        }
    }

    /// Bytes that all this takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.flows.memory_bytes() + self.deadlines.memory_bytes()
    }

    /// The request whose deadline comes first, and when.
    pub(crate) fn first_due(&self) -> Option<(u64, u32)> {
        self.deadlines.first().map(|((deadline, _), slot)| (deadline, slot))
    }

    /// The request that came last.
    pub(crate) fn newest(&self) -> Option<u32> {
        Some(self.newest).filter(|slot| *slot != NONE)
    }

    /// The request that came first.
    pub(crate) fn oldest(&self) -> Option<u32> {
        Some(self.oldest).filter(|slot| *slot != NONE)
    }
}
