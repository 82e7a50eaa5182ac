//! The simulated fleet: workers, the network between, faults, and the policy under test, driven
//! by one agenda in virtual time.
//!
//! Start reading at [`World::step`]; [`World::place`] is what becomes of a request.

mod agenda;
mod edge;
mod edges;
mod faults;
mod feed;
mod flight;
mod observations;
mod place;
mod rules;
mod scale;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tier_tests;
mod transfer;
mod turns;
mod waiting;
mod worker;

pub use observations::{Bar, Observations, RequestMeasurement, Sample};
pub use state::{FleetState, FleetTotals, RoleState, WorkerState};

use crate::engine::block::BlockId;
use crate::engine::rates::Rates;
use crate::engine::{Bucket, Engine, EngineOutput, TierTotals};
use crate::policy::{PolicyKind, WorkerNews, WorkerNumber};
use crate::random::{Purpose, Random};
use crate::settings::{FleetSettings, RoleEngine};
use crate::time::{MS, Ps};
use crate::workload::{ArrivalTime, Workload};
use agenda::{Agenda, Event};
use edge::{Edge, Gauges};
use flight::{Flight, RequestEnd};
use stator_placement::Role;
use stator_protos::hash::SequenceHash;
use stator_protos::load::Load;
use stator_queue::Queues;
use std::collections::VecDeque;
use worker::{Batch, Tenure, Worker};

/// A rule that was broken: a fault of the model, or of what it runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}, at {at_ms} ms")]
pub struct Violation {
    /// The rule.
    pub rule: String,
    /// Milliseconds since the start.
    pub at_ms: u64,
}

/// One load report.
#[derive(Clone, Copy, Debug)]
struct Report {
    worker: WorkerNumber,
    generation: u64,
    published: u64,
    load: Load,
}

/// A simulation under way.
pub struct World<'a> {
    settings: &'a FleetSettings,
    workload: &'a Workload,
    kind: PolicyKind,
    now: Ps,
    agenda: Agenda,
    edges: Vec<Edge>,
    /// Messages between edges that are still on their way.
    gauges: VecDeque<Gauges>,
    workers: Vec<Worker>,
    /// The object store below the workers' tiers.
    bucket: Bucket,
    flights: Vec<Flight>,
    /// The last worker of each session, by the session's first request.
    sessions: Vec<Option<WorkerNumber>>,
    /// A rule that was broken where nobody could be told.
    broken: Option<Violation>,
    /// Requests that have not ended yet.
    left: usize,
    batches: Vec<Option<Batch>>,
    free_batches: Vec<u32>,
    reports: Vec<Vec<Report>>,
    loss: Random,
    deaths: Random,
    picks: Random,
    assigned: Random,
    stragglers: Random,
    observations: Observations,
    totals: FleetTotals,
    scratch: Scratch,
}

/// Memory that is used again.
#[derive(Default)]
struct Scratch {
    blocks: Vec<BlockId>,
    sequence: Vec<SequenceHash>,
    outputs: Vec<EngineOutput>,
}

impl<'a> World<'a> {
    /// A fleet before its first request.
    pub fn new(settings: &'a FleetSettings, workload: &'a Workload, kind: PolicyKind) -> Self {
        let mut world = Self {
            settings,
            workload,
            kind,
            now: 0,
            agenda: Agenda::default(),
            edges: Vec::new(),
            gauges: VecDeque::new(),
            workers: Vec::new(),
            bucket: Bucket::default(),
            flights: vec![Flight::default(); workload.requests.len()],
            sessions: vec![None; workload.requests.len()],
            broken: None,
            left: workload.requests.len(),
            batches: Vec::new(),
            free_batches: Vec::new(),
            reports: Vec::new(),
            loss: Random::new(settings.seed, Purpose::Loss),
            deaths: Random::new(settings.seed, Purpose::Deaths),
            picks: Random::new(settings.seed, Purpose::Picks),
            assigned: Random::new(settings.seed, Purpose::Edges),
            stragglers: Random::new(settings.seed, Purpose::Stragglers),
            observations: Observations::new(settings, kind),
            totals: FleetTotals::default(),
            scratch: Scratch::default(),
        };
        let new = |_| {
            let queue = Queues::new(settings.queue.clone());
            // All bands have one policy.
            let fairness = settings.queue.default_band.fairness;
            Edge::new(kind.build(&settings.common()), queue, fairness)
        };
        world.edges = (0..settings.edges.count).map(new).collect();
        world.build_workers();
        world.begin();
        world
    }

