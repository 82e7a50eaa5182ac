//! Blocks that a worker should hold by now because it was sent a request for them.
//!
//! What is remembered are whole sequences, not blocks: what a new one adds to those of the same
//! worker is its tail, and what is lost when one ends is its tail too, which neighbours in sorted
//! order tell in a few comparisons. Only tails are written to the table of blocks.

use crate::chains::{BySlot, Chains};
use crate::elements::Op;
use crate::settings::{IndexSettings, PredictionPolicy};
use crate::time::Time;
use stator_protos::hash::SequenceHash;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Receiver of tails: a worker's slot, blocks, and whether they are predicted or no longer.
pub(crate) trait Tails {
    fn write(&self, slot: u32, blocks: &[SequenceHash], op: Op);
}

/// All predicted sequences.
pub(crate) struct Predictions {
    by_slot: BySlot<Due>,
    /// In the order in which they go.
    queue: BTreeMap<Due, (u32, Arc<[SequenceHash]>)>,
    /// Sum of the lengths of all sequences.
    length: usize,
    max_length: usize,
    predicting: PredictionPolicy,
    number: u64,
}

/// Expiry of a sequence. If each worker has its own bound, `slot` is the worker's, else 0; `number`
/// tells sequences apart that expire at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    slot: u32,
    until: Time,
    number: u64,
}

impl Predictions {
    pub(crate) fn new(settings: &IndexSettings) -> Self {
        let (max_length, predicting) = (settings.max_predicted, settings.predicting);
        let (by_slot, queue) = Default::default();
        Self { by_slot, queue, length: 0, max_length, predicting, number: 0 }
    }

    /// Predicted entries: a block counts once for each worker.
    pub(crate) fn blocks(&self) -> usize {
        self.by_slot.values().map(Chains::blocks).sum()
    }

    /// Whether anything is predicted of a slot.
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// Predicts that the worker in `slot` holds `sequence`, at least until `until`.
    pub(crate) fn add(
        &mut self,
        slot: u32,
        sequence: &[SequenceHash],
        until: Time,
        tails: &impl Tails,
    ) {
        let sequence = &sequence[..sequence.len().min(self.longest())];
        if sequence.is_empty() {
            return;
        }
        let due = self.due(slot, until);
        let chains = self.by_slot.entry(slot).or_default();
        let mut shared = 0;
        if let Some((chain, &known, common)) = chains.at_or_after(sequence) {
            if common == sequence.len() && known.until >= due.until {
                return;
            }
            if chain.len() == sequence.len() && common == sequence.len() {
                return self.put_off(known, due);
            }
            shared = common;
        }
        while let Some((chain, &known, common)) = chains.before(sequence) {
            shared = shared.max(common);
            if common < chain.len() || known.until > due.until {
                break;
            }
            // The new sequence says all that this one said, and for longer.
            let chain = chain.clone();
            chains.remove(&chain);
            self.queue.remove(&known);
            self.length -= chain.len();
        }
        tails.write(slot, &sequence[shared..], Op::Predict);
        let sequence: Arc<[SequenceHash]> = sequence.into();
        // Sequences that `sequence` replaced are part of what it shares no longer.
        let still = chains.shared(&sequence);
        chains.insert(sequence.clone(), still, due);
        self.length += sequence.len();
        self.queue.insert(due, (slot, sequence));
        self.keep_bounds(slot, tails);
    }

    /// Forgets what ended at `now` or before.
    pub(crate) fn expire(&mut self, now: Time, tails: &impl Tails) {
        if self.predicting != PredictionPolicy::Ttl {
            return;
        }
        while let Some((&due, _)) = self.queue.first_key_value() {
            if due.until > now {
                return;
            }
            self.forget(due, tails);
        }
    }

    /// Forgets all about a slot, whose blocks are gone from the table already.
    pub(crate) fn forget_slot(&mut self, slot: u32) {
        let Some(chains) = self.by_slot.remove(&slot) else { return };
        for (chain, due) in chains.iter() {
            self.length -= chain.len();
            self.queue.remove(due);
        }
    }

    /// Sequences in the order in which they go, with the slots of their workers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<[SequenceHash]>)> {
        self.queue.values().map(|(slot, chain)| (*slot, chain))
    }

    /// Blocks of the longest sequence that all bounds allow.
    fn longest(&self) -> usize {
        match self.predicting {
            PredictionPolicy::Ttl => self.max_length,
            PredictionPolicy::Lru { blocks_per_worker } => self.max_length.min(blocks_per_worker),
        }
    }

    fn due(&mut self, slot: u32, until: Time) -> Due {
        self.number += 1;
        let number = self.number;
        match self.predicting {
            PredictionPolicy::Ttl => Due { slot: 0, until, number },
            PredictionPolicy::Lru { .. } => {
                Due { slot, until: Time(Duration::from_nanos(number)), number }
            }
        }
    }

    /// Gives a sequence that is there another due time.
    fn put_off(&mut self, known: Due, due: Due) {
        let Some((slot, chain)) = self.queue.remove(&known) else { return };
        let chains = self.by_slot.get_mut(&slot);
        if let Some(value) = chains.and_then(|chains| chains.get_mut(&chain)) {
            *value = due;
        }
        self.queue.insert(due, (slot, chain));
    }

    /// Forgets sequences until all bounds hold again after one was added to `slot`.
    fn keep_bounds(&mut self, slot: u32, tails: &impl Tails) {
        if let PredictionPolicy::Lru { blocks_per_worker } = self.predicting {
            while self.by_slot.get(&slot).is_some_and(|chains| chains.blocks() > blocks_per_worker)
            {
                let Some(due) = self.first_of(slot) else { break };
                self.forget(due, tails);
            }
        }
        while self.length > self.max_length {
            let Some(due) = self.first() else { break };
            self.forget(due, tails);
        }
    }

    /// The first sequence to go if there are too many: the oldest of all, or that of the worker
    /// with the most blocks if each worker has its own order.
    fn first(&self) -> Option<Due> {
        match self.predicting {
            PredictionPolicy::Ttl => self.queue.first_key_value().map(|(due, _)| *due),
            PredictionPolicy::Lru { .. } => {
                let most = |(slot, chains): &(&u32, &Chains<Due>)| (chains.blocks(), **slot);
                self.by_slot.iter().max_by_key(most).and_then(|(slot, _)| self.first_of(*slot))
            }
        }
    }

    fn first_of(&self, slot: u32) -> Option<Due> {
        let first = Due { slot, until: Time::default(), number: 0 };
        self.queue.range(first..).next().map(|(due, _)| *due)
    }

    fn forget(&mut self, due: Due, tails: &impl Tails) {
        let Some((slot, chain)) = self.queue.remove(&due) else { return };
        self.length -= chain.len();
        let Some(chains) = self.by_slot.get_mut(&slot) else { return };
        let shared = chains.remove(&chain).map_or(0, |(shared, _)| shared);
        tails.write(slot, &chain[shared..], Op::Unpredict);
        if chains.is_empty() {
            self.by_slot.remove(&slot);
        }
    }
}
