//! A simulated worker: its engine, its life, and what of it is known outside.

use crate::engine::{Engine, TierTotals};
use crate::policy::Member;
use crate::time::Ps;
use stator_protos::kv_event::KvEvent;

/// Place of a worker in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenure {
    /// The fleet wants it: it is up, starts, or comes back after a death.
    Kept,
    /// The worker takes no new requests and leaves when it has none left.
    Draining,
    /// The worker has left; another may have its number.
    Retired,
}

/// One worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) engine: Engine,
    pub(super) member: Member,
    pub(super) tenure: Tenure,
    /// Time when it was ordered.
    pub(super) ordered: Ps,
    /// Start of its present life.
    pub(super) started: Ps,
    pub(super) alive: bool,
    /// Whether edges believe it to be up.
    pub(super) listed: bool,
    pub(super) generation: u64,
    /// Counts up with every run that is planned anew.
    pub(super) epoch: u32,
    /// End of the run that the agenda knows.
    pub(super) planned: Option<Ps>,
    /// Time when the agenda wakes it for KV that arrives.
    pub(super) wakes: Ps,
    /// Requests that were sent to it and are not over, with parked ones.
    pub(super) requests: Vec<u32>,
    pub(super) feed: Feed,
    /// Time when it has sent all KV that other workers wait for.
    pub(super) link_free: Ps,
    /// Factor by which it is slower than others.
    pub(super) slow: f64,
    /// Busy time and preemptions of earlier lives.
    pub(super) busy: Ps,
    pub(super) preemptions: u64,
    /// Reads and writes of the worker's tiers in earlier lives.
    pub(super) tiers: TierTotals,
}

/// The worker's KV events on their way to the one who follows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feed {
    /// Batches published in this life.
    pub(super) published: u64,
    /// The number of the batch that the subscriber expects next.
    pub(super) expected: u64,
    /// False from a gap to the next snapshot.
    pub(super) synced: bool,
}

impl Default for Feed {
    fn default() -> Self {
        Self { published: 0, expected: 0, synced: true }
    }
}

/// KV events that are published together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) worker: u32,
    pub(super) generation: u64,
    pub(super) number: u64,
    pub(super) events: Vec<KvEvent>,
}

impl Worker {
    /// A worker that is not up yet.
    pub(super) fn new(engine: Engine, member: Member, slow: f64) -> Self {
        Self {
            engine,
            member,
            tenure: Tenure::Kept,
            ordered: 0,
            started: 0,
            alive: false,
            listed: false,
            generation: 0,
            epoch: 0,
            planned: None,
            wakes: 0,
            requests: Vec::new(),
            feed: Feed::default(),
            link_free: 0,
            slow,
            busy: 0,
            preemptions: 0,
            tiers: TierTotals::default(),
        }
    }

    /// A life begins, with nothing of the one before.
    pub(super) fn start(&mut self, now: Ps) {
        self.alive = true;
        self.started = now;
        self.generation += 1;
        self.feed = Feed::default();
    }

    /// The present engine is lost with all it holds; `engine` is that of the next life.
    pub(super) fn die(&mut self, engine: Engine) {
        self.busy += self.engine.busy();
        self.preemptions += self.engine.preemptions();
        self.tiers += self.engine.tier_totals();
        self.engine = engine;
        self.alive = false;
        self.epoch += 1;
        self.planned = None;
        (self.wakes, self.link_free) = (0, 0);
    }

    /// Reads and writes of the worker's tiers, over all lives.
    pub(super) fn tiers(&self) -> TierTotals {
        let mut all = self.tiers;
        all += self.engine.tier_totals();
        all
    }

    /// Time spent on steps, over all lives.
    pub(super) fn busy(&self) -> Ps {
        self.busy + self.engine.busy()
    }
}
