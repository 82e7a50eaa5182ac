//! Edges at work: news of workers and requests, and messages between edges.

use super::World;
use super::agenda::Event;
use super::edge::{Edge, Gauges};
use crate::policy::{Policy, PolicyTicket, RequestProgress, WorkerNews, WorkerNumber};
use crate::settings::Exchange;
use stator_placement::PeerLoad;

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
