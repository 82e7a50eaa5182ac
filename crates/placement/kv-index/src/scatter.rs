//! Hands changes to the lanes they belong to, each lane locked once.

use crate::elements::Code;
use crate::lane::{AHEAD, BlockChange, Lane, Shared};
use crate::table;
use parking_lot::Mutex;
use std::cell::RefCell;

/// Changes that are made at once: as many as have their cells in the nearest cache together.
const PART: usize = 256;

thread_local! {
    /// The changes of each lane. Reused, so that an event costs no allocation.
    static SORTED: RefCell<Vec<Vec<BlockChange>>> = RefCell::default();
}

/// Makes changes to blocks, all by the worker in `slot`: each operation to all blocks of its run.
/// Changes to one block keep their order.
pub(crate) fn write<R: IntoIterator<Item = u64>>(
    shared: &Shared,
    lanes: &[Mutex<Lane>],
    slot: u32,
    runs: impl Iterator<Item = (Code, R)>,
) {
    SORTED.with_borrow_mut(|sorted| {
        if sorted.len() < lanes.len() {
            sorted.resize_with(lanes.len(), Vec::new);
        }
        let sorted = &mut sorted[..lanes.len()];
        let (mut count, mut view) = (0, shared.published.view());
        for (op, hashes) in runs {
            for hash in hashes {
                let (shard, place) = shared.layout.place(hash);
                let changes = &mut sorted[shared.layout.lane_of(shard)];
                // The first cells of all lanes are fetched together, while others are sorted; the
                // lanes fetch the rest.
                if changes.len() < AHEAD {
                    table::fetch(view.table(shard), place);
                }
                changes.push(BlockChange { hash, op });
                count += 1;
                if count == PART {
                    count = 0;
                    flush(shared, lanes, slot, sorted);
                    view = shared.published.view();
                }
            }
        }
        drop(view);
        flush(shared, lanes, slot, sorted);
    });
}

fn flush(shared: &Shared, lanes: &[Mutex<Lane>], slot: u32, sorted: &mut [Vec<BlockChange>]) {
    for (lane, changes) in lanes.iter().zip(sorted).filter(|(_, changes)| !changes.is_empty()) {
        lane.lock().write(shared, slot, changes);
        changes.clear();
    }
}