    fn build_workers(&mut self) {
        for role in [Role::Prefill, Role::Decode, Role::Aggregated] {
            for _ in 0..self.settings.sides.of(role) {
                let worker = self.build(role);
                self.workers[worker as usize].start(0);
            }
        }
        (0..self.settings.workers()).for_each(|worker| self.announce(worker));
    }

    fn begin(&mut self) {
        for (number, request) in (0..).zip(&self.workload.requests) {
            if let ArrivalTime::At(at) = request.arrival {
                self.agenda.at(at, Event::Arrive { request: number });
            }
        }
        let groups = self.groups();
        for group in 0..groups {
            let at = self.settings.report_interval * u64::from(group) / u64::from(groups);
            self.agenda.at(at, Event::Report { group });
        }
        self.reports.resize_with(2 * groups as usize, Vec::new);
        self.plan_death();
    }

    /// Handles the next event; false once every request has ended.
    ///
    /// # Errors
    ///
    /// [`Violation`] if a rule is broken.
    pub fn step(&mut self) -> Result<bool, Violation> {
        if self.left == 0 {
            return Ok(false);
        }
        let Some((at, event)) = self.agenda.next() else {
            return Err(self.violation(format!("{} requests never end", self.left)));
        };
        self.now = at;
        self.handle(event)?;
        self.broken.take().map_or(Ok(true), Err)
    }

    /// Runs up to a moment; false once every request has ended.
    ///
    /// # Errors
    ///
    /// [`Violation`] if a rule is broken on the way.
    pub fn run_until(&mut self, end: Ps) -> Result<bool, Violation> {
        // An empty agenda with requests left is for `step` to complain about.
        while self.left > 0 && self.agenda.next_at().is_none_or(|at| at <= end) {
            self.step()?;
        }
        if self.left > 0 {
            self.now = self.now.max(end);
        }
        Ok(self.left > 0)
    }

    /// Runs until every request has ended.
    ///
    /// # Errors
    ///
    /// [`Violation`] if a rule is broken on the way.
    pub fn finish(mut self) -> Result<Observations, Violation> {
        while self.step()? {}
        self.check_end()?;
        let asked = self.workload.requests.iter();
        let measured = asked.zip(&self.flights).map(|(asked, flight)| RequestMeasurement {
            ttft: flight.ttft(),
            itl: flight.itl(asked.output_tokens),
            complete: flight.ending == Some(RequestEnd::Complete),
            cached_tokens: flight.cached_tokens.unwrap_or(0),
        });
        let first = self.flights.iter().map(|flight| flight.arrived).min().unwrap_or(0);
        let last = self.flights.iter().filter_map(|flight| flight.ended).max().unwrap_or(0);
        let held = self.workers.iter().filter(|worker| worker.tenure != Tenure::Retired);
        let held: u128 = held.map(|worker| u128::from(self.now - worker.ordered)).sum();
        let preemptions = |worker: &Worker| worker.preemptions + worker.engine.preemptions();
        Ok(Observations {
            requests: measured.collect(),
            span: last - first,
            busy: self.workers.iter().map(Worker::busy).collect(),
            worker_time: self.observations.worker_time + held,
            preemptions: self.workers.iter().map(preemptions).sum(),
            tiers: self.workers.iter().fold(TierTotals::default(), |mut all, worker| {
                all += worker.tiers();
                all
            }),
            events: self.agenda.made(),
            ..self.observations
        })
    }

    /// The fleet as it is now. Reading it changes nothing.
    pub fn state(&self) -> FleetState {
        let of = |role| {
            let mut state = RoleState::default();
            let workers = self.workers.iter().filter(|worker| worker.member.role == role);
            workers.for_each(|worker| state.add(worker));
            state
        };
        FleetState {
            now: self.now,
            held: self.waiting(),
            prefill: of(Role::Prefill),
            decode: of(Role::Decode),
            aggregated: of(Role::Aggregated),
            totals: self.totals,
        }
    }

    /// The workers that are up, those that drain among them.
    pub fn workers_up(&self) -> impl Iterator<Item = WorkerState> {
        self.workers.iter().filter(|worker| worker.alive).map(WorkerState::of)
    }

    /// Times to the first token of requests that got it after `since`.
    pub fn first_tokens(&self, since: Ps) -> impl Iterator<Item = Ps> {
        let recent = move |flight: &&Flight| flight.first.is_some_and(|first| first > since);
        self.flights.iter().filter(recent).filter_map(Flight::ttft)
    }

