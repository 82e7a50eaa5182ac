//! One pool at run time: its view, its scheduler, its tokenizer. Everything that its endpoints
//! and its requests have to say comes together here, under one short lock.
//!
//! `proxy::standalone`'s pool is its sibling. They share what each can be without the other: blocks,
//! placement, gate and outbox. They differ in who decides under the lock (a scheduler of plug-ins
//! here), in who comes and goes (a watched view here, agents there), and in when a request ends.

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use stator_epp_metrics::{FlowSnapshot, PoolSnapshot};
use stator_epp_pool::PoolView;
use stator_epp_scheduler::plugin::RequestProgress;
use stator_epp_scheduler::{
    Call, Decision, EngineLoad, Equipment, Prefixes, Prompt, Request, ScheduleError, Scheduler,
    Time,
};
use stator_epp_signals::{LoadSink, SignalMetrics, WorkerSink};
use stator_events::KvSink;
use stator_model::Model;
use stator_peers::PoolLink;
use stator_placement::{SeedSequence, WorkerHoldings};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

/// A pool that takes requests.
pub struct Pool {
    name: String,
    /// Its name in metrics.
    label: String,
    view: watch::Receiver<Arc<PoolView>>,
    scheduler: Mutex<Scheduler>,
    /// Blocks that the endpoints hold; read and written without the lock.
    prefixes: Arc<Prefixes>,
    block_size: u32,
    tokenizer: ArcSwapOption<Model>,
    /// Outbox for news of requests to other replicas.
    shared: OnceLock<PoolLink>,
    /// Counters of the endpoints' signals.
    signals: OnceLock<SignalMetrics>,
    /// Queues in which requests wait for room in the pool, if they do.
    waiting: OnceLock<Weak<dyn WaitingRoom>>,
    /// LoRA adapters that some endpoint has spoken of.
    adapters: ArcSwap<FxHashSet<String>>,
    start: Instant,
    seeds: SeedSequence,
}

/// Queues in which requests wait for room in a pool.
pub(crate) trait WaitingRoom: Send + Sync {
    /// There may be room.
    fn kick(&self);
    /// Fill of the queues.
    fn snapshot(&self) -> FlowSnapshot;
}

impl Pool {
    /// A pool with its view and no other state. `name` is `namespace/name`; decisions differ by
    /// `seed`.
    pub fn new(
        name: String,
        view: watch::Receiver<Arc<PoolView>>,
        scheduler: Scheduler,
        seed: u64,
    ) -> Self {
        Self {
            label: name.rsplit('/').next().unwrap_or_default().to_owned(),
            name,
            view,
            block_size: scheduler.block_size(),
            prefixes: scheduler.prefixes().clone(),
            scheduler: Mutex::new(scheduler),
            tokenizer: ArcSwapOption::empty(),
            shared: OnceLock::new(),
            signals: OnceLock::new(),
            waiting: OnceLock::new(),
            adapters: ArcSwap::default(),
            start: Instant::now(),
            seeds: SeedSequence::new(seed),
        }
    }

    /// Lets metrics call the pool by its whole name: another pool has the same last part.
    pub(crate) fn by_whole_name(self) -> Self {
        Self { label: self.name.clone(), ..self }
    }

    /// `namespace/name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the pool in the metrics of the llm-d router: without the namespace, unless another
    /// pool of the process has the same one.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The present view of the pool.
    pub fn view(&self) -> Arc<PoolView> {
        self.view.borrow().clone()
    }

    /// The views of the pool, as they change.
    pub fn views(&self) -> watch::Receiver<Arc<PoolView>> {
        self.view.clone()
    }

    /// Tokens per KV block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The model's tokenizer, where there is one.
    pub fn tokenizer(&self) -> Option<Arc<Model>> {
        self.tokenizer.load_full()
    }

    /// Tokenizes with this from now on.
    pub fn set_tokenizer(&self, tokenizer: Option<Arc<Model>>) {
        self.tokenizer.store(tokenizer);
    }

