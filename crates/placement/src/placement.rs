//! Ties index, tracker, fleet and cost together: one decision is one call.

mod legs;
mod reusing;
mod scoring;
mod select;
mod shares;
mod stage;
mod survey;

use crate::Time;
use crate::blocks::Blocks;
use crate::constraint::Profile;
use crate::decision::{Candidate, Decision, PickError, PlacementRequest};
use crate::fleet::{Fleet, JoinResult, Worker};
use crate::learn::{Learner, Speed};
use crate::random::Random;
use crate::sessions::Sessions;
use crate::settings::{BusyThresholds, PlacementSettings};
use crate::tracker::{BookingId, InFlight, PeerLoad, Tracker};
use shares::Shares;
use stage::Stage;
use stator_kv_index::Overlaps;
use stator_kv_index::{EventEffect, Index};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::sync::Arc;
use std::time::Duration;

pub use survey::Survey;

/// Places the requests of one model.
pub struct Placement {
    settings: PlacementSettings,
    fleet: Fleet,
    blocks: Arc<Blocks>,
    tracker: Tracker,
    learner: Learner,
    sessions: Sessions,
    /// The latest moment that any call gave.
    now: Time,
    /// The last worker chosen in turn.
    last: Option<WorkerRank>,
    /// The last worker chosen in turn to compute a prompt for another.
    last_prefill: Option<WorkerRank>,
    scratch: Scratch,
}

/// Memory that each decision uses again.
#[derive(Default)]
struct Scratch {
    overlaps: Overlaps,
    shares: Shares,
    /// By set of labels, the summed weight of the request's preferred labels; `None` if a required
    /// one lacks.
    verdicts: Vec<Option<f64>>,
    /// Slots of the workers that may be chosen, in order of their identity.
    eligible: Vec<u32>,
    /// Costs of the workers in `eligible`, or of each slot.
    costs: Vec<f64>,
    candidates: Vec<Candidate>,
}

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementStats {
    /// Workers known.
    pub workers: usize,
    /// Reported entries of the KV index.
    pub index_blocks: usize,
    /// Predicted entries of the KV index.
    pub predicted_blocks: usize,
    /// Entries that the index forgot for lack of room, since the start.
    pub dropped_blocks: u64,
    /// Bytes that the index takes.
    pub index_bytes: usize,
    /// Events and snapshots that had no effect, see [`EventEffect`], since the start.
    pub ignored_events: u64,
    /// Places of requests in flight.
    pub bookings: usize,
    /// Bookings that ended for lack of news, since the start.
    pub expired_bookings: u64,
    /// Sessions that are bound to a worker.
    pub sessions: usize,
}

