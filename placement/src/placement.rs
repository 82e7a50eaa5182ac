//! Ties index, tracker, fleet and cost together: one decision is one call.

use crate::cost::{self, Inputs, Weights};
use crate::decision::{Candidate, Decision, PickError, Request};
use crate::fleet::{Fleet, Worker, WorkerState};
use crate::index::{Applied, Index};
use crate::mode::Mode;
use crate::overlap::{Overlap, Overlaps};
use crate::random::Random;
use crate::settings::{BusyThresholds, Settings};
use crate::tracker::{BookingId, Footprint, InFlight, Tracker};
use crate::{Score, Time};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};

/// Places the requests of one model.
pub struct Placement {
    settings: Settings,
    fleet: Fleet,
    index: Index,
    tracker: Tracker,
    /// The latest moment that any call gave.
    now: Time,
    /// The last worker chosen in turn.
    last: Option<WorkerRank>,
    ignored_events: u64,
    scratch: Scratch,
}

/// Memory that each decision uses again.
#[derive(Default)]
struct Scratch {
    overlaps: Overlaps,
    /// What each worker of the fleet holds, in its order.
    held: Vec<Overlap>,
    candidates: Vec<Candidate>,
    costs: Vec<f64>,
}

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Workers known.
    pub workers: usize,
    /// Reported entries of the KV index.
    pub index_blocks: usize,
    /// Predicted entries of the KV index.
    pub predicted_blocks: usize,
    /// Entries that the index forgot for lack of room, since the start.
    pub dropped_blocks: u64,
    /// Events and snapshots that had no effect, see [`Applied`], since the start.
    pub ignored_events: u64,
    /// Requests in flight.
    pub bookings: usize,
    /// Bookings that ended for lack of news, since the start.
    pub expired_bookings: u64,
}

impl Placement {
    /// A placement without workers.
    pub fn new(settings: Settings) -> Self {
        Self {
            fleet: Fleet::default(),
            index: Index::new(settings.max_blocks),
            tracker: Tracker::new(settings.booking_lease),
            now: Time::default(),
            last: None,
            ignored_events: 0,
            scratch: Scratch::default(),
            settings,
        }
    }

    /// A worker is there, or something about it changed. A new life has no blocks and none of
    /// the old one's bookings. False, and without effect, if a later life of it is known.
    pub fn worker_up(&mut self, worker: Worker) -> bool {
        let known = self.fleet.worker(worker.worker).map(|state| state.worker.generation);
        if !self.fleet.insert(worker) {
            return false;
        }
        if known.is_some_and(|known| known < worker.generation) {
            self.tracker.remove_worker(worker.worker);
        }
        // Its events may have told of this life, or of a later one, before discovery did.
        self.index.insert(worker.worker, worker.generation);
        true
    }

    /// A worker is gone, with its blocks and bookings. False if it was not known.
    pub fn worker_down(&mut self, worker: WorkerRank) -> bool {
        self.index.remove(worker);
        self.tracker.remove_worker(worker);
        self.fleet.remove(worker)
    }

    /// Follows a KV event of a worker.
    pub fn apply(
        &mut self,
        worker: WorkerRank,
        generation: Generation,
        event: &KvEvent,
    ) -> Applied {
        let foreign = match event {
            KvEvent::Stored(stored) => stored.block_size != self.settings.block_size.get(),
            KvEvent::Removed(_) | KvEvent::Cleared => false,
        };
        let applied =
            if foreign { Applied::BlockSize } else { self.index.apply(worker, generation, event) };
        self.counted(applied)
    }

    /// Replaces what is known of a worker's blocks by a snapshot.
    pub fn replace(
        &mut self,
        worker: WorkerRank,
        generation: Generation,
        blocks: impl IntoIterator<Item = (SequenceHash, Medium)>,
    ) -> Applied {
        let applied = self.index.replace(worker, generation, blocks);
        self.counted(applied)
    }

    /// Events of a worker were lost: it counts as holding no blocks until [`Placement::replace`]
    /// or a new life.
    pub fn unknown(&mut self, worker: WorkerRank) {
        self.index.unknown(worker);
    }

    /// Keeps a worker's load report. False, and without effect, if the worker or this life of it
    /// is not known.
    pub fn report_load(&mut self, worker: WorkerRank, generation: Generation, load: Load) -> bool {
        let booked = self.tracker.in_flight(worker);
        self.fleet.report(worker, generation, load, booked, self.now)
    }

    /// Chooses a worker for a request and books the request there.
    ///
    /// The same calls with the same arguments give the same answer.
    ///
    /// # Errors
    ///
    /// [`PickError`] says why no worker could be chosen; nothing is booked then.
    pub fn pick(
        &mut self,
        request: &Request<'_>,
        now: Time,
        seed: u64,
    ) -> Result<Decision, PickError> {
        self.expire(now);
        self.find_candidates(request)?;
        let chosen = self.choose(request, &mut Random::new(seed));
        let Candidate { worker, overlap, .. } = self.scratch.candidates[chosen];
        Ok(self.place(request, worker, overlap))
    }