    /// Whether a model is a LoRA adapter, as far as endpoints have said.
    pub fn is_adapter(&self, model: &str) -> bool {
        self.adapters.load().contains(model)
    }

    /// Whether picks would succeed: the endpoints are known, and one takes new requests. Where
    /// requests wait, those of an empty pool wait for its first endpoint, and have to come here.
    pub fn ready(&self) -> bool {
        let (synced, empty) = {
            let view = self.view.borrow();
            (view.synced, view.endpoints.is_empty())
        };
        let waits = empty && self.waiting.get().is_some();
        synced && (waits || self.with(|scheduler, _| scheduler.accepts()))
    }

    /// Whether there is no endpoint.
    pub fn is_empty(&self) -> bool {
        self.view.borrow().endpoints.is_empty()
    }

    /// Saturation of the pool, 1 and more is full; `None` without endpoints.
    pub(crate) fn saturation(&self) -> Option<f64> {
        self.with(|scheduler, now| {
            let mut endpoints = scheduler.endpoints();
            endpoints.next().is_some().then(|| scheduler.saturation(now))
        })
    }

    /// Requests that are in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.with(|scheduler, now| scheduler.stats(now).in_flight as u64)
    }

    /// Names the queues in which requests wait; they hear when there may be room. Once; a second
    /// call has no effect.
    pub(crate) fn wait_at(&self, room: Weak<dyn WaitingRoom>) {
        // The first stays: a pool has one flow control for the life of the process.
        let _ = self.waiting.set(room);
    }

    /// There may be room. Not to be called under the scheduler's lock.
    pub(crate) fn kick(&self) {
        if let Some(room) = self.waiting.get().and_then(Weak::upgrade) {
            room.kick();
        }
    }

    /// A number that differs from request to request.
    pub fn chance(&self) -> u64 {
        self.seeds.next_seed()
    }

    /// Chooses an endpoint and books the request there, with all candidates' scores if `scores`;
    /// `None` if the saturation is more than `most` by then. The caller reports the end of a
    /// `watched` request.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`] says why there is none.
    pub(crate) fn schedule(
        &self,
        request: &Request<'_>,
        watched: bool,
        scores: bool,
        most: f64,
    ) -> Option<Result<Decision, ScheduleError>> {
        let seed = self.chance();
        let found = self.prefixes.look_up(request.prompt.sequence);
        let prompt = Prompt { overlaps: Some(&found), ..request.prompt };
        let request = &Request { prompt, ..request.clone() };
        let (decision, changed) = self.change(|scheduler, now| {
            let fuller = most < f64::INFINITY && scheduler.saturation(now) > most;
            (!fuller).then(|| scheduler.schedule(request, Call { now, seed, watched, scores }))
        });
        if let Some(Ok(decision)) = &decision {
            self.goes_to(decision, request);
        }
        // Behind the prompt, so that replicas are told both at once.
        self.stir(changed);
        decision
    }

    /// Notes that workers are about to hold a prompt, and tells other replicas.
    fn goes_to(&self, decision: &Decision, request: &Request<'_>) {
        let sequence = request.prompt.sequence;
        for &(worker, until) in &decision.holders {
            self.prefixes.predict(worker, sequence, until);
        }
        let Some(link) = self.shared.get() else { return };
        let answers = decision.targets.first();
        let helpers = decision.others.iter().map(|(_, endpoint)| endpoint);
        for endpoint in answers.into_iter().chain(helpers) {
            link.outbox.sent(link.id, endpoint.worker, sequence);
        }
        if let Some(answers) = answers {
            link.bound(request.session, answers.worker);
        }
    }

    /// Whether sessions have endpoints of their own.
    pub(crate) fn binds_sessions(&self) -> bool {
        self.with(|scheduler, _| scheduler.binds_sessions())
    }

    /// Another replica sent requests of these sessions to an endpoint.
    pub(crate) fn bound(&self, worker: WorkerRank, sessions: &[SequenceHash]) {
        self.with(|scheduler, now| {
            sessions.iter().for_each(|session| scheduler.bind(session.0, worker, now));
        });
    }

    /// A page of the sessions and their endpoints.
    pub(crate) fn sessions(
        &self,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        let page = self.with(|scheduler, _| scheduler.sessions(from, most))?;
        Some(page.into_iter().map(|(session, worker)| (worker, SequenceHash(session))).collect())
    }

    /// Another replica sent a prompt to a worker.
    pub(crate) fn sent(&self, worker: WorkerRank, sequence: &[SequenceHash]) {
        let until = self.with(|scheduler, now| scheduler.prediction_end(worker, now));
        if let Some(until) = until {
            self.prefixes.predict(worker, sequence, until);
        }
    }

    /// The workers that report their blocks.
    pub(crate) fn tellers(&self) -> Vec<WorkerRank> {
        self.with(|scheduler, _| scheduler.tellers().collect())
    }

    /// Blocks that some of the workers reported, for each whose blocks are known.
    pub(crate) fn held_by(&self, workers: &[WorkerRank]) -> Vec<(WorkerRank, WorkerHoldings)> {
        self.prefixes.held_by(workers)
    }

    /// Takes over what another replica knows of a worker, where its own feed has not told.
    pub(crate) fn restore(&self, worker: WorkerRank, held: WorkerHoldings) -> bool {
        let expected = self.with(|scheduler, _| scheduler.expects(worker, held.generation));
        expected && self.prefixes.restore(worker, held)
    }

    /// A part of the blocks that workers count as holding because prompts were sent to them.
    pub(crate) fn predictions(
        &self,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        self.prefixes.predictions(from, most)
    }

    /// An answer's first byte came.
    pub fn first_token(&self, progress: &RequestProgress<'_>) {
        self.with(|scheduler, now| scheduler.first_token(progress, now));
        self.kick();
    }

    /// A watched request is over.
    pub fn ended(&self, progress: &RequestProgress<'_>) {
        self.with(|scheduler, now| scheduler.ended(progress, now));
        self.kick();
    }

    /// A decision that nobody acts on.
    pub fn give_back(&self, decision: &Decision) {
        self.ended(&RequestProgress {
            ticket: decision.ticket,
            output_tokens: None,
            cached_tokens: None,
            answered: false,
            served: None,
        });
    }

    /// Runs `work` with the scheduler and the present. Must be short. Other replicas hear of
    /// changes in the requests in flight.
    pub fn with<T>(&self, work: impl FnOnce(&mut Scheduler, Time) -> T) -> T {
        let (done, changed) = self.change(work);
        self.stir(changed);
        done
    }

    /// Runs `work`; the second result is whether requests in flight changed.
    fn change<T>(&self, work: impl FnOnce(&mut Scheduler, Time) -> T) -> (T, bool) {
        let now = self.now();
        let mut scheduler = self.scheduler.lock();
        let before = scheduler.own_version();
        let done = work(&mut scheduler, now);
        (done, scheduler.own_version() != before)
    }

    fn stir(&self, changed: bool) {
        if let Some(shared) = self.shared.get().filter(|_| changed) {
            shared.outbox.stir();
        }
    }

    /// Does what is due now and then: ends what has run out, and learns which adapters there are.
    pub fn tick(&self) {
        let adapters = self.with(|scheduler, now| {
            scheduler.expire(now);
            let loras = scheduler.endpoints().filter_map(|(_, load, _)| load.lora.as_ref());
            loras.flat_map(|lora| lora.running.iter().chain(&lora.waiting).cloned()).collect()
        });
        if **self.adapters.load() != adapters {
            self.adapters.store(Arc::new(adapters));
        }
        self.prefixes.expire(self.now());
        self.kick();
    }

    /// Takes the endpoints from the view as it is now.
    pub fn follow_view(&self) {
        let view = self.view();
        self.with(|scheduler, _| scheduler.set_endpoints(&view.endpoints));
        self.kick();
    }

    /// Tells other replicas what is sent from now on. Once; a second call has no effect.
    pub(crate) fn share(&self, shared: PoolLink) {
        // The first stays: there is one outbox for the life of the process.
        let _ = self.shared.set(shared);
    }

    /// Shows these counts as the pool's. Once; a second call has no effect.
    pub fn show(&self, signals: SignalMetrics) {
        // The first counts stay: signals are started once per pool.
        let _ = self.signals.set(signals);
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed())
    }
}

