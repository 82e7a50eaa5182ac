//! The flows of a band: who is next among them.

use crate::bounds::QueueUsage;
use crate::entry::FlowId;
use crate::fairness::{Fairness, FlowRank, FlowShare, FlowTurns};
use crate::heap::Heap;
use crate::slots::{NONE, Slots};
use rustc_hash::FxHashMap;

/// One flow, with or without waiting requests.
#[derive(Debug, Default)]
struct Flow {
    id: FlowId,
    /// Its requests by key and number.
    waiting: Heap,
    tokens: u64,
    share: FlowShare,
    /// Of its requests, those that are held.
    held: u32,
    /// Something is held and it has no turns before [`Flows::resume`].
    out: bool,
}

/// The flows of a band.
#[derive(Debug)]
pub(crate) struct Flows {
    turns: FlowTurns,
    flows: Vec<Flow>,
    /// Positions of flows among the ranks while something waits, else among the idle.
    at: Vec<u32>,
    free: Vec<u32>,
    by_id: FxHashMap<FlowId, u32>,
    /// Flows that have something waiting, the next first.
    ranks: Heap,
    /// The others, by when they were last heard of.
    idle: Heap,
    /// Heads that were offered in vain and are not offered again before [`Flows::resume`]: their
    /// flows and keys, and what they are.
    held: Vec<(u32, (u64, u64), u32)>,
}

/// Heads of one flow that are offered in vain before all of it is passed over: what it has waiting
/// for one busy worker is not to use up the tries of others.
pub(crate) const HEADS_PER_FLOW: u32 = 8;

impl Flows {
    pub(crate) fn new(fairness: Fairness) -> Self {
        Self {
            turns: FlowTurns::new(fairness),
            flows: Vec::new(),
            at: Vec::new(),
            free: Vec::new(),
            by_id: FxHashMap::default(),
            ranks: Heap::default(),
            idle: Heap::default(),
            held: Vec::new(),
        }
    }

    /// Flows that have something waiting.
    pub(crate) fn active(&self) -> usize {
        self.ranks.len()
    }

    /// Flows that are known.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Requests and tokens that wait in a flow.
    pub(crate) fn usage(&self, id: FlowId) -> QueueUsage {
        let Some(&flow) = self.by_id.get(&id) else { return QueueUsage::default() };
        let Flow { waiting, tokens, .. } = &self.flows[flow as usize];
        QueueUsage { requests: waiting.len() as u64, bytes: 0, tokens: *tokens }
    }

    pub(crate) fn id(&self, flow: u32) -> FlowId {
        self.flows[flow as usize].id
    }

    /// Lets a request wait under its key.
    pub(crate) fn insert(&mut self, slots: &mut Slots, slot: u32, id: FlowId, key: u64) {
        let number = self.flow(id);
        let flow = &mut self.flows[number as usize];
        let joins = flow.waiting.is_empty();
        if joins {
            let least = self.ranks.first().map(|(rank, _)| rank);
            self.turns.joins(&mut flow.share, least);
        } else {
            settle(&self.turns, flow, slots);
        }
        slots[slot].flow = number;
        flow.tokens += u64::from(slots[slot].tokens);
        let key = (key, slots[slot].number);
        flow.waiting.push(key, slot, &mut slots.at_flow);
        let rank = rank(&self.turns, flow, slots);
        if joins {
            self.ranks.push(rank, number, &mut self.at);
        } else {
            self.ranks.update(rank, number, &mut self.at);
        }
    }