    /// Mean gaps between tokens of requests that ended after `since`.
    pub fn gaps(&self, since: Ps) -> impl Iterator<Item = Ps> {
        let recent = move |flight: &Flight| flight.ended.is_some_and(|ended| ended > since);
        let requests = self.workload.requests.iter().zip(&self.flights);
        let recent = requests.filter(move |(_, flight)| recent(flight));
        recent.filter_map(|(asked, flight)| flight.itl(asked.output_tokens))
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrive { request } => {
                // The edge is drawn here and not before: the order of arrivals decides the draws.
                let flight = &mut self.flights[request as usize];
                flight.arrived = self.now;
                flight.edge = self.assigned.below(self.settings.edges.count) as u8;
                let asked = &self.workload.requests[request as usize];
                self.totals.arrived += 1;
                let tokens = u64::from(asked.prompt_tokens);
                self.totals.prompt_tokens += tokens;
                self.totals.prompt_squares += u128::from(tokens * tokens);
                self.place(request);
            }
            Event::RunEnds { worker, epoch } => self.run_ends(worker, epoch)?,
            Event::Ready { worker } => self.drive(worker),
            Event::Report { group } => self.report(group)?,
            Event::Reported { reports } => self.reported(reports),
            Event::Tell { edge } => self.tell(edge),
            Event::Told => self.told(),
            Event::Published { batch } => self.published(batch),
            Event::Resync { worker, generation } => self.resync(worker, generation),
            Event::Death => self.death(),
            Event::Detected { worker, generation } => self.detected(worker, generation),
            Event::Start { worker, generation } => self.start(worker, generation),
            Event::Retire { worker, generation } => self.retire(worker, generation),
            Event::Deadline => self.expire(),
        }
        Ok(())
    }

    /// An idle engine of a role.
    fn engine(&self, role: Role, slow: f64) -> Engine {
        let RoleEngine { timing, limits } = self.settings.engine_of(role);
        Engine::new(limits, Rates::new(&timing, slow), self.bucket.clone())
    }

    /// Tells the policies that a worker is there.
    fn announce(&mut self, worker: WorkerNumber) {
        self.workers[worker as usize].listed = true;
        let generation = self.workers[worker as usize].generation;
        let member = self.workers[worker as usize].member.clone();
        self.hear(worker, WorkerNews::Up { generation, member: &member });
        self.tell_others(worker);
    }

    /// Lets a worker's engine take notice of what changed, and the agenda of when it ends.
    fn drive(&mut self, worker: WorkerNumber) {
        let at = &mut self.workers[worker as usize];
        if !at.alive {
            return;
        }
        at.engine.interrupt(self.now);
        at.engine.plan(self.now);
        self.schedule(worker);
    }

    fn schedule(&mut self, worker: WorkerNumber) {
        let at = &mut self.workers[worker as usize];
        let end = at.engine.run_ends();
        if end != at.planned {
            at.planned = end;
            at.epoch = at.epoch.wrapping_add(1);
            if let Some(end) = end {
                self.agenda.at(end, Event::RunEnds { worker, epoch: at.epoch });
            }
        }
        let ready = at.engine.next_ready(self.now);
        if let Some(ready) = ready.filter(|ready| at.wakes <= self.now || *ready < at.wakes) {
            at.wakes = ready;
            self.agenda.at(ready, Event::Ready { worker });
        }
        self.publish(worker);
    }

    fn run_ends(&mut self, worker: WorkerNumber, epoch: u32) -> Result<(), Violation> {
        let at = &mut self.workers[worker as usize];
        if at.epoch != epoch || !at.alive {
            return Ok(());
        }
        let mut outputs = std::mem::take(&mut self.scratch.outputs);
        outputs.clear();
        at.engine.finish(&mut outputs);
        at.planned = None;
        at.engine.plan(self.now);
        self.schedule(worker);
        for output in &outputs {
            match *output {
                EngineOutput::First { request, cached_tokens } => {
                    self.first(request, cached_tokens)
                }
                EngineOutput::Last { request } => self.last(request, worker)?,
            }
        }
        self.scratch.outputs = outputs;
        self.offer();
        Ok(())
    }

    fn violation(&self, rule: String) -> Violation {
        Violation { rule, at_ms: self.now / MS }
    }
}
