//! Waiting for a worker, in the real queue.

use super::World;
use super::agenda::Event;
use super::flight::Ending;
use crate::time::duration;
use crate::workload::Class;
use stator_queue::{Entry, FlowId, Head, Verdict};

impl World<'_> {
    /// A request waits until a worker takes it, within bounds.
    pub(super) fn hold(&mut self, request: u32) {
        let asked = &self.workload.requests[request as usize];
        let deadline = self.now + self.settings.queue_timeout;
        let entry = Entry {
            priority: if asked.class == Class::Background { -1 } else { 0 },
            flow: FlowId(asked.tenant.into()),
            tokens: self.tokens(request),
            bytes: 0,
            deadline: Some(duration(deadline)),
            objective: Some(duration(self.settings.slo.ttft)),
            jump: 0,
            payload: request,
        };
        let Some(queue) = &mut self.queue else { return };
        let mut displaced = Vec::new();
        match queue.push(entry, duration(self.now), &mut displaced) {
            // Its clock counts whole nanoseconds.
            Ok(_) => self.agenda.at(deadline + 1_000, Event::Deadline),
            Err(_) => self.end(request, Ending::Failed),
        }
        for gone in displaced {
            self.end(gone.payload, Ending::Failed);
        }
    }

    /// Offers the policy what waits, in the queue's order.
    pub(super) fn offer(&mut self) {
        if self.waiting() == 0 {
            return;
        }
        let Some(mut queue) = self.queue.take() else { return };
        let now = duration(self.now);
        let mut verdict = |_: &Head, request: &mut u32| match self.try_place(*request) {
            Ok(()) => Verdict::Go,
            Err(_) => Verdict::Stop,
        };
        queue.pop(now, &mut verdict, &mut Vec::new());
        self.queue = Some(queue);
    }

    /// Ends what waited too long.
    pub(super) fn expire(&mut self) {
        let mut gone = Vec::new();
        if let Some(queue) = &mut self.queue {
            queue.expire(duration(self.now), &mut gone);
        }
        for evicted in gone {
            self.end(evicted.payload, Ending::Failed);
        }
    }
}
