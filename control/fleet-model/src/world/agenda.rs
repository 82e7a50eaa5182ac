//! Agenda of events to come, in order of time.

use crate::policy::WorkerNumber;
use crate::time::Ps;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A request comes, for the first time or again.
    Arrive { request: u32 },
    /// A worker's steps are over, if nothing changed since they were planned.
    RunEnds { worker: WorkerNumber, epoch: u32 },
    /// KV that a worker waited for is there.
    Ready { worker: WorkerNumber },
    /// Workers of a group report their load,
    Report { group: u32 },
    /// and the report arrives.
    Reported { reports: u32 },
    /// An edge tells the others what it has in flight,
    Tell { edge: u8 },
    /// and the others hear it.
    Told,
    /// KV events arrive.
    Published { batch: u32 },
    /// A subscriber asks for all of a worker's KV after a gap.
    Resync { worker: WorkerNumber, generation: u64 },
    /// Some worker dies,
    Death,
    /// is known to be dead,
    Detected { worker: WorkerNumber, generation: u64 },
    /// and comes back; or one that was ordered is up.
    Start { worker: WorkerNumber, generation: u64 },
    /// A worker that takes no more requests has none left.
    Retire { worker: WorkerNumber, generation: u64 },
    /// Requests for which there was no worker have waited too long.
    Deadline,
}

/// Events in the order of their moments; of those at one moment, in the order of their making.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(Ps, u64, Event)>>,
    made: u64,
}

impl Agenda {
    pub(super) fn at(&mut self, when: Ps, event: Event) {
        self.made += 1;
        self.heap.push(Reverse((when, self.made, event)));
    }

    pub(super) fn next(&mut self) -> Option<(Ps, Event)> {
        self.heap.pop().map(|Reverse((when, _, event))| (when, event))
    }

    /// Moment of the next event.
    pub(super) fn next_at(&self) -> Option<Ps> {
        self.heap.peek().map(|Reverse((when, _, _))| *when)
    }

    /// Events made since the start.
    pub(super) fn made(&self) -> u64 {
        self.made
    }
}
