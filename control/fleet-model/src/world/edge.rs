//! An edge: its policy, its queue, and the load that edges tell each other.

use super::turns::TurnCheck;
use crate::policy::{Policy, WorkerNumber};
use crate::time::Ps;
use stator_placement::PeerLoad;
use stator_queue::{Fairness, Queues};

/// A proxy or a picker: it sees its share of the requests, and everything that workers say.
pub(super) struct Edge {
    pub(super) policy: Box<dyn Policy>,
    /// Requests without a worker. `None` while they are offered to the policy.
    pub(super) queue: Option<Queues<u32>>,
    /// Queued requests of the interactive class.
    pub(super) urgent: u32,
    /// Check that waiting flows are served alike.
    pub(super) turns: TurnCheck,
    /// Whether it is about to tell the others, and the time when it last did.
    pub(super) tells: bool,
    pub(super) told_at: Option<Ps>,
    /// By worker, the load that it told the others last, and the load that they know of.
    told: Vec<PeerLoad>,
    pub(super) known: Vec<PeerLoad>,
}

/// Changes of an edge's load in flight, by worker.
#[derive(Debug)]
pub(super) struct Gauges {
    pub(super) edge: usize,
    pub(super) changed: Vec<(WorkerNumber, PeerLoad)>,
}

impl Edge {
    /// An edge that knows no worker yet.
    pub(super) fn new(policy: Box<dyn Policy>, queue: Queues<u32>, fairness: Fairness) -> Self {
        Self {
            policy,
            queue: Some(queue),
            urgent: 0,
            turns: TurnCheck::new(fairness),
            tells: false,
            told_at: None,
            told: Vec::new(),
            known: Vec::new(),
        }
    }

    /// Makes room for the loads of so many workers.
    pub(super) fn grow(&mut self, workers: usize) {
        self.told.resize(workers, PeerLoad::default());
        self.known.resize(workers, PeerLoad::default());
    }

    /// Its requests without a worker.
    pub(super) fn waiting(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.waiting().requests as u32)
    }

    /// Load changes since the edge last told the others.
    pub(super) fn changes(&mut self, now: Ps) -> Vec<(WorkerNumber, PeerLoad)> {
        let changed = (0..).zip(&mut self.told).filter_map(|(worker, told)| {
            let load = self.policy.booked(worker, now);
            (std::mem::replace(told, load) != load).then_some((worker, load))
        });
        changed.collect()
    }
}
