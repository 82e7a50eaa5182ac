//! Hands changes to the lanes they belong to, each lane locked once.

use crate::lane::{Change, Lane, Shared};
use parking_lot::Mutex;
use std::cell::RefCell;

/// Changes that are sorted by lane at once.
const PART: usize = 4096;

#[derive(Default)]
struct Scratch {
    changes: Vec<Change>,
    sorted: Vec<Change>,
    /// Where each lane's changes begin, then end, in `sorted`.
    ends: Vec<usize>,
}

thread_local! {
    /// Reused, so that an event costs no allocation.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Makes changes to blocks, all by the worker in `slot`. Those of one block keep their order.
pub(crate) fn write(
    shared: &Shared,
    lanes: &[Mutex<Lane>],
    slot: u32,
    changes: impl Iterator<Item = Change>,
) {
    let mut changes = changes;
    SCRATCH.with_borrow_mut(|scratch| {
        loop {
            scratch.changes.clear();
            scratch.changes.extend(changes.by_ref().take(PART));
            if scratch.changes.is_empty() {
                return;
            }
            if let [lane] = lanes {
                lane.lock().write(shared, slot, &scratch.changes);
                continue;
            }
            scratch.sort(shared, lanes.len());
            let mut start = 0;
            for (lane, &end) in lanes.iter().zip(&scratch.ends) {
                if start < end {
                    lane.lock().write(shared, slot, &scratch.sorted[start..end]);
                }
                start = end;
            }
        }
    });
}

impl Scratch {
    /// Sorts by lane, stably: counts, then places.
    fn sort(&mut self, shared: &Shared, lanes: usize) {
        let Self { changes, sorted, ends } = self;
        ends.clear();
        ends.resize(lanes, 0);
        for change in &*changes {
            ends[shared.layout.lane(change.hash)] += 1;
        }
        let mut sum = 0;
        for end in &mut *ends {
            sum += std::mem::replace(end, sum);
        }
        sorted.resize(changes.len(), changes[0]);
        for change in &*changes {
            let end = &mut ends[shared.layout.lane(change.hash)];
            sorted[*end] = *change;
            *end += 1;
        }
    }
}
