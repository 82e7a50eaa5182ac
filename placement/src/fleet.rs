//! The workers that exist, and what each last said of itself.

use crate::Time;
use crate::tracker::InFlight;
use stator_protos::discovery::WorkerRecord;
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::time::Duration;

/// A worker as discovery tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Who it is.
    pub worker: WorkerRank,
    /// Its present life.
    pub generation: Generation,
    /// KV blocks that it can hold; 0 if unknown.
    pub total_blocks: u32,
    /// Whether it takes new requests.
    pub accepting: bool,
    /// Whether it publishes KV events. What others hold is predicted from what they were sent.
    pub publishes_events: bool,
}

impl Worker {
    /// The worker of a discovery record, whose agent does or does not take new requests.
    pub fn new(record: &WorkerRecord, accepting: bool) -> Self {
        let WorkerRecord { worker, generation, total_blocks } = *record;
        Self { worker, generation, total_blocks, accepting, publishes_events: true }
    }
}

/// A worker and its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerState {
    /// What discovery tells of it.
    pub worker: Worker,
    /// Its last load report in this life.
    pub load: Option<Load>,
    /// What it reported beyond what was booked here at that time: the requests of others.
    others: InFlight,
    reported_at: Time,
}

impl WorkerState {
    /// Load that others put on the worker; none if its last report is older than `report_ttl`.
    pub fn others(&self, now: Time, report_ttl: Duration) -> InFlight {
        if now > self.reported_at.after(report_ttl) { InFlight::default() } else { self.others }
    }

    /// KV blocks that the worker can hold, 0 if unknown.
    pub fn total_blocks(&self) -> u32 {
        let reported = self.load.map_or(0, |load| load.total_blocks);
        if reported > 0 { reported } else { self.worker.total_blocks }
    }
}

/// All workers, in order of their identity.
#[derive(Debug, Default)]
pub struct Fleet {
    workers: Vec<WorkerState>,
}

impl Fleet {
    /// The workers, in order of their identity.
    pub fn workers(&self) -> &[WorkerState] {
        &self.workers
    }

    /// One worker.
    pub fn worker(&self, worker: WorkerRank) -> Option<&WorkerState> {
        self.position(worker).ok().map(|position| &self.workers[position])
    }

    /// Adds a worker or updates it; a new life forgets its report. False, and without effect, if
    /// a later life of it is known.
    pub(crate) fn insert(&mut self, worker: Worker) -> bool {
        let others = InFlight::default();
        let state = WorkerState { worker, load: None, others, reported_at: Time::default() };
        match self.position(worker.worker) {
            Err(position) => self.workers.insert(position, state),
            Ok(position) => {
                let known = &mut self.workers[position];
                if worker.generation < known.worker.generation {
                    return false;
                }
                if worker.generation > known.worker.generation {
                    *known = state;
                } else {
                    known.worker = worker;
                }
            }
        }
        true
    }

    pub(crate) fn remove(&mut self, worker: WorkerRank) -> bool {
        let position = self.position(worker);
        position.map(|position| self.workers.remove(position)).is_ok()
    }

    /// Keeps a report; `booked` is what is booked here at the worker. False, and without effect,
    /// if the worker or this life of it is not known.
    pub(crate) fn report(
        &mut self,
        worker: WorkerRank,
        generation: Generation,
        load: Load,
        booked: InFlight,
        now: Time,
    ) -> bool {
        let Ok(position) = self.position(worker) else { return false };
        let state = &mut self.workers[position];
        if state.worker.generation != generation {
            return false;
        }
        let requests = u64::from(load.running) + u64::from(load.waiting);
        state.others = InFlight {
            requests: requests.saturating_sub(booked.requests),
            prefill_tokens: load.pending_prefill_tokens.saturating_sub(booked.prefill_tokens),
            blocks: u64::from(load.used_blocks).saturating_sub(booked.blocks),
        };
        (state.load, state.reported_at) = (Some(load), now);
        true
    }

    /// Where a worker stands among [`Fleet::workers`], or would stand.
    pub(crate) fn position(&self, worker: WorkerRank) -> Result<usize, usize> {
        self.workers.binary_search_by_key(&worker, |state| state.worker.worker)
    }
}