impl LoadSink for Pool {
    fn load(&self, worker: WorkerRank, load: &EngineLoad) {
        let load = EngineLoad { updated: Some(self.now()), ..load.clone() };
        self.with(|scheduler, _| scheduler.report(worker, load));
        self.kick();
    }

    /// Does nothing: a report carries its time, and its readers judge its age.
    fn load_unknown(&self, worker: WorkerRank) {
        tracing::debug!(pool = self.name, %worker, "the last load report of an endpoint is stale");
    }

    fn agent_equipment(&self, worker: WorkerRank, equipment: Equipment) {
        self.with(|scheduler, _| scheduler.set_equipment(worker, equipment));
    }

    fn agent_load(&self, worker: WorkerRank, generation: Generation, load: Load) {
        self.with(|scheduler, now| scheduler.report_agent(worker, generation, load, now));
        self.kick();
    }

    fn accepting(&self, worker: WorkerRank, accepting: bool) {
        self.with(|scheduler, _| scheduler.set_accepting(worker, accepting));
        self.kick();
    }
}

impl KvSink for Pool {
    fn apply(&self, worker: WorkerRank, generation: Generation, events: &[KvEvent]) {
        self.prefixes.apply(worker, generation, events);
    }

    fn replace(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: Vec<(SequenceHash, Medium)>,
    ) {
        self.prefixes.replace(worker, generation, blocks);
    }