    /// Scores every worker that may take a request, in order of their identity, and books
    /// nothing. For callers that weigh more than the cost: they choose, then [`Placement::book`].
    pub fn survey(&mut self, request: &Request<'_>, now: Time) -> &[Candidate] {
        self.expire(now);
        self.scratch.candidates.clear();
        if self.find_candidates(request).is_ok() {
            self.score(request);
        }
        &self.scratch.candidates
    }

    /// Books a request at a worker of the caller's choice; the last [`Placement::survey`] must
    /// have been of the same request. `None` if the worker is not known.
    pub fn book(&mut self, request: &Request<'_>, worker: WorkerRank) -> Option<Decision> {
        self.fleet.worker(worker)?;
        let surveyed = self.scratch.candidates.iter().find(|found| found.worker == worker);
        let overlap = surveyed.map(|found| found.overlap).unwrap_or_default();
        Some(self.place(request, worker, overlap))
    }

    /// The request's prompt is computed: its first token came. False if the booking has ended.
    pub fn prefill_done(&mut self, booking: BookingId) -> bool {
        self.tracker.prefill_done(booking, self.now)
    }

    /// The request's answer fills one more block. False if the booking has ended.
    pub fn output_block(&mut self, booking: BookingId) -> bool {
        self.tracker.grow(booking, self.now)
    }

    /// The request ended, by completion, cancellation or failure. False if the booking has ended.
    pub fn release(&mut self, booking: BookingId) -> bool {
        self.tracker.release(booking)
    }

    /// Ends what has run out by `now`: bookings without news, predictions. How many bookings.
    ///
    /// Every pick does the same; call it now and then where none come.
    pub fn expire(&mut self, now: Time) -> u64 {
        self.now = self.now.max(now);
        self.index.expire(self.now);
        self.tracker.expire(self.now)
    }

