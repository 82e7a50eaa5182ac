//! Drives one engine: takes commands, steps it, and hands on what each step did.
//!
//! The driver owns the engine and everything about its requests; others send it commands and read
//! what it publishes. The loop is the same for every engine. One that computes runs it on a thread
//! of its own; one that simulates runs it as a task and waits where the other computes.

mod command;
pub(crate) mod guarded;
mod prompt;
mod status;
mod step_clock;
mod stream;

pub(crate) use command::{
    Command, OperationOrder, PrefillOrder, PrefillResult, Snapshot, Submission,
};
pub(crate) use status::Status;

use crate::events::WorkerFeed;
use crate::kv::fetch::{FetchResult, Pairing, PromptFetches, PromptOutcome};
use crate::kv::kept_prompts::KeptPrompts;
use crate::kv::tiers::WorkerTiers;
use crate::metrics::{AgentMetrics, Outcome, WorkerGauges};
use crate::request_plane::in_flight::Ticket;
use crate::request_plane::{trace, translate};
use guarded::GuardedEngine;
use rustc_hash::FxHashMap;
use stator_dialect::{Fault, Operation};
use stator_engine::{Engine, Request, RequestKey, Rest, Step};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::worker::{self, ErrorKind};
use stator_runtime::trace::Stages;
use std::sync::Arc;
use std::time::Duration;
use step_clock::StepClock;
use stream::Stream;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Commands that may wait for a driver; a submission beyond them is refused as overload.
pub(crate) const COMMANDS_MAX: usize = 8192;
/// Commands taken between two steps at most, so that a flood of them cannot stop the engine.
const COMMANDS_PER_STEP: usize = 1024;

/// A driver's outlets for reports.
pub(crate) struct Reporting {
    /// Outlet for events and load.
    pub(crate) feed: WorkerFeed,
    /// Shortest time between two load reports of a busy worker.
    pub(crate) load_interval: Duration,
    /// Counters of the agent.
    pub(crate) metrics: AgentMetrics,
    /// Gauges of this worker.
    pub(crate) gauges: WorkerGauges,
    /// Shown to others.
    pub(crate) status: Arc<Status>,
    /// Called once if the engine fails.
    pub(crate) on_death: Box<dyn FnOnce() + Send>,
}

/// Owner of one engine.
pub(crate) struct Driver {
    engine: GuardedEngine,
    rest: Rest,
    live: FxHashMap<RequestKey, Live>,
    streams: FxHashMap<u64, Stream>,
    /// Streams with something to send.
    touched: Vec<u64>,
    step: Step,
    feed: WorkerFeed,
    load_interval: Duration,
    load_reported: Option<Instant>,
    metrics: AgentMetrics,
    gauges: WorkerGauges,
    status: Arc<Status>,
    on_death: Option<Box<dyn FnOnce() + Send>>,
    kept: KeptPrompts,
    fetches: PromptFetches,
    tiers: Option<WorkerTiers>,
    /// Origin of the times of pins.
    origin: Instant,
}

/// A request that runs.
struct Live {
    request_id: u64,
    stream: u64,
    first_choice: u32,
    choices_left: u32,
    /// Outcome of its prompt at a prefill worker, reported with its next output.
    prefilled: PromptOutcome,
    /// Spans of the request on this worker.
    trace: Stages,
    /// Tokens of the prompt that its client has pinned, reported with its first output.
    pinned_tokens: Option<u32>,
    /// Whether the first token came.
    has_begun: bool,
    _ticket: Ticket,
}

impl Driver {
    pub(crate) fn new(engine: Box<dyn Engine>, reporting: Reporting, pairing: Pairing) -> Self {
        let kept = KeptPrompts::new(pairing.handovers.clone(), reporting.metrics.clone());
        Self {
            engine: GuardedEngine::new(engine),
            rest: Rest::Awake,
            live: FxHashMap::default(),
            streams: FxHashMap::default(),
            touched: Vec::new(),
            step: Step::default(),
            feed: reporting.feed,
            load_interval: reporting.load_interval,
            load_reported: None,
            metrics: reporting.metrics,
            gauges: reporting.gauges,
            status: reporting.status,
            on_death: Some(reporting.on_death),
            kept,
            fetches: PromptFetches::new(pairing),
            tiers: None,
            origin: Instant::now(),
        }
    }

