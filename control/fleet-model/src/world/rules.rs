//! Rules that hold whatever the policy does, checked while a simulation runs.

use super::edge::Edge;
use super::flight::RequestLeg;
use super::worker::{Tenure, Worker};
use super::{Violation, World};
use crate::policy::{Choice, WorkerNumber};
use crate::workload::Class;
use stator_placement::{Affinity, Role};

impl World<'_> {
    /// Checks that a worker's engine holds the requests sent to it, and counts each block once.
    pub(super) fn check_worker(&self, worker: WorkerNumber) -> Result<(), Violation> {
        let at = &self.workers[worker as usize];
        let fail = |rule: String| Err(self.violation(format!("worker {worker}: {rule}")));
        let here = |leg: &&RequestLeg| leg.worker == worker && leg.generation == at.generation;
        let running = |request: &u32| {
            let flight = &self.flights[*request as usize];
            let legs = flight.prefill.iter().chain(&flight.main).filter(here);
            legs.filter(|leg| !leg.released && leg.sequence.is_some()).count()
        };
        let sent: usize = at.requests.iter().map(running).sum();
        if at.alive && sent != at.engine.len() {
            return fail(format!("{} requests in the engine, {sent} sent", at.engine.len()));
        }
        at.engine.pool().check().or_else(fail)
    }

    /// The policy counts the requests that it placed and no others, and the queue is in bounds.
    pub(super) fn check_bookings(&self) -> Result<(), Violation> {
        let mut sent = 0;
        for (number, worker) in (0..).zip(&self.workers) {
            let here = |leg: &&RequestLeg| leg.worker == number && !leg.released;
            let legs = |request: &u32| {
                let flight = &self.flights[*request as usize];
                flight.prefill.iter().chain(&flight.main).filter(here).count()
            };
            sent += worker.requests.iter().map(legs).sum::<usize>();
        }
        let booked = || self.edges.iter().map(|edge| edge.policy.in_flight());
        let least: usize = booked().map(|range| *range.start()).sum();
        let most: usize = booked().map(|range| *range.end()).sum();
        if !(least..=most).contains(&sent) {
            let rule = format!("{least} to {most} requests booked, {sent} in flight");
            return Err(self.violation(rule));
        }
        let most = self.settings.queue.total.requests;
        let waiting = self.edges.iter().map(Edge::waiting).max().unwrap_or(0);
        if waiting > most {
            return Err(self.violation(format!("{waiting} requests wait, limit {most}")));
        }
        Ok(())
    }

    /// Workers do what they are there for, and what they have loaded; a session that is bound to
    /// one stays there.
    pub(super) fn check_choice(&mut self, request: u32, choice: &Choice) {
        let asked = &self.workload.requests[request as usize];
        let (session, adapter) = (asked.session, asked.adapter);
        let role_of = |worker: WorkerNumber| self.workers[worker as usize].member.role;
        let (role, prefill) = (role_of(choice.worker), choice.prefill);
        let prefill_role = prefill.map(|(worker, _)| role_of(worker));
        if !matches!(
            (role, prefill_role),
            (Role::Aggregated | Role::Decode, None) | (Role::Decode, Some(Role::Prefill))
        ) {
            let roles = format!("{role:?} and {prefill_role:?}");
            self.broke(format!("request {request} is given to workers for {roles}"));
        }
        for worker in std::iter::once(choice.worker).chain(prefill.map(|leg| leg.0)) {
            let at = &self.workers[worker as usize];
            let lacks = adapter.is_some_and(|own| !at.member.adapters.contains(&own));
            let leaves = at.tenure != Tenure::Kept;
            if lacks {
                self.broke(format!("worker {worker} lacks the adapter of request {request}"));
            }
            if leaves {
                self.broke(format!("worker {worker} leaves and is given request {request}"));
            }
        }
        // A session may move only if its worker cannot take it.
        let last = self.sessions[session as usize].replace(choice.worker);
        let takes = |at: &Worker| at.listed && at.tenure == Tenure::Kept;
        let bound = last.filter(|last| takes(&self.workers[*last as usize]) && self.binds());
        if let Some(last) = bound.filter(|last| *last != choice.worker) {
            let now = choice.worker;
            self.broke(format!("request {request} is at {now}, its session is bound to {last}"));
        }
    }

    /// Whether sessions stay where they are: each edge binds those that it sees.
    fn binds(&self) -> bool {
        let hard = self.settings.sessions.is_some_and(|own| own.affinity() == Affinity::Hard);
        hard && self.kind.is_placed() && self.edges.len() == 1
    }

    /// Nothing in the background goes before what somebody waits for, and nobody gets more than
    /// is fair.
    pub(super) fn check_turn(&mut self, request: u32, tokens: u32) {
        let flow = self.flow(request);
        let answer = self.workload.requests[request as usize].output_tokens;
        let edge = &mut self.edges[usize::from(self.flights[request as usize].edge)];
        let urgent = edge.urgent;
        if let Some(rule) = edge.turns.served(flow, tokens, answer) {
            self.broke(rule);
        }
        let class = self.workload.requests[request as usize].class;
        if class == Class::Background && urgent > 0 {
            self.broke(format!("background request {request} goes before {urgent} others"));
        }
    }

    fn broke(&mut self, rule: String) {
        let violation = self.violation(rule);
        self.broken.get_or_insert(violation);
    }

    /// Every request ended once, and nothing of them is left.
    pub(super) fn check_end(&self) -> Result<(), Violation> {
        self.check_bookings()?;
        if let Some(lost) = self.flights.iter().position(|flight| flight.ending.is_none()) {
            return Err(self.violation(format!("request {lost} has not ended")));
        }
        if self.waiting() > 0 || self.edges.iter().any(|edge| edge.urgent > 0) {
            return Err(self.violation(format!("{} requests still wait", self.waiting())));
        }
        for (number, worker) in (0..).zip(&self.workers) {
            self.check_worker(number)?;
            if worker.alive && worker.engine.pool().used() > 0 {
                let used = worker.engine.pool().used();
                return Err(self.violation(format!("worker {number} still uses {used} blocks")));
            }
        }
        Ok(())
    }
}
