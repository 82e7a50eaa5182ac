//! Measurements of a run, for reports.

use super::flight::Flight;
use crate::engine::TierTotals;
use crate::policy::{PolicyKind, WorkerNumber};
use crate::settings::FleetSettings;
use crate::time::Ps;
use stator_protos::load::Load;

/// Samples kept; beyond them every second one is dropped and they are taken half as often.
const SAMPLES_MAX: usize = 512;
/// Requests of the watched worker that are kept.
const BARS_MAX: usize = 4_096;

/// All that a run leaves behind.
#[derive(Debug)]
pub struct Observations {
    /// The policy.
    pub kind: PolicyKind,
    /// Each request, in the order of the workload.
    pub requests: Vec<RequestMeasurement>,
    /// From the first arrival to the last end.
    pub span: Ps,
    /// Time that each worker spent on steps, by its number. A worker that was added may have the
    /// number of one that has gone.
    pub busy: Vec<Ps>,
    /// Time that workers were held, all together: from their order until they were gone.
    pub worker_time: u128,
    /// Times that a sequence had to start over in its engine.
    pub preemptions: u64,
    /// Blocks that the workers' tiers gave and took.
    pub tiers: TierTotals,
    /// Times that a request went to another worker after a death.
    pub migrations: u64,
    /// Deaths of workers.
    pub deaths: u64,
    /// Batches of KV events that were lost.
    pub lost_batches: u64,
    /// The fleet over time: a bounded number of samples, evenly spaced.
    pub samples: Vec<Sample>,
    /// Requests of the first worker that answers, in the order of their ends.
    pub bars: Vec<Bar>,
    /// Events of the simulation.
    pub events: u64,
    pub(super) watched: WorkerNumber,
    pub(super) sample_interval: Ps,
    pub(super) next_sample: Ps,
    pub(super) taken: u32,
}

/// Measurements of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMeasurement {
    /// Time from arrival to the first token; none if none came.
    pub ttft: Option<Ps>,
    /// Mean gap between tokens; none for a single one.
    pub itl: Option<Ps>,
    /// Whether it was answered.
    pub complete: bool,
    /// Prompt tokens that were reused.
    pub cached_tokens: u32,
}

/// The fleet at one moment: sums over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The moment.
    pub at: Ps,
    /// Requests without a worker.
    pub held: u32,
    /// Requests that wait at a worker.
    pub waiting: u32,
    /// Requests that run.
    pub running: u32,
    /// The longest waiting line of one worker.
    pub longest: u32,
    /// Share of blocks that requests use.
    pub used: f64,
    /// Share of blocks that only the cache holds.
    pub cached: f64,
}

/// One request at the watched worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// When the worker got it.
    pub placed: Ps,
    /// When its first token came.
    pub first: Ps,
    /// When it ended.
    pub ended: Ps,
}

impl Observations {
    pub(super) fn new(settings: &FleetSettings, kind: PolicyKind) -> Self {
        Self {
            kind,
            requests: Vec::new(),
            span: 0,
            busy: Vec::new(),
            worker_time: 0,
            preemptions: 0,
            tiers: TierTotals::default(),
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
        // A fleet may have no worker for a while.
        let total = blocks.2.max(1) as f64;
        sample.used = blocks.0 as f64 / total;
        sample.cached = blocks.1 as f64 / total;
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
