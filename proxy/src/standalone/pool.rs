//! The workers that serve one model, and the placement that chooses among them.

use super::early::Early;
use super::entrance::{Entrance, Prompt};
use super::place::Place;
use super::pools::PoolSettings;
use super::state::State;
use parking_lot::Mutex;
use stator_events::KvSink;
use stator_fleet::AgentClient;
use stator_fleet::Members;
use stator_gate::{Admission, AdmitError, Gate};
use stator_peers::PoolLink;
use stator_placement::{
    Blocks, Candidate, Decision, PeerLoad, PickError, Placement, PlacementRequest,
    PlacementSettings, PlacementStats, SeedSequence, Time, Worker,
};
use stator_protos::discovery::ModelRecord;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use stator_queue::QueueEntry;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time for which a worker that lost a request gets no new ones, unless discovery or its connection
/// clear it earlier.
pub(crate) const SUSPICION: Duration = Duration::from_secs(1);

/// Target of the log lines that say why requests went where they did, a line for each candidate, at
/// level debug.
const DECISIONS: &str = "stator_decisions";

/// The workers of one model.
pub(crate) struct Pool {
    record: ModelRecord,
    pub(crate) block_size: NonZeroU32,
    pub(crate) state: Mutex<State>,
    /// Blocks of the workers, updated and read without the lock.
    blocks: Arc<Blocks>,
    /// Queue of requests that no worker can take yet.
    pub(crate) gate: Gate<Entrance>,
    /// Whether answers count for whose turn it is.
    pub(crate) charges_answers: bool,
    /// Longest wait of requests that come while no worker is there.
    pub(crate) worker_wait: Duration,
    /// Time for which the adapters of workers that left are still known.
    linger: Duration,
    start: Instant,
    seeds: SeedSequence,
    /// Outbox for other replicas: it tells them the load and prompts sent from here.
    shared: OnceLock<PoolLink>,
    /// Their reports on workers that are not known here yet.
    early: Early,
    /// Changes of what is in flight from here, counted while that is shared.
    changes: AtomicU64,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool without workers. `None` if the record's block size is 0.
    pub(super) fn new(record: ModelRecord, settings: &PoolSettings) -> Option<Arc<Self>> {
        let PoolSettings { placement, queue, seed, worker_wait, adapter_linger } = settings;
        let block_size = NonZeroU32::new(record.block_size)?;
        let placement = Placement::new(PlacementSettings { block_size, ..placement.clone() });
        let blocks = placement.blocks().clone();
        let state = State::new(placement);
        let (start, seeds) = (Instant::now(), SeedSequence::new(*seed));
        let (worker_wait, linger) = (*worker_wait, *adapter_linger);
        let policies = queue.bands.iter().map(|band| band.policy);
        let charges_answers = policies
            .chain([queue.default_band, queue.default_negative_band])
            .any(|policy| policy.fairness.counts_answers());
        let state = Mutex::new(state);
        Some(Arc::new_cyclic(|pool| {
            let gate = Gate::new(Entrance(pool.clone()), queue.clone());
            let (shared, early, changes) = Default::default();
            Self {
                record,
                block_size,
                state,
                blocks,
                gate,
                charges_answers,
                worker_wait,
                linger,
                start,
                seeds,
                shared,
                early,
                changes,
            }
        }))
    }

    /// The model, as all of its agents describe it.
    pub(crate) fn record(&self) -> &ModelRecord {
        &self.record
    }

    /// Tokens per KV block.
    pub(crate) fn block_size(&self) -> NonZeroU32 {
        self.block_size
    }

