//! Steps from one set of holders to another when a worker stores or drops a block. They are
//! remembered, because the next block of the same prompt nearly always takes the same step.

use crate::cell::SetRef;
use crate::elements::{self, Code};
use crate::sets::Sets;

/// Few where all is modelled, which makes a new memory for every interleaving.
const ENTRIES_BITS: u32 = if cfg!(stator_loom) { 2 } else { 12 };
const NO_KEY: u64 = u64::MAX;
/// In the place of a slot and an operation: taking all retired slots away.
const STRIP: u32 = u32::MAX - 1;

/// Step of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetStep {
    /// The set afterwards.
    pub(crate) set: SetRef,
    /// By how many the reported holders grew.
    pub(crate) held: i32,
}

/// A change of the share that the worker in a slot has.
#[derive(Clone, Copy)]
struct SlotChange {
    slot: u32,
    code: Code,
}

#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    step: SetStep,
}

/// One lane's memory of steps, and its scratch. Names of sets in it keep no set alive: it is
/// cleared when sets are collected.
pub(crate) struct Transitions {
    last: Entry,
    entries: Box<[Entry]>,
    scratch: Vec<u32>,
}

impl Transitions {
    pub(crate) fn new() -> Self {
        let none = Entry { key: NO_KEY, step: SetStep { set: SetRef::EMPTY, held: 0 } };
        let entries = vec![none; 1 << ENTRIES_BITS].into_boxed_slice();
        Self { last: none, entries, scratch: Vec::new() }
    }

    /// The set after `op` of the worker in `slot`; `None` if there is no room for it.
    #[inline]
    pub(crate) fn step(
        &mut self,
        sets: &Sets,
        set: SetRef,
        slot: u32,
        code: Code,
    ) -> Option<SetStep> {
        let key = u64::from(set.0) << 32 | u64::from(slot << Code::BITS | code.number());
        if self.last.key == key {
            return Some(self.last.step);
        }
        self.step_anew(key, sets, set, SlotChange { slot, code })
    }

    /// Takes a step other than the last one.
    #[inline(never)]
    fn step_anew(
        &mut self,
        key: u64,
        sets: &Sets,
        set: SetRef,
        change: SlotChange,
    ) -> Option<SetStep> {
        self.known(key).or_else(|| {
            let held =
                |content: &mut Vec<u32>| elements::change(content, change.slot, change.code.op());
            self.learn(key, sets, set, held)
        })
    }

    /// The set without the elements of slots that `is_retired` names, the same for every set from
    /// one [`Transitions::clear`] to the next.
    pub(crate) fn strip(
        &mut self,
        sets: &Sets,
        set: SetRef,
        is_retired: impl Fn(u32) -> bool,
    ) -> Option<SetStep> {
        let key = u64::from(set.0) << 32 | u64::from(STRIP);
        self.known(key).or_else(|| {
            let strip = |content: &mut Vec<u32>| {
                content.retain(|&element| !is_retired(elements::slot(element)));
                0
            };
            self.learn(key, sets, set, strip)
        })
    }

    /// The elements of a set that some cell of the lane names.
    pub(crate) fn elements(&mut self, sets: &Sets, set: SetRef) -> &[u32] {
        if !sets.copy(set, &mut self.scratch) {
            self.scratch.clear();
        }
        &self.scratch
    }

    /// Forgets all steps.
    pub(crate) fn clear(&mut self) {
        self.last.key = NO_KEY;
        self.entries.iter_mut().for_each(|entry| entry.key = NO_KEY);
    }

    #[inline]
    fn known(&mut self, key: u64) -> Option<SetStep> {
        if self.last.key == key {
            return Some(self.last.step);
        }
        let entry = self.entries[place(key)];
        if entry.key != key {
            return None;
        }
        self.last = entry;
        Some(entry.step)
    }

    #[cold]
    fn learn(
        &mut self,
        key: u64,
        sets: &Sets,
        set: SetRef,
        change: impl FnOnce(&mut Vec<u32>) -> i32,
    ) -> Option<SetStep> {
        if !sets.copy(set, &mut self.scratch) {
            self.scratch.clear();
        }
        let held = change(&mut self.scratch);
        let step = SetStep { set: sets.intern(&self.scratch)?, held };
        self.last = Entry { key, step };
        self.entries[place(key)] = self.last;
        Some(step)
    }
}

fn place(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ENTRIES_BITS)) as usize
}