    /// Bytes that all this takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let waiting = self.flows.iter().map(|flow| flow.waiting.memory_bytes()).sum::<usize>();
        let flows = self.flows.capacity() * size_of::<Flow>();
        // A table of the standard library has a byte per entry beside it.
        let names = self.by_id.capacity() * (size_of::<(FlowId, u32)>() + 1);
        let numbers = [&self.at, &self.free].map(Vec::capacity).iter().sum::<usize>();
        let free = numbers * size_of::<u32>();
        let held = self.held.capacity() * size_of::<(u32, (u64, u64), u32)>();
        waiting + flows + names + free + held + self.ranks.memory_bytes() + self.idle.memory_bytes()
    }

    /// Takes a request out, because it is served or for another reason.
    pub(crate) fn remove(&mut self, slots: &mut Slots, slot: u32, served: bool, now: u64) {
        let (number, tokens) = (slots[slot].flow, slots[slot].tokens);
        let flow = &mut self.flows[number as usize];
        settle(&self.turns, flow, slots);
        if served {
            self.turns.served(&mut flow.share, tokens, now);
        }
        flow.waiting.remove(slot, &mut slots.at_flow);
        flow.waiting.shrink();
        flow.tokens -= u64::from(tokens);
        if !flow.waiting.is_empty() {
            let rank = rank(&self.turns, flow, slots);
            return self.ranks.update(rank, number, &mut self.at);
        }
        self.ranks.remove(number, &mut self.at);
        flow.out = flow.held > 0;
        if !flow.out {
            self.turns.leaves(&flow.share);
            self.idle.push((now, 0), number, &mut self.at);
        }
    }

    /// The flow whose turn it is, and its head.
    pub(crate) fn next(&mut self, slots: &Slots, now: u64) -> Option<(u32, u32)> {
        let flow = match self.turns.compares() {
            Some(comparison) => {
                let waiting = self.ranks.numbers().filter_map(|number| {
                    let flow = &self.flows[number as usize];
                    let (_, head) = flow.waiting.first()?;
                    Some((number, &flow.share, slots[head].arrival))
                });
                comparison.best(waiting, now)?
            }
            None => {
                let (rank, flow) = self.ranks.first()?;
                self.turns.visits(rank);
                flow
            }
        };
        let (_, slot) = self.flows[flow as usize].waiting.first()?;
        Some((flow, slot))
    }

    /// Passes over the head of the flow whose turn it is, or over all of it.
    pub(crate) fn hold(&mut self, slots: &mut Slots, number: u32) {
        let flow = &mut self.flows[number as usize];
        let Some((key, head)) = flow.waiting.first() else { return };
        settle(&self.turns, flow, slots);
        flow.waiting.remove(head, &mut slots.at_flow);
        self.held.push((number, key, head));
        flow.held += 1;
        flow.out = flow.waiting.is_empty() || flow.held == HEADS_PER_FLOW;
        if flow.out {
            self.ranks.remove(number, &mut self.at);
        } else {
            let rank = rank(&self.turns, flow, slots);
            self.ranks.update(rank, number, &mut self.at);
        }
    }

    /// Gives those that were passed over their turns back.
    pub(crate) fn resume(&mut self, slots: &mut Slots) {
        for (number, ..) in &self.held {
            settle(&self.turns, &mut self.flows[*number as usize], slots);
        }
        for (number, key, slot) in &self.held {
            self.flows[*number as usize].waiting.push(*key, *slot, &mut slots.at_flow);
        }
        for (number, ..) in self.held.drain(..) {
            let flow = &mut self.flows[number as usize];
            flow.held -= 1;
            if flow.held > 0 {
                continue;
            }
            // Its head is again what it was.
            let rank = rank(&self.turns, flow, slots);
            if std::mem::take(&mut flow.out) {
                self.ranks.push(rank, number, &mut self.at);
            } else {
                self.ranks.update(rank, number, &mut self.at);
            }
        }
    }

    /// A request of a flow went through without waiting.
    pub(crate) fn passed(&mut self, id: FlowId, now: u64) {
        let number = self.flow(id);
        let flow = &mut self.flows[number as usize];
        self.turns.served(&mut flow.share, 1, now);
        if flow.waiting.is_empty() && !flow.out {
            self.idle.push((now, 0), number, &mut self.at);
        }
    }

    /// Charges tokens that a flow's running requests produced. A flow that is forgotten pays
    /// nothing.
    pub(crate) fn charge(&mut self, slots: &Slots, id: FlowId, tokens: u64, now: u64) {
        let Some(&number) = self.by_id.get(&id) else { return };
        let flow = &mut self.flows[number as usize];
        if !self.turns.charge(&mut flow.share, tokens, now) {
            return;
        }
        if flow.waiting.is_empty() {
            self.idle.update((now, 0), number, &mut self.at);
        } else {
            let rank = rank(&self.turns, flow, slots);
            self.ranks.update(rank, number, &mut self.at);
        }
    }

    /// Forgets the idle flows last heard of before `since`, and the earliest of those that are
    /// more than `most`.
    pub(crate) fn forget(&mut self, since: u64, most: usize) {
        while let Some(((last, _), number)) = self.idle.first() {
            if last >= since && self.idle.len() <= most {
                return;
            }
            self.idle.remove(number, &mut self.at);
            let flow = std::mem::take(&mut self.flows[number as usize]);
            self.by_id.remove(&flow.id);
            self.free.push(number);
        }
    }

    /// The flow of this name, not idle any more.
    fn flow(&mut self, id: FlowId) -> u32 {
        if let Some(&number) = self.by_id.get(&id) {
            if self.flows[number as usize].waiting.is_empty() {
                self.idle.remove(number, &mut self.at);
            }
            return number;
        }
        let flow = Flow { id, ..Flow::default() };
        let number = match self.free.pop() {
            Some(number) => {
                self.flows[number as usize] = flow;
                number
            }
            None => {
                self.flows.push(flow);
                self.at.push(NONE);
                u32::try_from(self.flows.len() - 1).expect("fewer flows than 2^32 requests")
            }
        };
        self.by_id.insert(id, number);
        number
    }
}

/// Books what a flow was credited for its present head, if it has one.
fn settle(turns: &FlowTurns, flow: &mut Flow, slots: &Slots) {
    if let Some((_, head)) = flow.waiting.first() {
        turns.settle(&mut flow.share, slots[head].tokens);
    }
}

/// Rank of a settled flow; an idle flow has the highest.
fn rank(turns: &FlowTurns, flow: &mut Flow, slots: &Slots) -> FlowRank {
    let Some((key, head)) = flow.waiting.first() else { return (u64::MAX, u64::MAX) };
    turns.rank(&mut flow.share, key, slots[head].tokens)
}
