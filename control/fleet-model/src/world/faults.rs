//! Workers that die and come back, and disks that change their speed.

use super::World;
use super::agenda::Event;
use super::worker::Tenure;
use crate::policy::{WorkerNews, WorkerNumber};
use crate::time::{Ps, from_seconds};

impl World<'_> {
    /// Every worker's disk reads a block in so long from now on, as one that its provider throttles. Reads
    /// under way end as they would have. A worker that starts later has the disk of the settings.
    pub fn set_disk_read(&mut self, block: Ps) {
        self.workers.iter_mut().for_each(|worker| worker.engine.set_disk_read(block));
    }

    /// Decides when the next worker dies.
    pub(super) fn plan_death(&mut self) {
        let held = self.workers.iter().filter(|worker| worker.tenure != Tenure::Retired).count();
        // An empty fleet may grow again.
        let rate = self.settings.faults.deaths_per_hour * held.max(1) as f64;
        if rate > 0.0 {
            let wait = self.deaths.exponential(3_600.0 / rate);
            self.agenda.at(self.now + from_seconds(wait), Event::Death);
        }
    }

    /// Some living worker dies with all it holds; for a while nobody knows.
    pub(super) fn death(&mut self) {
        self.plan_death();
        let alive = |worker: &WorkerNumber| self.workers[*worker as usize].alive;
        let workers = self.workers.len() as WorkerNumber;
        let living: Vec<WorkerNumber> = (0..workers).filter(alive).collect();
        if living.is_empty() {
            return;
        }
        let worker = living[self.deaths.below(living.len() as u32) as usize];
        let at = &self.workers[worker as usize];
        let fresh = self.engine(at.member.role, at.slow);
        let at = &mut self.workers[worker as usize];
        at.engine.advance(self.now);
        for request in &at.requests {
            let flight = &mut self.flights[*request as usize];
            // Of the tokens of both legs the client has those of the second only.
            let main = flight.main.filter(|leg| leg.worker == worker);
            if let Some(sequence) = main.and_then(|leg| leg.sequence) {
                flight.generated += at.engine.generated(sequence);
            }
        }
        at.die(fresh);
        self.observations.deaths += 1;
        let faults = &self.settings.faults;
        let generation = at.generation;
        self.agenda.at(self.now + faults.detection, Event::Detected { worker, generation });
        self.agenda.at(self.now + faults.restart, Event::Start { worker, generation });
    }

    /// The fleet takes notice: what the worker had goes elsewhere.
    pub(super) fn detected(&mut self, worker: WorkerNumber, generation: u64) {
        // A worker that was drained may have gone meanwhile.
        if self.workers[worker as usize].generation != generation {
            return;
        }
        let requests = self.workers[worker as usize].requests.clone();
        // The policy forgets the worker first, so that none of them goes back to it.
        self.workers[worker as usize].listed = false;
        self.hear(worker, WorkerNews::Down);
        for request in requests {
            self.migrate(request);
        }
        self.offer();
    }
}
