//! Measurements of a run, for reports.

use super::World;
use super::flight::{Flight, RequestEnd};
use crate::policy::{PolicyKind, WorkerNumber};
use crate::settings::SimulationSettings;
use crate::time::Ps;
use stator_protos::load::Load;

/// Samples kept; beyond them every second one is dropped and they are taken half as often.
const SAMPLES_MAX: usize = 512;
/// Requests of the watched worker that are kept.
const BARS_MAX: usize = 4_096;

/// All that a run leaves behind.
#[derive(Debug)]
pub(crate) struct Observations {
    pub(crate) kind: PolicyKind,
    /// Each request, in the order of the workload.
    pub(crate) requests: Vec<RequestMeasurement>,
    /// From the first arrival to the last end.
    pub(crate) span: Ps,
    /// Time that each worker spent on steps.
    pub(crate) busy: Vec<Ps>,
    pub(crate) preemptions: u64,
    pub(crate) migrations: u64,
    pub(crate) deaths: u64,
    pub(crate) lost_batches: u64,
    pub(crate) samples: Vec<Sample>,
    /// Requests of the first worker that answers, in the order of their ends.
    pub(crate) bars: Vec<Bar>,
    /// Events of the simulation.
    pub(crate) events: u64,
    watched: WorkerNumber,
    sample_interval: Ps,
    next_sample: Ps,
    taken: u32,
}

/// Measurements of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestMeasurement {
    pub(crate) ttft: Option<Ps>,
    pub(crate) itl: Option<Ps>,
    pub(crate) complete: bool,
    pub(crate) cached_tokens: u32,
}

/// The fleet at one moment: sums over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Ps,
    /// Requests that no worker has yet, that wait at one, and that run.
    pub(crate) held: u32,
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    /// The longest waiting line of one worker.
    pub(crate) longest: u32,
    /// Shares of all blocks.
    pub(crate) used: f64,
    pub(crate) cached: f64,
}

/// One request at the watched worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bar {
    pub(crate) placed: Ps,
    pub(crate) first: Ps,
    pub(crate) ended: Ps,
}

impl Observations {
    pub(super) fn new(settings: &SimulationSettings, kind: PolicyKind) -> Self {
        Self {
            kind,
            requests: Vec::new(),
            span: 0,
            busy: Vec::new(),
            preemptions: 0,
            migrations: 0,
            deaths: 0,
            lost_batches: 0,
            samples: Vec::new(),
            bars: Vec::new(),
            events: 0,
            watched: settings.first_answering(),
            sample_interval: settings.report_interval,
            next_sample: 0,
            taken: 0,
        }
    }

    pub(super) fn wants_sample(&self, now: Ps) -> bool {
        now >= self.next_sample
    }

    pub(super) fn samples_taken(&self) -> u32 {
        self.taken
    }

    pub(super) fn sample(&mut self, at: Ps, held: u32, loads: impl Iterator<Item = Load>) {
        let mut sample = Sample { at, held, ..Sample::default() };
        let mut blocks = (0_u64, 0_u64, 0_u64);
        for load in loads {
            sample.waiting += load.waiting;
            sample.running += load.running;
            sample.longest = sample.longest.max(load.waiting);
            blocks.0 += u64::from(load.used_blocks);
            blocks.1 += u64::from(load.cached_blocks);
            blocks.2 += u64::from(load.total_blocks);
        }
        sample.used = blocks.0 as f64 / blocks.2 as f64;
        sample.cached = blocks.1 as f64 / blocks.2 as f64;
        self.samples.push(sample);
        self.taken += 1;
        // Every other sample goes and the interval doubles: an even sample in bounded memory.
        if self.samples.len() > SAMPLES_MAX {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.sample_interval *= 2;
        }
        self.next_sample = at + self.sample_interval;
    }

    /// A request ends at a worker.
    pub(super) fn bar(&mut self, flight: &Flight, worker: WorkerNumber, ended: Ps) {
        if worker == self.watched && self.bars.len() < BARS_MAX {
            let first = flight.first.unwrap_or(ended).max(flight.placed);
            self.bars.push(Bar { placed: flight.placed, first, ended });
        }
    }
}

/// Everything is over.
pub(super) fn finish(world: World<'_>) -> Observations {
    let mut observations = world.observations;
    let asked = world.workload.requests.iter();
    let measured =
        |(asked, flight): (&crate::workload::WorkloadRequest, &Flight)| RequestMeasurement {
            ttft: flight.ttft(),
            itl: flight.itl(asked.output_tokens),
            complete: flight.ending == Some(RequestEnd::Complete),
            cached_tokens: flight.cached_tokens.unwrap_or(0),
        };
    observations.requests = asked.zip(&world.flights).map(measured).collect();
    let first = world.flights.iter().map(|flight| flight.arrived).min().unwrap_or(0);
    let last = world.flights.iter().filter_map(|flight| flight.ended).max().unwrap_or(0);
    observations.span = last - first;
    observations.busy = world.workers.iter().map(super::worker::Worker::busy).collect();
    let preemptions = |worker: &super::Worker| worker.preemptions + worker.engine.preemptions();
    observations.preemptions = world.workers.iter().map(preemptions).sum();
    observations.events = world.agenda.made();
    observations
}
