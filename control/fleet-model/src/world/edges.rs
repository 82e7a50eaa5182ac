//! Edges, which place requests and tell each other their load.

use super::World;
use super::agenda::Event;
use super::turns::TurnCheck;
use crate::policy::{Policy, PolicyTicket, RequestProgress, WorkerNews, WorkerNumber};
use crate::settings::Exchange;
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
    tells: bool,
    told_at: Option<Ps>,
    /// By worker, the load that it told the others last, and the load that they know of.
    told: Vec<PeerLoad>,
    known: Vec<PeerLoad>,
}

/// Changes of an edge's load in flight, by worker.
#[derive(Debug)]
pub(super) struct Gauges {
    edge: usize,
    changed: Vec<(WorkerNumber, PeerLoad)>,
}

impl Edge {
    pub(super) fn new(
        policy: Box<dyn Policy>,
        queue: Queues<u32>,
        fairness: Fairness,
        workers: u32,
    ) -> Self {
        let turns = TurnCheck::new(fairness);
        let nothing = vec![PeerLoad::default(); workers as usize];
        let (queue, told) = (Some(queue), nothing.clone());
        Self { policy, queue, urgent: 0, turns, tells: false, told_at: None, told, known: nothing }
    }

    /// Its requests without a worker.
    pub(super) fn waiting(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.waiting().requests as u32)
    }

    /// Load changes since the edge last told the others.
    fn changes(&mut self, now: Ps) -> Vec<(WorkerNumber, PeerLoad)> {
        let changed = (0..).zip(&mut self.told).filter_map(|(worker, told)| {
            let load = self.policy.booked(worker, now);
            (std::mem::replace(told, load) != load).then_some((worker, load))
        });
        changed.collect()
    }
}

impl World<'_> {
    /// The policy that placed a request, or will.
    pub(super) fn policy_of(&mut self, request: u32) -> &mut dyn Policy {
        let edge = self.flights[request as usize].edge;
        &mut *self.edges[usize::from(edge)].policy
    }

    /// Tells the policy that placed a request how it goes on.
    pub(super) fn progress(
        &mut self,
        request: u32,
        ticket: PolicyTicket,
        progress: RequestProgress,
    ) {
        let now = self.now;
        self.policy_of(request).progress(ticket, progress, now);
        self.stir(usize::from(self.flights[request as usize].edge));
    }

    /// Tells every policy.
    pub(super) fn hear(&mut self, worker: WorkerNumber, news: WorkerNews<'_>) {
        for edge in &mut self.edges {
            edge.policy.hear(worker, news, self.now);
        }
    }

    /// Requests without a worker, at all edges.
    pub(super) fn waiting(&self) -> u32 {
        self.edges.iter().map(Edge::waiting).sum()
    }

    /// Schedules a message to the other edges after a load change, at once unless the edge just
    /// sent one.
    pub(super) fn stir(&mut self, number: usize) {
        let Some(Exchange { interval, .. }) = self.settings.edges.exchange else { return };
        let edge = &mut self.edges[number];
        if !std::mem::replace(&mut edge.tells, true) {
            let next = edge.told_at.map_or(self.now, |at| self.now.max(at + interval));
            self.agenda.at(next, Event::Tell { edge: number as u8 });
        }
    }

    /// An edge tells the others what it has in flight.
    pub(super) fn tell(&mut self, number: u8) {
        let Some(Exchange { delay, .. }) = self.settings.edges.exchange else { return };
        let edge = &mut self.edges[usize::from(number)];
        (edge.tells, edge.told_at) = (false, Some(self.now));
        let changed = edge.changes(self.now);
        if !changed.is_empty() {
            self.gauges.push_back(Gauges { edge: number.into(), changed });
            self.agenda.at(self.now + delay, Event::Told);
        }
    }

    /// Delivers an edge's message to all others; all messages take equally long.
    pub(super) fn told(&mut self) {
        let Some(Gauges { edge, changed }) = self.gauges.pop_front() else { return };
        for (worker, load) in changed {
            self.edges[edge].known[worker as usize] = load;
            self.tell_others(worker);
        }
    }

    /// Tells each edge's policy the load of all other edges at a worker.
    pub(super) fn tell_others(&mut self, worker: WorkerNumber) {
        if self.settings.edges.exchange.is_none() {
            return;
        }
        let known: Vec<_> = self.edges.iter().map(|edge| edge.known[worker as usize]).collect();
        for (number, edge) in self.edges.iter_mut().enumerate() {
            let others = known.iter().enumerate().filter(|(other, _)| *other != number);
            let load = others.fold(PeerLoad::default(), |sum, (_, other)| sum.plus(*other));
            edge.policy.hear(worker, WorkerNews::Others { load }, self.now);
        }
    }
}