    /// Changes when a worker counts as busy, from the next pick on.
    pub fn set_busy(&mut self, busy: BusyThresholds) {
        self.settings.busy = busy;
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The workers.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// What is in flight at a worker, booked here or by others as far as it reported them.
    pub fn in_flight(&self, worker: WorkerRank) -> InFlight {
        let others = self.fleet.worker(worker).map(|state| self.others(state));
        plus(self.tracker.in_flight(worker), others.unwrap_or_default())
    }

    /// What is known of the workers' blocks.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Counts for metrics.
    pub fn stats(&self) -> Stats {
        Stats {
            workers: self.fleet.workers().len(),
            index_blocks: self.index.held(),
            predicted_blocks: self.index.predicted(),
            dropped_blocks: self.index.dropped(),
            ignored_events: self.ignored_events,
            bookings: self.tracker.bookings(),
            expired_bookings: self.tracker.expired(),
        }
    }

    fn counted(&mut self, applied: Applied) -> Applied {
        self.ignored_events += u64::from(applied != Applied::Yes);
        applied
    }

    fn others(&self, state: &WorkerState) -> InFlight {
        state.others(self.now, self.settings.report_ttl)
    }

    /// Leaves in `scratch.candidates` the workers that may take the request, at least one.
    fn find_candidates(&mut self, request: &Request<'_>) -> Result<(), PickError> {
        self.find_held(request);
        let mut candidates = std::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        let mut busy = 0;
        for (state, &overlap) in self.fleet.workers().iter().zip(&self.scratch.held) {
            let worker = state.worker.worker;
            if !state.worker.accepting
                || request.pinned.is_some_and(|pinned| pinned != worker)
                || request.excluded.contains(&worker)
            {
                continue;
            }
            let in_flight = plus(self.tracker.in_flight(worker), self.others(state));
            let InFlight { blocks, prefill_tokens, .. } = in_flight;
            if self.settings.busy.exceeded(blocks, state.total_blocks(), prefill_tokens) {
                busy += 1;
                continue;
            }
            let active_blocks = self.tracker.overlap(worker, request.sequence);
            let score = Score::default();
            candidates.push(Candidate { worker, overlap, active_blocks, in_flight, score });
        }
        let empty = candidates.is_empty();
        self.scratch.candidates = candidates;
        match (empty, busy, request.pinned) {
            (false, _, _) => Ok(()),
            (true, 1.., _) => Err(PickError::AllBusy { workers: busy }),
            (true, 0, Some(worker)) => Err(PickError::PinnedUnavailable { worker }),
            (true, 0, None) => Err(PickError::NoWorkers),
        }
    }

    /// Finds what each worker of the fleet holds of the prompt.
    fn find_held(&mut self, request: &Request<'_>) {
        let Scratch { overlaps, held, .. } = &mut self.scratch;
        held.clear();
        held.resize(self.fleet.workers().len(), Overlap::default());
        self.index.overlap(request.sequence, overlaps);
        for (worker, overlap) in overlaps.iter() {
            if let Ok(position) = self.fleet.position(worker) {
                held[position] = overlap;
            }
        }
    }

    /// Chooses among the candidates.
    fn choose(&mut self, request: &Request<'_>, random: &mut Random) -> usize {
        self.score(request);
        let Scratch { candidates, costs, .. } = &mut self.scratch;
        let chosen = match self.settings.mode {
            Mode::Kv => {
                let weights = request.weights.unwrap_or(&self.settings.weights);
                cost::choose(costs, weights.settings().temperature, random)
            }
            Mode::RoundRobin => {
                let next = candidates.iter().position(|c| Some(c.worker) > self.last);
                let next = next.unwrap_or(0);
                // A pinned request is out of turn.
                if request.pinned.is_none() {
                    self.last = Some(candidates[next].worker);
                }
                Some(next)
            }
            Mode::Random => Some(random.below(candidates.len())),
            Mode::PowerOfTwo => Some(less_loaded_of_two(candidates, random)),
            Mode::LeastLoaded => {
                costs.clear();
                costs.extend(candidates.iter().map(|c| c.in_flight.requests as f64));
                cost::choose(costs, 0.0, random)
            }
        };
        chosen.expect("there is at least one candidate")
    }

    /// Scores the candidates, and leaves their costs in `scratch.costs`.
    fn score(&mut self, request: &Request<'_>) {
        let weights = request.weights.unwrap_or(&self.settings.weights);
        let prompt_blocks = self.prompt_blocks(request);
        let Scratch { candidates, costs, .. } = &mut self.scratch;
        let backlogs = candidates.iter().map(|candidate| candidate.in_flight.prefill_tokens);
        let least_backlog_tokens = backlogs.min().unwrap_or(0);
        costs.clear();
        for candidate in candidates {
            let Candidate { overlap, active_blocks, in_flight, .. } = *candidate;
            let shared = if weights.settings().assume_kv_reuse { active_blocks } else { 0 };
            candidate.score = cost::score(
                weights,
                &Inputs {
                    prompt_tokens: request.prompt_tokens,
                    prompt_blocks,
                    block_size: self.settings.block_size.get(),
                    overlap,
                    backlog_tokens: in_flight.prefill_tokens,
                    least_backlog_tokens,
                    potential_blocks: in_flight.blocks
                        + u64::from(prompt_blocks.saturating_sub(shared)),
                    requests: in_flight.requests,
                },
            );
            costs.push(candidate.score.total);
        }
    }

    fn place(&mut self, request: &Request<'_>, worker: WorkerRank, overlap: Overlap) -> Decision {
        let block_size = self.settings.block_size.get();
        let overlap_blocks = overlap.blocks();
        let cached_tokens = overlap_blocks.saturating_mul(block_size).min(request.prompt_tokens);
        let weights: &Weights = request.weights.unwrap_or(&self.settings.weights);
        let shared = if weights.settings().assume_kv_reuse { request.sequence } else { &[] };
        let expected = request.max_output_tokens.filter(|_| weights.settings().output_block_decay);
        let footprint = Footprint {
            shared,
            own_blocks: self.prompt_blocks(request).saturating_sub(length(shared)),
            prefill_tokens: u64::from(request.prompt_tokens - cached_tokens),
            expected_output_blocks: expected.map(|tokens| tokens.div_ceil(block_size)),
        };
        let booking = self.tracker.book(worker, footprint, self.now);
        self.predict(worker, request.sequence);
        let candidates = if request.explain { self.scratch.candidates.clone() } else { Vec::new() };
        Decision { worker, prefill: None, booking, overlap_blocks, cached_tokens, candidates }
    }

    /// A request that was placed elsewhere went to this worker: it is taken to hold the prompt
    /// where its events do not say so.
    pub fn sent(&mut self, worker: WorkerRank, sequence: &[SequenceHash]) {
        if self.fleet.worker(worker).is_some() {
            self.predict(worker, sequence);
        }
    }

    /// Takes it that the worker will hold the prompt, where its events do not say so.
    fn predict(&mut self, worker: WorkerRank, sequence: &[SequenceHash]) {
        let publishes = self.fleet.worker(worker).is_none_or(|w| w.worker.publishes_events);
        let ttl = match publishes {
            true => self.settings.early_prediction_ttl,
            false => Some(self.settings.prediction_ttl),
        };
        if let Some(ttl) = ttl {
            self.index.predict(worker, sequence, self.now.after(ttl));
        }
    }

    /// Blocks of the prompt, complete or not.
    fn prompt_blocks(&self, request: &Request<'_>) -> u32 {
        let by_tokens = request.prompt_tokens.div_ceil(self.settings.block_size.get());
        by_tokens.max(length(request.sequence))
    }
}

/// Two different candidates at random, if there are two; of them the one with fewer requests.
fn less_loaded_of_two(candidates: &[Candidate], random: &mut Random) -> usize {
    let first = random.below(candidates.len());
    let mut second = random.below(candidates.len() - 1);
    if second >= first && candidates.len() > 1 {
        second += 1;
    }
    let requests = |position: usize| candidates[position].in_flight.requests;
    if requests(second) < requests(first) { second } else { first }
}

fn plus(one: InFlight, other: InFlight) -> InFlight {
    InFlight {
        requests: one.requests + other.requests,
        prefill_tokens: one.prefill_tokens.saturating_add(other.prefill_tokens),
        blocks: one.blocks + other.blocks,
    }
}

fn length(sequence: &[SequenceHash]) -> u32 {
    u32::try_from(sequence.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
