//! Rules that hold whatever the policy does, checked while a simulation runs.

use super::flight::Leg;
use super::{Violation, World};
use crate::policy::WorkerNumber;

impl World<'_> {
    /// What a worker's engine and the policy believe agrees with what was sent.
    pub(super) fn check_worker(&self, worker: WorkerNumber) -> Result<(), Violation> {
        let at = &self.workers[worker as usize];
        let fail = |rule: String| Err(self.violation(format!("worker {worker}: {rule}")));
        let here = |leg: &&Leg| leg.worker == worker && leg.generation == at.generation;
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
            let here = |leg: &&Leg| leg.worker == number && !leg.released;
            let legs = |request: &u32| {
                let flight = &self.flights[*request as usize];
                flight.prefill.iter().chain(&flight.main).filter(here).count()
            };
            sent += worker.requests.iter().map(legs).sum::<usize>();
        }
        let booked = self.policy.in_flight();
        if !booked.contains(&sent) {
            let rule = format!("{booked:?} requests booked, {sent} in flight");
            return Err(self.violation(rule));
        }
        let (waiting, most) = (self.waiting(), self.settings.queue.total.requests);
        if waiting > most {
            return Err(self.violation(format!("{waiting} requests wait, limit {most}")));
        }
        Ok(())
    }

    /// Every request ended once, and nothing of them is left.
    pub(super) fn check_end(&self) -> Result<(), Violation> {
        self.check_bookings()?;
        if let Some(lost) = self.flights.iter().position(|flight| flight.ending.is_none()) {
            return Err(self.violation(format!("request {lost} has not ended")));
        }
        if self.waiting() > 0 {
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
