//! Keys in the order in which their time runs out.

use crate::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of deadlines. A key whose deadline was put off, or that is gone, stays until its old
/// deadline comes; whoever takes it out looks what is true by then and puts it back if need be.
pub(crate) struct Deadlines<K> {
    heap: BinaryHeap<Reverse<(Time, K)>>,
}

impl<K: Ord> Default for Deadlines<K> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new() }
    }
}

impl<K: Ord + Copy> Deadlines<K> {
    pub(crate) fn push(&mut self, deadline: Time, key: K) {
        self.heap.push(Reverse((deadline, key)));
    }

    /// Takes out a key whose deadline is `now` or before, the earliest first.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<K> {
        let Reverse((deadline, _)) = self.heap.peek()?;
        if *deadline > now { None } else { self.heap.pop().map(|Reverse((_, key))| key) }
    }

    /// Forgets keys that are gone once they are the larger part of the queue, so that its size
    /// stays within a factor of `live`, the number of keys that are not.
    pub(crate) fn compact(&mut self, live: usize, is_live: impl Fn(&K) -> bool) {
        if self.heap.len() > 2 * live + 1024 {
            self.heap.retain(|Reverse((_, key))| is_live(key));
        }
    }
}