    /// Gets a request its place: at once where nobody waits and a worker takes it, else when its
    /// turn has come. Where no worker is there, the request waits for one that comes back.
    ///
    /// # Errors
    ///
    /// [`AdmitError`]: it may not wait, has waited too long, or can never be placed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait, or the place if that was granted meanwhile.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        entry: QueueEntry<Prompt>,
    ) -> Result<Admission<Place>, AdmitError<PickError>> {
        let flow = entry.flow;
        let mut admitted = self.gate.admit(entry).await?;
        admitted.place.payer = Some((admitted.band, flow));
        Ok(admitted)
    }

    /// The deadline of an entry that may wait so long from now on.
    pub(crate) fn deadline(&self, ttl: Duration) -> Duration {
        self.gate.now().saturating_add(ttl)
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.gate.waiting()
    }

    /// Chooses the workers for a request and books the request there, until the place is dropped.
    ///
    /// # Errors
    ///
    /// [`PickError`] says why no worker could be chosen.
    pub(crate) fn place(
        self: &Arc<Self>,
        request: &PlacementRequest<'_>,
    ) -> Result<Place, PickError> {
        let seed = self.seeds.next_seed();
        let found = self.blocks.look_up(request.sequence);
        let sequence = request.sequence;
        let logged = tracing::enabled!(target: DECISIONS, tracing::Level::DEBUG);
        let explain = logged || request.explain;
        let request = PlacementRequest { overlaps: Some(&found), explain, ..*request };
        let mut state = self.state.lock();
        let decision = state.placement.pick(&request, self.now(), seed)?;
        let Some(client) = state.client(decision.worker).cloned() else {
            // Members and the placement's workers change together, under the lock.
            state.placement.release_all(&decision);
            return Err(PickError::NoWorkers);
        };
        let prefill = decision.prefill.as_ref();
        let prefill = prefill.and_then(|leg| state.client(leg.worker).cloned());
        let kept = if prefill.is_none() { state.kept(decision.split) } else { None };
        drop(state);
        if logged {
            explained(&self.record.name, &decision);
        }
        self.blocks.sent(&decision, sequence);
        self.tell(&decision, sequence, request.session);
        Ok(Place { pool: self.clone(), decision, client, prefill, kept, payer: None })
    }

    /// Tells other replicas what is sent from now on. Once; a second call has no effect.
    pub(crate) fn share(&self, shared: PoolLink) {
        // The first stays: there is one outbox for the life of the process.
        let _ = self.shared.set(shared);
    }

    /// Other replicas are to be told where a prompt goes, as far as that is not left to events.
    fn tell(&self, decision: &Decision, sequence: &[SequenceHash], session: Option<u64>) {
        let Some(link) = self.shared.get() else { return };
        let legs = decision.prefill.iter().chain(&decision.encode);
        let legs = legs.map(|leg| (leg.worker, leg.holds_until));
        for (worker, until) in legs.chain([(decision.worker, decision.holds_until)]) {
            if until.is_some() {
                link.outbox.sent(link.id, worker, sequence);
            }
        }
        link.bound(session, decision.worker);
        self.changed();
    }

    /// Counts a change of the load from here, and wakes the sender to other replicas.
    pub(crate) fn changed(&self) {
        if let Some(shared) = self.shared.get() {
            self.changes.fetch_add(1, Ordering::AcqRel);
            shared.outbox.stir();
        }
    }

    /// Changes of the load from here, counted while it is shared.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The load in flight from here, worker by worker.
    pub(crate) fn booked(&self) -> Vec<(WorkerRank, PeerLoad)> {
        let (now, state) = (self.now(), self.state.lock());
        let workers = state.placement.fleet().workers().map(|state| state.worker.worker);
        workers.map(|worker| (worker, state.placement.booked(worker, now))).collect()
    }

    /// Sets the load that all other replicas together have in flight at these workers.
    pub(crate) fn set_others(&self, others: &[(WorkerRank, PeerLoad)]) {
        let mut state = self.state.lock();
        for (worker, load) in others {
            state.placement.set_peers(*worker, *load);
        }
    }

    /// Another replica sent a prompt to a worker.
    pub(crate) fn sent_elsewhere(&self, worker: WorkerRank, sequence: &[SequenceHash]) {
        let mut state = self.state.lock();
        if state.client(worker).is_none() {
            // Under the lock, so that it cannot be found in between.
            return self.early.keep(worker, sequence);
        }
        let until = state.placement.prediction_end(worker, self.now());
        drop(state);
        if let Some(until) = until {
            self.blocks.predict(worker, sequence, until);
        }
    }

    /// Other replicas sent requests of these sessions to a worker, which may not be known yet.
    pub(crate) fn bound_elsewhere(&self, worker: WorkerRank, sessions: &[SequenceHash]) {
        let (now, mut state) = (self.now(), self.state.lock());
        sessions.iter().for_each(|session| state.placement.bind(session.0, worker, now));
    }

    /// Whether sessions have workers.
    pub(crate) fn binds_sessions(&self) -> bool {
        self.state.lock().placement.binds_sessions()
    }

    /// A part of the sessions and their workers, see [`Placement::sessions`].
    pub(crate) fn sessions(
        &self,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        let part = self.state.lock().placement.sessions(from, most)?;
        Some(part.into_iter().map(|(session, worker)| (worker, SequenceHash(session))).collect())
    }

    /// A part of what workers are taken to hold because of what they were sent, see
    /// [`stator_placement::Index::predictions`].
    pub(crate) fn predictions(
        &self,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        self.blocks.index().predictions(from, most)
    }

    /// A request was lost at this worker: it gets no new ones for a moment.
    pub(crate) fn suspect(&self, worker: WorkerRank) {
        let now = Instant::now();
        self.state.lock().suspect(worker, now, now + SUSPICION);
    }

    /// Whether a worker that answers requests has this LoRA adapter loaded, or had until it left a
    /// moment ago.
    pub(crate) fn has_adapter(&self, name: &str) -> bool {
        self.state.lock().has_adapter(name, Instant::now())
    }

    /// Names of all such adapters, in order.
    pub(crate) fn adapters(&self) -> Vec<Arc<str>> {
        self.state.lock().adapters(Instant::now())
    }

    /// Sends all requests away that wait: the model is forgotten, or is another one now.
    pub(crate) fn close(&self) {
        self.gate.close();
    }

    /// Workers that take requests now.
    pub(crate) fn accepting(&self) -> usize {
        let state = self.state.lock();
        state.placement.fleet().workers().filter(|state| state.worker.accepting).count()
    }

    /// Counts for metrics.
    pub(crate) fn stats(&self) -> PlacementStats {
        self.state.lock().placement.stats()
    }

    /// Blocks of the prompt's start that a worker is known to hold.
    #[cfg(test)]
    pub(super) fn overlap(self: &Arc<Self>, worker: WorkerRank, sequence: &[SequenceHash]) -> u32 {
        let request =
            PlacementRequest { sequence, pinned: Some(worker), ..PlacementRequest::default() };
        self.place(&request).map_or(0, |place| place.decision().overlap_blocks)
    }

    /// Blocks that a worker reported, in no order.
    #[cfg(test)]
    pub(super) fn held(&self, worker: WorkerRank) -> Vec<(SequenceHash, Medium)> {
        let held = self.state.lock().placement.index().held_by(&[worker]);
        held.into_iter().flatten().flat_map(|held| held.blocks).collect()
    }

    /// Keeps what is known of the workers' blocks in order, for as long as it runs.
    pub(crate) async fn maintain(self: Arc<Self>) {
        /// Time between two passes.
        const PAUSE: Duration = Duration::from_millis(250);
        let mut tick = tokio::time::interval(PAUSE);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let pool = self.clone();
            // Some of it takes milliseconds, for which no request is to wait.
            let maintained = tokio::task::spawn_blocking(move || {
                pool.blocks.expire(pool.now());
                pool.early.expire(Instant::now());
                while pool.blocks.maintain() {}
            });
            if let Err(error) = maintained.await {
                tracing::error!(%error, "what is known of blocks was not kept in order");
            }
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.start.elapsed())
    }
}

