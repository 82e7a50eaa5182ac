//! Waiting for a worker, in the real queue.

use super::World;
use super::agenda::Event;
use super::flight::RequestEnd;
use super::turns::TenantFlow;
use crate::time::duration;
use crate::workload::Class;
use stator_queue::{FlowId, QueueEntry, QueueHead, Verdict};

impl World<'_> {
    /// A request waits until a worker takes it, within bounds.
    pub(super) fn hold(&mut self, request: u32) {
        let asked = &self.workload.requests[request as usize];
        let deadline = self.now + self.settings.queue_timeout;
        let (flow, tokens) = (self.flow(request), self.tokens(request));
        let entry = QueueEntry {
            priority: flow.0,
            flow: FlowId(flow.1.into()),
            tokens,
            bytes: 0,
            deadline: Some(duration(deadline)),
            objective: Some(duration(self.settings.slo.ttft)),
            jump: 0,
            payload: request,
        };
        let edge = &mut self.edges[usize::from(self.flights[request as usize].edge)];
        let Some(queue) = &mut edge.queue else { return };
        let mut displaced = Vec::new();
        match queue.push(entry, duration(self.now), &mut displaced) {
            // Its clock counts whole nanoseconds.
            Ok(_) => {
                edge.turns.came(flow, tokens);
                edge.urgent += u32::from(asked.class == Class::Interactive);
                self.agenda.at(deadline + 1_000, Event::Deadline);
            }
            Err(_) => self.end(request, RequestEnd::Failed),
        }
        for gone in displaced {
            self.left_queue(gone.payload);
            self.end(gone.payload, RequestEnd::Failed);
        }
    }

    /// A request waits no more.
    fn left_queue(&mut self, request: u32) {
        let edge = usize::from(self.flights[request as usize].edge);
        let urgent = self.workload.requests[request as usize].class == Class::Interactive;
        self.edges[edge].urgent -= u32::from(urgent);
        let flow = self.flow(request);
        self.edges[edge].turns.left(flow);
    }

    /// The flow of a request: its band and tenant.
    pub(super) fn flow(&self, request: u32) -> TenantFlow {
        let asked = &self.workload.requests[request as usize];
        (if asked.class == Class::Background { -1 } else { 0 }, asked.tenant)
    }

    /// Offers the policies what waits, in the queues' order.
    pub(super) fn offer(&mut self) {
        for edge in 0..self.edges.len() {
            if self.edges[edge].waiting() > 0 {
                self.offer_at(edge);
            }
        }
    }

    fn offer_at(&mut self, edge: usize) {
        let Some(mut queue) = self.edges[edge].queue.take() else { return };
        let now = duration(self.now);
        let mut verdict = |head: &QueueHead, request: &mut u32| match self.try_place(*request) {
            Ok(()) => {
                self.check_turn(*request, head.tokens);
                self.left_queue(*request);
                Verdict::Go
            }
            Err(_) => Verdict::Stop,
        };
        queue.pop(now, &mut verdict, &mut Vec::new());
        self.edges[edge].queue = Some(queue);
    }

    /// Charges `tokens` more of a request's answer to its flow.
    pub(super) fn charge(&mut self, request: u32, tokens: u32) {
        let (flow, now) = (self.flow(request), duration(self.now));
        let flight = &mut self.flights[request as usize];
        flight.charged += tokens;
        let edge = &mut self.edges[usize::from(flight.edge)];
        let Some(queue) = &mut edge.queue else { return };
        queue.charge(flow.0, FlowId(flow.1.into()), tokens.into(), now);
        edge.turns.charged(flow, tokens);
    }

    /// Ends what waited too long.
    pub(super) fn expire(&mut self) {
        let mut gone = Vec::new();
        for edge in &mut self.edges {
            if let Some(queue) = &mut edge.queue {
                queue.expire(duration(self.now), &mut gone);
            }
        }
        for evicted in gone {
            self.left_queue(evicted.payload);
            self.end(evicted.payload, RequestEnd::Failed);
        }
    }
}
