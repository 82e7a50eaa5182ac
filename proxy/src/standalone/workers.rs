//! The workers of a pool: what they hold and run, and the choice among them.

use super::early::EarlyReports;
use super::glance;
use super::no_split::NoSplitReason;
use super::state::{Answering, PoolState};
use parking_lot::Mutex;
use stator_fleet::AgentClient;
use stator_peers::PoolLink;
use stator_placement::{
    Blocks, Candidate, Decision, PeerLoad, PickError, Placement, PlacementRequest, PlacementStats,
    PrefixSources, SeedSequence, Time, Worker,
};
use stator_protos::hash::SequenceHash;
use stator_protos::worker::KvHolder;
use stator_protos::{WorkerRank, holders};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time for which a worker that lost a request gets no new ones, unless discovery or its connection
/// clear it earlier.
const SUSPICION: Duration = Duration::from_secs(1);

/// Target of the log lines that say why requests went where they did, a line for each candidate, at
/// level debug.
const DECISIONS: &str = "stator_decisions";

/// The workers of one model, and the placement that chooses among them.
pub(crate) struct PoolWorkers {
    /// The model's name, for the log.
    model: String,
    /// Tokens of a block, for the log.
    block_tokens: u32,
    pub(crate) state: Mutex<PoolState>,
    /// Blocks of the workers, updated and read without the lock.
    pub(crate) blocks: Arc<Blocks>,
    /// Time for which the adapters of workers that left are still known.
    linger: Duration,
    start: Instant,
    seeds: SeedSequence,
    /// Link to other replicas, which are told the load and prompts sent from here.
    link: OnceLock<PoolLink>,
    /// Their reports on workers that are not known here yet.
    early: EarlyReports,
    /// Changes of what is in flight from here, counted while that is shared.
    changes: AtomicU64,
}

/// The workers at which a request was booked.
pub(crate) struct BookedWorkers {
    pub(crate) decision: Decision,
    pub(crate) client: Arc<AgentClient>,
    /// Client of the worker that computes the prompt, if that is another.
    pub(crate) prefill: Option<Arc<AgentClient>>,
    /// Agents that lend the worker's agent leading blocks of the prompt.
    pub(crate) holders: Vec<KvHolder>,
    pub(crate) no_split: Option<NoSplitReason>,
}

impl std::fmt::Debug for PoolWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolWorkers").field("model", &self.model).finish_non_exhaustive()
    }
}

impl PoolWorkers {
    /// No workers yet. `linger` is how long the adapters of workers that left are still known.
    pub(crate) fn new(model: String, placement: Placement, linger: Duration, seed: u64) -> Self {
        let (blocks, block_tokens) = (placement.blocks().clone(), placement.block_tokens());
        let (link, early, changes) = Default::default();
        Self {
            model,
            block_tokens,
            state: Mutex::new(PoolState::new(placement)),
            blocks,
            linger,
            start: Instant::now(),
            seeds: SeedSequence::new(seed),
            link,
            early,
            changes,
        }
    }

    /// Chooses the workers for a request and books the request there, until it is released.
    ///
    /// # Errors
    ///
    /// [`PickError`] says why no worker could be chosen.
    pub(crate) fn book(&self, request: &PlacementRequest<'_>) -> Result<BookedWorkers, PickError> {
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
        let holders = decision.holders.iter().filter_map(|holder| {
            let address = state.client(holder.worker)?.profile().kv_transfer.clone()?;
            Some(KvHolder { address, blocks: holder.blocks })
        });
        let holders: Vec<_> = holders.collect();
        let no_split = if prefill.is_none() { state.no_split(decision.split) } else { None };
        drop(state);
        if logged {
            self.explained(&decision, request.prompt_tokens, &holders);
        }
        self.blocks.sent(&decision, sequence);
        self.tell(&decision, sequence, request.session);
        Ok(BookedWorkers { decision, client, prefill, holders, no_split })
    }

    /// Gives back what was booked for a request.
    pub(crate) fn release(&self, decision: &Decision) {
        self.state.lock().placement.release_all(decision);
        self.changed();
    }

    /// Releases the prefill worker: `as_planned` is how long ago prefill ended, `None` if it failed.
    pub(crate) fn prefilled(&self, decision: &Decision, as_planned: Option<Duration>) {
        let now = self.now();
        let mut state = self.state.lock();
        if let Some(leg) = &decision.prefill {
            if let Some(ago) = as_planned {
                let done = Time(now.0.saturating_sub(ago));
                state.placement.prefill_done(leg.booking, done);
            } else {
                let now = Instant::now();
                state.suspect(leg.worker, now, now + SUSPICION);
            }
            state.placement.release(leg.booking);
        }
        state.placement.prefill_done(decision.booking, now);
        drop(state);
        self.changed();
    }