    fn unknown(&self, worker: WorkerRank) {
        self.prefixes.unknown(worker);
    }
}

impl WorkerSink for Pool {
    fn life(&self, worker: WorkerRank, generation: Generation) {
        self.with(|scheduler, _| scheduler.set_life(worker, generation));
    }
}

impl stator_epp_metrics::PoolView for Pool {
    fn name(&self) -> &str {
        self.label()
    }

    fn snapshot(&self) -> PoolSnapshot {
        let signals = self.signals.get();
        PoolSnapshot {
            sources: signals.map(SignalMetrics::source).into_iter().collect(),
            feeds: signals.and_then(SignalMetrics::feeds),
            flow: self.waiting.get().and_then(Weak::upgrade).map(|room| room.snapshot()),
            ..self.with(|scheduler, now| PoolSnapshot::of(scheduler, now))
        }
    }
}

/// Keeps a pool's scheduler up to date with its view, until the view's source is gone.
pub async fn follow(pool: Arc<Pool>, mut changed: impl FnMut(&PoolView)) {
    /// Time between two turns of a pool's due work.
    const TICK: Duration = Duration::from_millis(500);
    let mut view = pool.view.clone();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    view.mark_changed();
    // What the index has to do takes milliseconds at times, for which no request is to wait.
    let mut sweep: Option<JoinHandle<()>> = None;
    loop {
        tokio::select! {
            news = view.changed() => match news {
                Ok(()) => {
                    let now = view.borrow_and_update().clone();
                    pool.follow_view();
                    changed(&now);
                }
                Err(_) => return,
            },
            _ = tick.tick() => {
                pool.tick();
                if sweep.as_ref().is_none_or(JoinHandle::is_finished) {
                    let pool = pool.clone();
                    sweep = Some(spawn_blocking(move || while pool.prefixes.maintain() {}));
                }
            }
        }
    }
}