/// Says why a request goes where it does, a line for each worker that could have had it.
fn explained(model: &str, decision: &Decision) {
    let Decision { worker, reason, split, .. } = decision;
    let prefill = decision.prefill.as_ref().map(|leg| leg.worker.to_string());
    tracing::debug!(target: DECISIONS, model, %worker, ?reason, ?prefill, ?split, "placed");
    for candidate in &decision.candidates {
        let Candidate { worker, overlap, active_blocks, in_flight, score, predicted } = candidate;
        tracing::debug!(
            target: DECISIONS,
            model, %worker, ?overlap, active_blocks, ?in_flight, ?score, ?predicted, "candidate"
        );
    }
}

impl Members for Pool {
    fn join(&self, worker: Worker, client: &Arc<AgentClient>) -> bool {
        let entered = self.state.lock().enter(worker, client, Instant::now());
        if entered {
            for sequence in self.early.take(worker.worker) {
                self.sent_elsewhere(worker.worker, &sequence);
            }
            self.changed();
            self.gate.kick();
        }
        entered
    }

    fn leave(&self, worker: WorkerRank, client: &Arc<AgentClient>) {
        self.state.lock().leave(worker, client, Instant::now() + self.linger);
        self.changed();
        // Whoever waited for this worker goes elsewhere.
        self.gate.kick();
    }

    /// Ends suspicions that are over, and bookings that nobody renews.
    fn refresh(&self, workers: &mut dyn Iterator<Item = WorkerRank>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        for worker in workers {
            state.refresh(worker, now);
        }
        let expired = state.placement.expire(self.now());
        drop(state);
        if expired > 0 {
            self.changed();
        }
        self.gate.kick();
    }

    fn load(&self, worker: WorkerRank, generation: Generation, load: Load) {
        self.state.lock().placement.report_load(worker, generation, load);
        self.gate.kick();
    }
}

impl KvSink for Pool {
    fn apply(&self, worker: WorkerRank, generation: Generation, events: &[KvEvent]) {
        self.blocks.apply(worker, generation, events);
    }

    fn replace(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: Vec<(SequenceHash, Medium)>,
    ) {
        self.blocks.replace(worker, generation, blocks);
    }

    fn unknown(&self, worker: WorkerRank) {
        self.blocks.unknown(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_whose_blocks_have_no_tokens_has_no_pool() {
        let settings = PoolSettings::default();
        let pool = |block_size| {
            let (name, context_length, vocab_size) = ("m".into(), 4096, 1000);
            let record = ModelRecord { name, context_length, block_size, vocab_size };
            Pool::new(record, &settings).map(|pool| pool.block_size().get())
        };
        assert_eq!((pool(0), pool(16)), (None, Some(16)));
    }
}
