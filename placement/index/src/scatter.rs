//! Hands changes to the lanes they belong to, each lane locked once.

use crate::lane::{Change, Lane, Shared};
use parking_lot::Mutex;
use std::cell::RefCell;

/// Changes that are sorted by lane at once.
const PART: usize = 4096;

thread_local! {
    /// The changes of each lane. Reused, so that an event costs no allocation.
    static SORTED: RefCell<Vec<Vec<Change>>> = RefCell::default();
}

/// Makes changes to blocks, all by the worker in `slot`. Those of one block keep their order.
pub(crate) fn write(
    shared: &Shared,
    lanes: &[Mutex<Lane>],
    slot: u32,
    changes: impl Iterator<Item = Change>,
) {
    SORTED.with_borrow_mut(|sorted| {
        if sorted.len() < lanes.len() {
            sorted.resize_with(lanes.len(), Vec::new);
        }
        let sorted = &mut sorted[..lanes.len()];
        let mut count = 0;
        // Not a loop: the iterator is made of nested ones, which are faster so.
        changes.for_each(|change| {
            sorted[shared.layout.lane(change.hash)].push(change);
            count += 1;
            if count == PART {
                count = 0;
                flush(shared, lanes, slot, sorted);
            }
        });
        flush(shared, lanes, slot, sorted);
    });
}

fn flush(shared: &Shared, lanes: &[Mutex<Lane>], slot: u32, sorted: &mut [Vec<Change>]) {
    for (lane, changes) in lanes.iter().zip(sorted).filter(|(_, changes)| !changes.is_empty()) {
        lane.lock().write(shared, slot, changes);
        changes.clear();
    }
}