    /// Records that the first token came `took` after the prefill worker had computed the prompt.
    /// Returns the part of `took` that the KV travelled; `None` if no other worker computed the
    /// prompt, or one of the two workers has gone.
    pub(crate) fn handed_over(&self, decision: &Decision, took: Duration) -> Option<Duration> {
        let now = self.now();
        self.state.lock().placement.handed_over(decision, took, now)
    }

    /// The answer to a request filled one more block.
    pub(crate) fn output_block(&self, decision: &Decision) {
        self.state.lock().placement.output_block(decision.booking, self.now());
        self.changed();
    }

    /// Tells other replicas what is sent from now on. Once; a second call has no effect.
    pub(crate) fn share(&self, link: PoolLink) {
        // The first stays: there is one outbox for the life of the process.
        let _ = self.link.set(link);
    }

    /// Other replicas are to be told where a prompt goes, as far as that is not left to events.
    fn tell(&self, decision: &Decision, sequence: &[SequenceHash], session: Option<u64>) {
        let Some(link) = self.link.get() else { return };
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
        if let Some(link) = self.link.get() {
            self.changes.fetch_add(1, Ordering::AcqRel);
            link.outbox.stir();
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

    /// Whether a worker that answers requests makes vectors of prompts.
    pub(crate) fn embeds(&self) -> bool {
        self.state.lock().embeds()
    }

    /// Whether a worker that answers requests makes the probabilities of classes of prompts.
    pub(crate) fn classifies(&self) -> bool {
        self.state.lock().classifies()
    }

    /// Whether the workers' engines answer prompts.
    pub(crate) fn answering(&self) -> Answering {
        self.state.lock().answering()
    }

    /// All workers at a glance, in order.
    pub(super) fn glance(&self) -> Vec<serde_json::Value> {
        self.state.lock().placement.fleet().workers().map(glance::worker).collect()
    }

    /// Whether a worker that answers ends thoughts that are too long.
    pub(crate) fn bounds_thoughts(&self) -> bool {
        self.state.lock().bounds_thoughts()
    }

    /// Whether a worker that answers keeps prompts cached for a time.
    pub(crate) fn pins(&self) -> bool {
        self.state.lock().pins()
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

    /// A worker is there, or something about it changed. False if another agent has it.
    pub(crate) fn join(&self, worker: Worker, client: &Arc<AgentClient>) -> bool {
        let entered = self.state.lock().enter(worker, client, Instant::now());
        if entered {
            for sequence in self.early.take(worker.worker) {
                self.sent_elsewhere(worker.worker, &sequence);
            }
            self.changed();
        }
        entered
    }

    /// A worker is gone, unless another agent has it.
    pub(crate) fn leave(&self, worker: WorkerRank, client: &Arc<AgentClient>) {
        self.state.lock().leave(worker, client, Instant::now() + self.linger);
        self.changed();
    }

    /// Ends suspicions that are over, and bookings that nobody renews.
    pub(crate) fn refresh(&self, workers: &mut dyn Iterator<Item = WorkerRank>) {
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
    }

    /// Keeps what is known of the workers' blocks in order, for as long as it runs.
    pub(crate) async fn maintain(self: Arc<Self>) {
        /// Time between two passes.
        const PAUSE: Duration = Duration::from_millis(250);
        let mut tick = tokio::time::interval(PAUSE);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let workers = self.clone();
            // Some of it takes milliseconds, for which no request is to wait.
            let maintained = tokio::task::spawn_blocking(move || {
                workers.blocks.expire(workers.now());
                workers.early.expire(Instant::now());
                while workers.blocks.maintain() {}
            });
            if let Err(error) = maintained.await {
                tracing::error!(%error, "what is known of blocks was not kept in order");
            }
        }
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed())
    }

    /// Says why a request goes where it does and where its prompt will come from, a line for each worker
    /// that could have had it.
    fn explained(&self, decision: &Decision, prompt_tokens: u32, holders: &[KvHolder]) {
        let model = &self.model;
        let told = |prefix: &PrefixSources| prefix.of_prompt(prompt_tokens, self.block_tokens);
        let Decision { worker, reason, split, .. } = decision;
        let prefill = decision.prefill.as_ref().map(|leg| leg.worker.to_string());
        let prefix = told(&decision.sources);
        let holders = holders.iter().map(|holder| (&*holder.address, holder.blocks));
        let holders = holders::written(holders);
        tracing::debug!(
            target: DECISIONS,
            model, %worker, ?reason, ?prefill, ?split, %prefix, kv_holders = holders, "placed"
        );
        for candidate in &decision.candidates {
            let Candidate { worker, overlap, active_blocks, in_flight, score, .. } = candidate;
            let (prefix, predicted) = (told(&candidate.sources), candidate.predicted);
            tracing::debug!(
                target: DECISIONS,
                model, %worker, %prefix, ?overlap, active_blocks, ?in_flight, ?score, ?predicted,
                "candidate"
            );
        }
    }
}
