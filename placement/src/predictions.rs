//! Blocks that a worker should hold by now because it was sent a request for them.

use crate::Time;
use crate::deadlines::Deadlines;
use crate::table::BlockTable;
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;

type Key = (SequenceHash, u32);

/// Predicted blocks, each forgotten when its time is over. At most `max_blocks`; beyond them the
/// ones predicted first go first.
pub(crate) struct Predictions {
    table: BlockTable,
    until: FxHashMap<Key, Time>,
    deadlines: Deadlines<Key>,
    max_blocks: usize,
}

impl Predictions {
    pub(crate) fn new(max_blocks: usize) -> Self {
        let (table, until, deadlines) = Default::default();
        Self { table, until, deadlines, max_blocks }
    }

    pub(crate) fn table(&self) -> &BlockTable {
        &self.table
    }

    pub(crate) fn len(&self) -> usize {
        self.until.len()
    }

    /// Predicts that the worker in `slot` holds `sequence`, at least until `until`.
    pub(crate) fn add(&mut self, slot: u32, sequence: &[SequenceHash], until: Time) {
        for &hash in sequence {
            let key = (hash, slot);
            match self.until.get_mut(&key) {
                Some(known) => *known = (*known).max(until),
                None => {
                    self.until.insert(key, until);
                    self.table.add(hash, slot, Medium::Device);
                    self.deadlines.push(until, key);
                }
            }
        }
        while self.until.len() > self.max_blocks {
            let Some(key) = self.deadlines.pop_earliest() else { break };
            self.forget(key);
        }
    }

    /// Forgets what ended at `now` or before.
    pub(crate) fn expire(&mut self, now: Time) {
        while let Some(key) = self.deadlines.pop_due(now) {
            match self.until.get(&key) {
                Some(&until) if until > now => self.deadlines.push(until, key),
                _ => self.forget(key),
            }
        }
    }

    /// At most `most` predictions from position `from` on, in no order that lasts; `None` at the
    /// end.
    pub(crate) fn part(&self, from: usize, most: usize) -> Option<impl Iterator<Item = Key>> {
        let keys = self.deadlines.part(from, most)?;
        Some(keys.filter(|key| self.until.contains_key(key)))
    }

    /// Forgets all about a worker.
    pub(crate) fn remove_worker(&mut self, slot: u32) {
        if self.until.is_empty() {
            return;
        }
        let keys: Vec<Key> = self.until.keys().copied().filter(|key| key.1 == slot).collect();
        keys.into_iter().for_each(|key| self.forget(key));
        let until = &self.until;
        self.deadlines.compact(until.len(), |key| until.contains_key(key));
    }

    fn forget(&mut self, key: Key) {
        if self.until.remove(&key).is_some() {
            self.table.remove(key.0, key.1, Medium::Device);
        }
    }
}
