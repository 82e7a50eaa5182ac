//! Reports and KV events of workers, and their arrival: late, or not at all.

use super::agenda::Event;
use super::worker::{Batch, Tenure};
use super::{Report, Violation, World};
use crate::policy::{RequestProgress, WorkerNews, WorkerNumber};

/// Workers that report at different moments of an interval.
const GROUPS: u32 = 16;

impl World<'_> {
    /// Publishes the KV events that a worker has for now.
    pub(super) fn publish(&mut self, worker: WorkerNumber) {
        let at = &mut self.workers[worker as usize];
        if at.engine.news().is_empty() {
            return;
        }
        let events = at.engine.news().take();
        if !self.kind.follows_events() {
            return;
        }
        let (generation, number) = (at.generation, at.feed.published);
        at.feed.published += 1;
        if self.loss.unit() < self.settings.faults.event_loss {
            self.observations.lost_batches += 1;
            return;
        }
        let batch = Some(Batch { worker, generation, number, events });
        let place = self.free_batches.pop().unwrap_or_else(|| {
            self.batches.push(None);
            self.batches.len() as u32 - 1
        });
        self.batches[place as usize] = batch;
        let arrives = self.now + self.settings.event_delay;
        self.agenda.at(arrives, Event::Published { batch: place });
    }

    /// KV events arrive.
    pub(super) fn published(&mut self, place: u32) {
        let Some(batch) = self.batches[place as usize].take() else { return };
        self.free_batches.push(place);
        let Batch { worker, generation, number, events } = batch;
        let at = &mut self.workers[worker as usize];
        if !at.alive || at.generation != generation || !at.feed.synced || number < at.feed.expected
        {
            return;
        }
        if number > at.feed.expected {
            return self.gap(worker);
        }
        at.feed.expected += 1;
        self.hear(worker, WorkerNews::Events { generation, events: &events });
    }

    /// Events are missing: the worker counts as holding nothing until all of it is asked for.
    fn gap(&mut self, worker: WorkerNumber) {
        let at = &mut self.workers[worker as usize];
        at.feed.synced = false;
        let generation = at.generation;
        self.hear(worker, WorkerNews::Unknown);
        let resync = self.now + self.settings.faults.resync;
        self.agenda.at(resync, Event::Resync { worker, generation });
    }

    /// A worker's whole KV takes the place of what was known.
    pub(super) fn resync(&mut self, worker: WorkerNumber, generation: u64) {
        let at = &mut self.workers[worker as usize];
        if !at.alive || at.generation != generation {
            return;
        }
        at.engine.advance(self.now);
        self.publish(worker);
        let at = &mut self.workers[worker as usize];
        at.feed.expected = at.feed.published;
        at.feed.synced = true;
        let blocks = at.engine.pool().snapshot();
        self.hear(worker, WorkerNews::Snapshot { generation, blocks: &blocks });
    }

    pub(super) fn groups(&self) -> u32 {
        self.settings.workers().min(GROUPS)
    }

    /// The workers of a group look at themselves.
    pub(super) fn report(&mut self, group: u32) -> Result<(), Violation> {
        let groups = self.groups();
        // A place whose reports have arrived is used again, so that memory stays bounded.
        let place = (0..).find(|place| self.reports.get(*place).is_none_or(Vec::is_empty));
        let place = place.unwrap_or_default();
        let mut reports = self.reports.get_mut(place).map(std::mem::take).unwrap_or_default();
        for worker in (group..self.workers.len() as WorkerNumber).step_by(groups as usize) {
            if !self.workers[worker as usize].alive {
                continue;
            }
            self.workers[worker as usize].engine.advance(self.now);
            self.publish(worker);
            self.tell_progress(worker);
            let at = &self.workers[worker as usize];
            if self.loss.unit() >= self.settings.faults.report_loss {
                let (generation, published) = (at.generation, at.feed.published);
                let load = at.engine.load();
                reports.push(Report { worker, generation, published, load });
            }
        }
        if self.reports.len() <= place {
            self.reports.push(Vec::new());
        }
        let empty = reports.is_empty();
        self.reports[place] = reports;
        if !empty {
            let arrives = self.now + self.settings.event_delay;
            self.agenda.at(arrives, Event::Reported { reports: place as u32 });
        }
        self.agenda.at(self.now + self.settings.report_interval, Event::Report { group });
        if group == 0 { self.look() } else { Ok(()) }
    }

    /// Once per interval: a sample for the plots, and the rules that can be checked at any time.
    fn look(&mut self) -> Result<(), Violation> {
        if !self.observations.wants_sample(self.now) {
            return Ok(());
        }
        let there = self.workers.iter().filter(|worker| worker.tenure != Tenure::Retired);
        let loads = there.map(|worker| worker.engine.load());
        self.observations.sample(self.now, self.waiting(), loads);
        let worker = self.observations.samples_taken() % self.workers.len() as WorkerNumber;
        self.check_worker(worker)?;
        self.check_bookings()
    }

    /// The streams of tokens are seen by those who placed the requests.
    fn tell_progress(&mut self, worker: WorkerNumber) {
        for place in 0..self.workers[worker as usize].requests.len() {
            let at = &self.workers[worker as usize];
            let flight = &mut self.flights[at.requests[place] as usize];
            let Some(leg) = flight.main.as_mut().filter(|leg| leg.worker == worker) else {
                continue;
            };
            let Some(sequence) = leg.sequence else { continue };
            let tokens = at.engine.generated(sequence).saturating_sub(1);
            let more = tokens.saturating_sub(leg.tokens);
            leg.tokens = tokens;
            let ticket = leg.ticket;
            if more > 0 {
                let request = at.requests[place];
                self.progress(request, ticket, RequestProgress::Tokens(more));
                self.charge(request, more);
            }
        }
    }

    /// Reports arrive; each also says how many batches of events there should be by now.
    pub(super) fn reported(&mut self, place: u32) {
        let mut reports = std::mem::take(&mut self.reports[place as usize]);
        for Report { worker, generation, published, load } in reports.drain(..) {
            let at = &self.workers[worker as usize];
            if !at.alive || at.generation != generation {
                continue;
            }
            if self.kind.follows_events() && at.feed.synced && published > at.feed.expected {
                self.gap(worker);
            }
            self.hear(worker, WorkerNews::Load { generation, load: &load });
        }
        self.reports[place as usize] = reports;
        self.offer();
    }
}