    /// The driver of an engine that keeps blocks in these tiers, too.
    pub(crate) fn with_tiers(self, tiers: Option<WorkerTiers>) -> Self {
        Self { tiers, ..self }
    }

    /// Runs until nobody can send commands any more.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut clock = StepClock::default();
        self.report_load(Instant::now());
        loop {
            // The number is bounded, so that a flood of commands does not hold up running requests.
            for _ in 0..COMMANDS_PER_STEP {
                let Ok(command) = commands.try_recv() else { break };
                self.apply(command);
            }
            self.catch_up();
            if self.step() {
                clock.pass(self.step.duration).await;
                self.deliver();
                continue;
            }
            self.report_load(Instant::now());
            clock = StepClock::default();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.apply(command),
                    None => return,
                },
                () = self.fetches.news() => {}
                () = self.kept.news() => {}
                () = tier_news(self.tiers.as_ref()) => {}
            }
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(submission),
            Command::Cancel(keys) => self.cancel(&keys),
            Command::Snapshot(answer) => {
                let blocks = self.blocks();
                let next_sequence = self.feed.next_sequence();
                // Who asked may be gone; then nobody needs it.
                let generation = self.feed.generation();
                let _ = answer.send(Snapshot { generation, next_sequence, blocks });
            }
            Command::Prefill(mut order) => {
                self.pin(&mut order.request, &order.metadata);
                self.hint(&mut order.request, &order.metadata);
                self.kept.begin(&mut self.engine, self.rest, order);
            }
            Command::Operate(OperationOrder { operation, answer }) => {
                let _ = answer.send(self.operate(&operation));
            }
        }
        self.end_if_failed();
        self.flush();
    }

    fn operate(&mut self, operation: &Operation) -> Result<(), Fault> {
        let done = match (operation, self.rest) {
            (Operation::ResetCache, _) => self.reset_cache(),
            (Operation::Sleep { level: 1 }, _) => self.rest(Rest::Asleep),
            (Operation::Pause, Rest::Asleep) => Some(()),
            (Operation::Pause, _) => self.rest(Rest::Paused),
            (Operation::Resume, Rest::Asleep) => {
                return Err(Fault::Invalid("the engine is asleep: wake it".into()));
            }
            (Operation::Wake, Rest::Paused) => {
                return Err(Fault::Invalid("the engine is paused: resume it".into()));
            }
            (Operation::Resume | Operation::Wake, _) => self.rest(Rest::Awake),
            (other, _) => return Err(Fault::Unsupported(format!("this engine has no {other:?}"))),
        };
        done.ok_or_else(|| Fault::Failed("the engine has failed".into()))
    }

    /// Forgets all blocks, on the device and in the tiers.
    fn reset_cache(&mut self) -> Option<()> {
        self.guarded(|engine| engine.reset_cache())?;
        if let Some(tiers) = &self.tiers {
            tiers.clear();
        }
        Some(())
    }

    /// Blocks as the events so far tell: each once, and where it is at the nearest.
    fn blocks(&mut self) -> Vec<(SequenceHash, Medium)> {
        if let Some(tiers) = &self.tiers {
            return tiers.blocks();
        }
        let blocks = self.guarded(|engine| engine.blocks()).unwrap_or_default();
        blocks.into_iter().map(|block| (block, Medium::Device)).collect()
    }

    fn rest(&mut self, rest: Rest) -> Option<()> {
        self.rest = rest;
        self.guarded(|engine| engine.rest(rest))
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { mut request, request_id, mut metadata, outbox, ticket } = submission;
        let trace = trace::request("worker.generate", &request, &metadata);
        if let Some((traceparent, tracestate)) = trace.headers() {
            // Another worker that computes the prompt does so on behalf of this one.
            (metadata.traceparent, metadata.tracestate) =
                (traceparent, tracestate.unwrap_or_default());
        }
        let key = request.key;
        let live = Live {
            request_id,
            stream: outbox.id(),
            first_choice: request.first_choice,
            choices_left: request.choices,
            prefilled: PromptOutcome::default(),
            trace,
            pinned_tokens: None,
            has_begun: false,
            _ticket: ticket,
        };
        let stream = self.streams.entry(live.stream).or_insert_with(|| Stream::new(outbox));
        stream.live += 1;
        self.live.insert(key, live);
        if self.rest != Rest::Awake {
            return self.fail(key, ErrorKind::Overloaded, translate::RESTING.into());
        }
        if let Some(lora) = &metadata.lora {
            let message = format!("lora_name: {lora:?} is not served here");
            return self.fail(key, ErrorKind::Invalid, message);
        }
        let pinned_tokens = self.pin(&mut request, &metadata);
        if let Some(live) = self.live.get_mut(&key) {
            live.pinned_tokens = pinned_tokens;
        }
        match metadata.prefill.clone() {
            Some(peer) => self.fetch_prompt(request, &metadata, peer),
            None => {
                self.hint(&mut request, &metadata);
                self.run_request(request);
            }
        }
    }

    /// Goes on with what came of a prompt.
    fn fetched(&mut self, key: RequestKey, result: FetchResult) {
        let finished = self.fetches.finish(key, result);
        let Some((request, outcome)) = finished else { return };
        if let Some(live) = self.live.get_mut(&key) {
            live.prefilled = outcome;
        }
        self.run_request(request);
    }

    fn run_request(&mut self, request: Request) {
        let key = request.key;
        self.enter(key, "prefill");
        match self.guarded(|engine| engine.submit(request)) {
            Some(Ok(())) => {}
            Some(Err(refusal)) => {
                let (kind, message) = translate::refusal(refusal);
                self.fail(key, kind, message);
            }
            // The engine had failed before; otherwise its failure has ended this request too.
            None => self.fail(key, ErrorKind::Internal, "the engine has failed".into()),
        }
    }

    /// Begins a stage of a request in its trace.
    fn enter(&self, key: RequestKey, stage: &'static str) {
        if let Some(live) = self.live.get(&key) {
            live.trace.enter(stage);
        }
    }

    fn cancel(&mut self, keys: &[RequestKey]) {
        for &key in keys {
            if let Some(live) = self.live.get(&key) {
                let end = translate::cancelled(live.request_id, live.first_choice);
                self.end(key, end, Outcome::cancelled);
            }
            self.fetches.cancel(key);
            self.kept.give_up(key);
            self.guarded(|engine| engine.cancel(key));
        }
    }

    /// Ends a request with an error; nothing if it has ended already.
    fn fail(&mut self, key: RequestKey, kind: ErrorKind, message: String) {
        if let Some(live) = self.live.get(&key) {
            live.trace.fail(&message);
            let end = translate::failure(live.request_id, live.first_choice, kind, message);
            self.end(key, end, kind.into());
        }
    }

    fn end(&mut self, key: RequestKey, last: worker::Output, outcome: Outcome) {
        let Some(live) = self.live.remove(&key) else { return };
        self.metrics.ended(outcome);
        if let Some(stream) = self.streams.get_mut(&live.stream) {
            stream.touch(&mut self.touched, live.stream);
            stream.outputs.push(last);
            stream.ended.push(live.request_id);
            stream.live -= 1;
        }
    }

    /// Takes note of KV that came, hands KV out, and forgets what nobody has read.
    fn catch_up(&mut self) {
        loop {
            let ended = self.fetches.next();
            // After the look at the end, because what a fetch brought was there before it ended.
            self.fetches.import(&mut self.engine);
            self.end_if_failed();
            let Some((key, result)) = ended else { break };
            self.fetched(key, result);
        }
        let now = self.origin.elapsed();
        self.guarded(|engine| engine.kv().unpin(now));
        let mut gone = self.kept.serve(&mut self.engine);
        self.end_if_failed();
        gone.extend(self.kept.expired(Instant::now()));
        self.cancel(&gone);
        self.flush();
    }

    /// Runs one engine step; false when there was nothing to do.
    fn step(&mut self) -> bool {
        let mut step = std::mem::take(&mut self.step);
        step.clear();
        let begun = std::time::Instant::now();
        let stepped = self.guarded(|engine| {
            engine.step(&mut step);
            step
        });
        self.step = stepped.unwrap_or_default();
        if let Some(tiers) = &mut self.tiers {
            tiers.measured(self.step.prefill_tokens, begun.elapsed());
            if tiers.has_events() || !self.step.events.is_empty() {
                tiers.close(&mut self.step.events);
            }
        }
        self.step.ran || !self.step.outputs.is_empty() || !self.step.events.is_empty()
    }

    /// Hands on what the step did: events first, so that nobody hears of an answer before the
    /// blocks behind it are numbered.
    fn deliver(&mut self) {
        if !self.step.events.is_empty() {
            self.feed.events(&self.step.events);
            self.step.events.clear();
        }
        let mut outputs = std::mem::take(&mut self.step.outputs);
        let tokens: usize = outputs.iter().map(|output| output.tokens.len()).sum();
        self.metrics.generated_tokens.inc_by(tokens as u64);
        for output in outputs.drain(..) {
            self.route(output);
        }
        self.step.outputs = outputs;
        self.flush();
        let now = Instant::now();
        if self.load_reported.is_none_or(|then| now - then >= self.load_interval) {
            self.report_load(now);
        }
    }

    fn route(&mut self, mut output: stator_engine::Output) {
        let key = output.key;
        // A request may be cancelled between its step and its delivery.
        let Some(live) = self.live.get_mut(&key) else {
            self.kept.finish(&mut self.engine, &output);
            return self.end_if_failed();
        };
        let Some(stream) = self.streams.get_mut(&live.stream) else { return };
        stream.touch(&mut self.touched, live.stream);
        if !live.has_begun && !output.tokens.is_empty() {
            live.has_begun = true;
            if let Some(used) = self.tiers.as_ref().and_then(|tiers| tiers.used(key)) {
                live.trace.event("kv tiers", used.attributes());
            }
            live.trace.enter("decode");
            live.trace.event("first token", Vec::new());
        }
        if let Some(finish) = &output.finish {
            self.metrics.prompt_tokens.inc_by(finish.prompt_tokens.into());
            self.metrics.cached_tokens.inc_by(finish.cached_tokens.into());
            live.choices_left = live.choices_left.saturating_sub(1);
        }
        live.prefilled.correct(&mut output);
        let mut output = translate::output(output, live.request_id);
        output.pinned_tokens = live.pinned_tokens.take();
        stream.outputs.push(live.prefilled.tell(output));
        if live.choices_left == 0 {
            stream.ended.push(live.request_id);
            stream.live -= 1;
            self.live.remove(&key);
            self.metrics.ended(Outcome::completed);
        }
    }

    /// Gives every touched stream its outputs: one lock per stream and step.
    fn flush(&mut self) {
        for id in self.touched.drain(..) {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.outbox.push(&mut stream.outputs, &mut stream.ended);
            if stream.live == 0 {
                self.streams.remove(&id);
            }
        }
    }

    fn report_load(&mut self, now: Instant) {
        let Some(mut load) = self.guarded(|engine| engine.load()) else { return };
        load.costs = self.tiers.as_ref().map(WorkerTiers::costs).unwrap_or_default();
        load.waiting += self.fetches.count();
        self.load_reported = Some(now);
        self.gauges.set(&load);
        self.feed.load(load);
    }

    /// Calls the engine; `None` once it has failed. A panic in it ends it and its requests, and
    /// nothing else.
    fn guarded<T>(&mut self, call: impl FnOnce(&mut dyn Engine) -> T) -> Option<T> {
        let value = self.engine.call(call);
        self.end_if_failed();
        value
    }

    /// Ends all requests of an engine that has just failed.
    fn end_if_failed(&mut self) {
        let Some(message) = self.engine.take_failure() else { return };
        tracing::error!(message, "engine failed");
        self.metrics.worker_failures.inc();
        self.status.die();
        if let Some(on_death) = self.on_death.take() {
            on_death();
        }
        self.kept.give_up_all(&message);
        let keys: Vec<_> = self.live.keys().copied().collect();
        for key in keys {
            self.fetches.cancel(key);
            self.fail(key, ErrorKind::Internal, format!("the engine has failed: {message}"));
        }
        self.flush();
    }
}

/// Waits for news of an engine's tiers; for ever where it has none.
async fn tier_news(tiers: Option<&WorkerTiers>) {
    match tiers {
        Some(tiers) => tiers.news().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod fake_engine;
#[cfg(test)]
mod fetch_tests;
#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod kept_prompts_tests;
#[cfg(test)]
mod pushed_tests;
#[cfg(test)]
mod tests;
