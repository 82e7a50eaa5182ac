//! Workers that are added to a fleet that runs, and workers that leave it.

use super::World;
use super::agenda::Event;
use super::worker::{Tenure, Worker};
use crate::policy::{Member, WorkerNews, WorkerNumber};
use crate::time::Ps;
use stator_placement::Role;

impl World<'_> {
    /// Sets the number of workers of a role, not counting those that drain. New workers take
    /// requests after `startup`. A worker that is not needed any more takes no new requests and
    /// leaves when its last one has ended: workers that are not up go first, then those with the
    /// fewest requests.
    ///
    /// # Panics
    ///
    /// The fleet began without a worker of this role: its policies know none.
    pub fn resize(&mut self, role: Role, workers: u32, startup: Ps) {
        assert!(self.settings.sides.of(role) > 0, "the fleet began without {role:?} workers");
        let mut kept: Vec<WorkerNumber> = self.kept(role).collect();
        for _ in kept.len()..workers as usize {
            self.add(role, startup);
        }
        kept.sort_by_key(|worker| {
            let at = &self.workers[*worker as usize];
            (at.alive, at.requests.len(), std::cmp::Reverse(*worker))
        });
        let surplus = kept.len().saturating_sub(workers as usize);
        kept[..surplus].iter().for_each(|worker| self.drain(*worker));
        // Requests that wait may have lost their only worker, or another place in the order.
        self.offer();
    }

    /// Workers of a role that the fleet wants.
    fn kept(&self, role: Role) -> impl Iterator<Item = WorkerNumber> {
        let kept = move |at: &Worker| at.member.role == role && at.tenure == Tenure::Kept;
        (0..).zip(&self.workers).filter(move |(_, at)| kept(at)).map(|(number, _)| number)
    }

    /// Orders a worker, with the number of one that has gone if there is any.
    fn add(&mut self, role: Role, startup: Ps) {
        let gone = |at: &Worker| at.member.role == role && at.tenure == Tenure::Retired;
        let worker = match self.workers.iter().position(gone) {
            Some(place) => place as WorkerNumber,
            None => self.build(role),
        };
        let at = &mut self.workers[worker as usize];
        (at.tenure, at.ordered) = (Tenure::Kept, self.now);
        let generation = at.generation;
        self.agenda.at(self.now + startup, Event::Start { worker, generation });
    }

    /// Builds a worker that is not up yet, and returns its number.
    pub(super) fn build(&mut self, role: Role) -> WorkerNumber {
        let settings = self.settings;
        let worker = self.workers.len() as WorkerNumber;
        let alike = self.workers.iter().filter(|at| at.member.role == role).count() as u32;
        let limits = settings.engine_of(role).limits;
        let member = Member {
            role,
            host: worker / settings.transfer.host_workers,
            total_blocks: limits.total_blocks,
            step_tokens: limits.step_tokens,
            adapters: settings.adapters_of(role, alike),
            lends: limits.tiers.peers.is_some(),
        };
        let straggles = self.stragglers.unit() < settings.faults.stragglers;
        let slow = if straggles { settings.faults.straggler_slowdown } else { 1.0 };
        self.workers.push(Worker::new(self.engine(role, slow), member, slow));
        self.edges.iter_mut().for_each(|edge| edge.grow(worker as usize + 1));
        worker
    }

    /// A worker is up, for the first time or again, unless it was given up meanwhile.
    pub(super) fn start(&mut self, worker: WorkerNumber, generation: u64) {
        let at = &mut self.workers[worker as usize];
        if at.generation != generation || at.alive {
            return;
        }
        match at.tenure {
            Tenure::Kept => {
                at.start(self.now);
                self.announce(worker);
                self.offer();
            }
            // It died while it drained.
            Tenure::Draining => self.retire(worker, generation),
            Tenure::Retired => {}
        }
    }

    fn drain(&mut self, worker: WorkerNumber) {
        let at = &mut self.workers[worker as usize];
        at.tenure = Tenure::Draining;
        let (generation, member) = (at.generation, at.member.clone());
        if at.listed {
            self.hear(worker, WorkerNews::Draining { generation, member: &member });
        }
        self.retire_idle(worker);
    }

    /// Lets a worker that drains go once it has no request left: in an event of its own, because
    /// its engine may be in use.
    pub(super) fn retire_idle(&mut self, worker: WorkerNumber) {
        let at = &self.workers[worker as usize];
        if at.tenure == Tenure::Draining && at.requests.is_empty() {
            self.agenda.at(self.now, Event::Retire { worker, generation: at.generation });
        }
    }

    /// A worker leaves the fleet.
    pub(super) fn retire(&mut self, worker: WorkerNumber, generation: u64) {
        let at = &self.workers[worker as usize];
        let idle = at.requests.is_empty() && at.tenure == Tenure::Draining;
        if at.generation != generation || !idle {
            return;
        }
        let fresh = self.engine(at.member.role, at.slow);
        let at = &mut self.workers[worker as usize];
        at.die(fresh);
        at.tenure = Tenure::Retired;
        // What is still on its way to this life or from it counts no more.
        at.generation += 1;
        self.observations.worker_time += u128::from(self.now - at.ordered);
        if std::mem::take(&mut at.listed) {
            self.hear(worker, WorkerNews::Down);
        }
    }
}