impl Placement {
    /// A placement without workers.
    pub fn new(settings: PlacementSettings) -> Self {
        Self {
            fleet: Fleet::default(),
            blocks: Arc::new(Blocks::new(&settings)),
            tracker: Tracker::new(settings.booking_lease, settings.block_size.get()),
            learner: Learner::new(settings.min_samples),
            sessions: Sessions::default(),
            now: Time::default(),
            last: None,
            last_prefill: None,
            scratch: Scratch::default(),
            settings,
        }
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> u32 {
        self.settings.block_size.get()
    }

    /// A worker is there, or something about it changed. A new life has no blocks and none of
    /// the old one's bookings. False, and without effect, if a later life of it is known.
    pub fn worker_up(&mut self, worker: Worker) -> bool {
        match self.fleet.insert(worker) {
            JoinResult::Stale => return false,
            JoinResult::Same => {}
            JoinResult::New(slot) => self.empty(slot),
        }
        // Its events may have told of this life, or of a later one, before discovery did.
        self.blocks.index().insert(worker.worker, worker.generation);
        true
    }

    /// Says what a worker is for, where it stands and what it has loaded; without, it does
    /// everything. It stays so over its lives. False if the worker is not known.
    pub fn set_profile(&mut self, worker: WorkerRank, profile: Profile) -> bool {
        self.fleet.set_profile(worker, profile)
    }

    /// A worker is gone, with its blocks and bookings. False if it was not known.
    pub fn worker_down(&mut self, worker: WorkerRank) -> bool {
        self.blocks.index().remove(worker);
        let slot = self.fleet.remove(worker);
        slot.map(|slot| self.empty(slot)).is_some()
    }

    /// Follows a KV event of a worker, see [`Blocks::apply`].
    pub fn apply(
        &self,
        worker: WorkerRank,
        generation: Generation,
        event: &KvEvent,
    ) -> EventEffect {
        self.blocks.apply(worker, generation, std::slice::from_ref(event))
    }

    /// Replaces what is known of a worker's blocks by a snapshot, see [`Blocks::replace`].
    pub fn replace(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: impl IntoIterator<Item = (SequenceHash, Medium)>,
    ) -> EventEffect {
        self.blocks.replace(worker, generation, blocks)
    }

    /// Events of a worker were lost, see [`Blocks::unknown`].
    pub fn unknown(&self, worker: WorkerRank) {
        self.blocks.unknown(worker);
    }

    /// Keeps a worker's load report. False, and without effect, if the worker or this life of it
    /// is not known.
    pub fn report_load(&mut self, worker: WorkerRank, generation: Generation, load: Load) -> bool {
        let Some(slot) = self.fleet.report(worker, generation, load) else { return false };
        let reported = InFlight {
            requests: u64::from(load.running) + u64::from(load.waiting),
            prefill_tokens: load.pending_prefill_tokens,
            blocks: load.used_blocks.into(),
        };
        // What it reports beyond what is booked are the requests of others.
        let others = reported.beyond(self.tracker.loads().known(slot)).believed();
        self.tracker.loads_mut().report(slot, others, self.now, self.settings.report_ttl);
        true
    }

    /// Other replicas have so much in flight at a worker, all together. It counts until it is said
    /// anew or the worker's life ends. False if the worker is not known.
    pub fn set_peers(&mut self, worker: WorkerRank, load: PeerLoad) -> bool {
        let Some(slot) = self.fleet.slot(worker) else { return false };
        let PeerLoad { requests, prefill_tokens, prefill_pairs, blocks, .. } = load;
        let peers = InFlight { requests, prefill_tokens, blocks }.believed();
        self.tracker.loads_mut().set_peers(slot, peers, prefill_pairs as f64);
        true
    }

    /// Another replica sent a request of a session to a worker: the session is bound there, as if
    /// it had been sent from here. No effect where sessions have no worker.
    pub fn bind(&mut self, session: u64, worker: WorkerRank, now: Time) {
        self.now = self.now.max(now);
        if let Some(settings) = &self.settings.sessions {
            self.sessions.bind(session, worker, self.now, settings);
        }
    }

    /// Whether sessions have workers.
    pub fn binds_sessions(&self) -> bool {
        self.settings.sessions.is_some()
    }

    /// A page of at most `most` sessions with their workers, from position `from` on, first used
    /// first; `None` at the end. Sessions used between two pages may be missed or come twice.
    pub fn sessions(&self, from: usize, most: usize) -> Option<Vec<(u64, WorkerRank)>> {
        self.sessions.part(from, most)
    }

    /// Load booked here at a worker, less the prompt work that it should have done by `now`, to
    /// tell other replicas.
    pub fn booked(&self, worker: WorkerRank, now: Time) -> PeerLoad {
        let Some(slot) = self.fleet.slot(worker) else { return PeerLoad::default() };
        let (loads, speed) = (self.tracker.loads(), self.learner.speed(slot));
        let InFlight { requests, blocks, .. } = loads.booked(slot);
        let left = loads.own_backlog(slot, now.0.as_secs_f64(), &speed);
        let (prefill_tokens, prefill_pairs) = (left.tokens as u64, left.pairs as u64);
        PeerLoad { requests, prefill_tokens, prefill_pairs, blocks, ..PeerLoad::default() }
    }

    /// Chooses the workers for a request and books the request there.
    ///
    /// The same calls with the same arguments give the same answer.
    ///
    /// # Errors
    ///
    /// [`PickError`] says why no worker could be chosen; nothing is booked then.
    pub fn pick(
        &mut self,
        request: &PlacementRequest<'_>,
        now: Time,
        seed: u64,
    ) -> Result<Decision, PickError> {
        self.begin(request, now);
        let mut random = Random::new(seed);
        let whole = match self.select(request, Stage::Whole, &mut random) {
            Ok(whole) => whole,
            Err(alone) => return self.place_shared(request, alone, &mut random),
        };
        let candidates = std::mem::take(&mut self.scratch.candidates);
        let (split, pair) = self.split(request, whole, &mut random)?;
        let encode = self.encode(request, &mut random);
        let mut decision = self.place(request, whole, pair, encode);
        (decision.split, decision.candidates) = (split, candidates);
        Ok(decision)
    }

    /// Books a request at a worker of the caller's choice, where its session stays; the last [`Placement::survey`] must
    /// have been of the same request. `None` if the worker is not known.
    pub fn book(&mut self, request: &PlacementRequest<'_>, worker: WorkerRank) -> Option<Decision> {
        let slot = self.fleet.slot(worker)?;
        Some(self.place_surveyed(request, slot))
    }

    /// The request's prompt was computed at `at`, which may be a moment ago: its first token came,
    /// or what it was computed for has come from there. False if the booking has ended.
    pub fn prefill_done(&mut self, booking: BookingId, at: Time) -> bool {
        self.now = self.now.max(at);
        self.tracker.prefill_done(booking, at, &mut self.learner)
    }

    /// Notes that the prompt was computed, in a time that says nothing of the worker because others
    /// took part. False if the booking has ended.
    pub fn prefill_over(&mut self, booking: BookingId, at: Time) -> bool {
        self.now = self.now.max(at);
        self.tracker.prefill_over(booking, at)
    }

    /// The request's answer fills one more block. False if the booking has ended.
    pub fn output_block(&mut self, booking: BookingId, now: Time) -> bool {
        self.output_tokens(booking, self.settings.block_size.get(), now)
    }

    /// The request's answer has so many more tokens. False if the booking has ended.
    pub fn output_tokens(&mut self, booking: BookingId, tokens: u32, now: Time) -> bool {
        self.now = self.now.max(now);
        self.tracker.output(booking, tokens, self.now, &mut self.learner)
    }

    /// The KV of so many blocks went from one worker to another and took so long.
    pub fn transferred(&mut self, from: WorkerRank, to: WorkerRank, blocks: u32, took: Duration) {
        if let Some((from, to)) = self.fleet.slot(from).zip(self.fleet.slot(to)) {
            self.learner.transferred(from, to, f64::from(blocks), took.as_secs_f64());
        }
    }

    /// Learns the time of a KV hand-over: the first token of a decision's worker came `took` after
    /// another worker had computed the prompt. The predicted time of one step is taken off; at
    /// least a tenth of `took` counts as the transfer.
    ///
    /// Returns the learnt time; `None` if no other worker computed the prompt, or one of the two
    /// has gone.
    pub fn handed_over(
        &mut self,
        decision: &Decision,
        took: Duration,
        now: Time,
    ) -> Option<Duration> {
        self.now = self.now.max(now);
        // What it waited for the KV says nothing of its steps.
        self.tracker.goes_on(decision.booking, self.now);
        let from = self.fleet.slot(decision.prefill.as_ref()?.worker)?;
        let to = self.fleet.slot(decision.worker)?;
        let InFlight { requests, blocks, .. } = self.tracker.loads().total(to);
        let step = self.learner.speed(to).step(requests as f64, blocks as f64);
        let step = Duration::try_from_secs_f64(step).unwrap_or_default();
        let way = took.saturating_sub(step).max(took / 10);
        let blocks = f64::from(decision.moved_blocks);
        self.learner.transferred(from, to, blocks, way.as_secs_f64());
        Some(way)
    }

    /// The request ended, by completion, cancellation or failure. False if the booking has ended.
    pub fn release(&mut self, booking: BookingId) -> bool {
        let output_tokens = self.tracker.release(booking, self.now);
        output_tokens.map(|tokens| self.learner.answered(tokens)).is_some()
    }

    /// All places of a request end.
    pub fn release_all(&mut self, decision: &Decision) {
        for booking in decision.bookings() {
            self.release(booking);
        }
    }

    /// The request goes on at another worker, with what it has computed. False, and without
    /// effect, if the booking has ended or the worker is not known.
    pub fn moved(&mut self, booking: BookingId, worker: WorkerRank, now: Time) -> bool {
        self.now = self.now.max(now);
        let Some(slot) = self.fleet.slot(worker) else { return false };
        self.tracker.moved(booking, slot, self.now)
    }

    /// Ends bookings without news, old reports and old sessions by `now`; returns the number of
    /// bookings that ended.
    ///
    /// Every pick does so too: call it now and then if there are no picks. [`Blocks::expire`] ends
    /// predictions of workers' blocks.
    pub fn expire(&mut self, now: Time) -> u64 {
        self.now = self.now.max(now);
        self.sessions.expire(self.now);
        self.tracker.expire(self.now)
    }

    /// Changes when a worker counts as busy, from the next pick on.
    pub fn set_busy(&mut self, busy: BusyThresholds) {
        self.settings.busy = busy;
    }

    /// The settings.
    pub fn settings(&self) -> &PlacementSettings {
        &self.settings
    }

    /// The workers.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Load in flight at a worker: booked here and by other replicas, and the rest that it
    /// reported.
    pub fn in_flight(&self, worker: WorkerRank) -> InFlight {
        let slot = self.fleet.slot(worker);
        slot.map_or_else(InFlight::default, |slot| self.tracker.loads().total(slot))
    }

    #[cfg(test)]
    fn booked_at(&self, booking: BookingId) -> Option<WorkerRank> {
        self.tracker.slot(booking).map(|slot| self.fleet.row(slot).worker)
    }

    /// Learnt speed of a worker; all 0 before enough samples came.
    pub fn speed(&self, worker: WorkerRank) -> Option<Speed> {
        self.fleet.slot(worker).map(|slot| self.learner.speed(slot))
    }

    /// The workers' blocks, to be written and read without this placement.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// The index of the workers' blocks.
    pub fn index(&self) -> &Index {
        self.blocks.index()
    }

    /// Until when a worker is taken to hold a prompt that it is sent at `now`, for
    /// [`Blocks::predict`]; `None` where its events are enough.
    pub fn prediction_end(&mut self, worker: WorkerRank, now: Time) -> Option<Time> {
        self.now = self.now.max(now);
        let Worker { publishes_events, .. } = self.fleet.worker(worker)?.worker;
        let ttl = match publishes_events {
            true => self.settings.early_prediction_ttl,
            false => Some(self.settings.prediction_ttl),
        };
        ttl.map(|ttl| self.now.after(ttl))
    }

    /// Counts for metrics.
    pub fn stats(&self) -> PlacementStats {
        let index = self.blocks.index().stats();
        PlacementStats {
            workers: self.fleet.len(),
            index_blocks: index.held,
            predicted_blocks: index.predicted,
            dropped_blocks: index.dropped,
            index_bytes: index.bytes,
            ignored_events: self.blocks.ignored_events(),
            bookings: self.tracker.bookings(),
            expired_bookings: self.tracker.expired(),
            sessions: self.sessions.len(),
        }
    }

    /// The slot is for another worker, or another life of one.
    fn empty(&mut self, slot: u32) {
        self.tracker.clear(slot, self.now);
        self.learner.forget(slot);
    }

    /// Prepares a decision: expires old state, counts the arrival, and looks up the prompt.
    fn begin(&mut self, request: &PlacementRequest<'_>, now: Time) {
        self.expire(now);
        self.learner.arrived(self.now.0.as_secs_f64());
        self.look_up(request);
    }
}

#[cfg(test)]
mod tests;
