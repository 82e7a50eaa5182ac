//! What the tests of stock engines have in common: an engine that does as it is told, and a rank
//! of it with a client.

use super::driver::{Cache, Driver, Life, RankReporting};
use super::metrics::StockMetrics;
use super::probe::Probe;
use super::read_ahead::ReadAhead;
use super::request::Rank;
use super::sink::LifeSink;
use super::tally::Tally;
use crate::config::{AgentArgs, AgentSettings, Runs, StockSettings};
use crate::events::Feeds;
use crate::events::queue::Queue;
use crate::metrics::AgentMetrics;
use crate::prefill::agents::tests::prefill_agents;
use crate::prefill::registered::tests::{listing as listing_of, record};
use crate::prefill::registered::{Listing, RegisteredAgents};
use crate::request_plane::in_flight::InFlight;
use crate::request_plane::metadata::{PrefillWorker, RequestMetadata};
use crate::request_plane::outbox::{Outbox, Route};
use crate::request_plane::translate;
use crate::worker::{COMMANDS_MAX, Command, Submission};
use clap::{Args, FromArgMatches};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::value::RawValue;
use stator_dialect::{
    Answer, Ask, Delta, Description, Dialect, Fault, Finish, Manner, Operation, SharedRequest,
};
use stator_engine::RequestKey;
use stator_protos::worker::{self, FinishReason};
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

pub(super) const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: 0 };

/// One thing that an answer does; after the last it ends.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The engine refuses the request; the first step if any.
    Refuse(Fault),
    Say(Delta),
    Fail(Fault),
    Panic,
    Never,
}

/// How the engine answers whether it is well.
#[derive(Clone, Debug)]
pub(super) enum Checkup {
    Well,
    Ill,
    /// Ill so many times, and well after that.
    IllFor(u32),
    Late,
}

impl Checkup {
    fn next(&mut self) -> Self {
        let now = self.clone();
        if let Self::IllFor(times) = self {
            *times = times.saturating_sub(1);
        }
        now
    }
}

/// An engine that does as it is told.
#[derive(Debug)]
pub(super) struct Scripted {
    /// How the next requests are answered; with one token where nothing is said.
    pub(super) scripts: Mutex<VecDeque<Vec<Step>>>,
    /// What was asked, as far as it was.
    pub(super) asks: watch::Sender<Vec<Ask>>,
    /// Answers that somebody waits for.
    pub(super) running: watch::Sender<usize>,
    pub(super) health: Mutex<Checkup>,
    pub(super) description: Mutex<Description>,
    /// What was done to it.
    pub(super) operated: watch::Sender<Vec<Operation>>,
    /// Whether what is done to it ends.
    pub(super) operates: watch::Sender<bool>,
    /// How it works with others; not at all where nothing is said.
    pub(super) manner: Mutex<Option<Manner>>,
    /// What it was to do with others.
    pub(super) paired: Mutex<Vec<SharedRequest>>,
}

impl Default for Scripted {
    fn default() -> Self {
        let description = Description {
            model: "m".into(),
            block_size: Some(16),
            total_blocks: Some(100),
            ranks: 1,
            ..Description::default()
        };
        Self {
            scripts: Mutex::default(),
            asks: watch::Sender::default(),
            running: watch::Sender::default(),
            health: Mutex::new(Checkup::Well),
            description: Mutex::new(description),
            operated: watch::Sender::default(),
            operates: watch::Sender::new(true),
            manner: Mutex::default(),
            paired: Mutex::default(),
        }
    }
}

impl Scripted {
    pub(super) fn new(scripts: impl IntoIterator<Item = Vec<Step>>) -> Arc<Self> {
        let engine = Self::default();
        engine.scripts.lock().extend(scripts);
        Arc::new(engine)
    }

    pub(super) fn probe(self: &Arc<Self>, canary_idle: Option<Duration>) -> Probe {
        Probe {
            dialect: self.clone(),
            tallies: OnceLock::new(),
            resting: Arc::default(),
            canary_idle,
        }
    }

    /// Waits until so many are answered at once.
    pub(super) async fn runs(&self, count: usize) {
        self.running.subscribe().wait_for(|running| *running == count).await.unwrap();
    }
}

/// An answer that runs.
struct Running {
    steps: VecDeque<Step>,
    engine: watch::Sender<usize>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.engine.send_modify(|running| *running -= 1);
    }
}

impl Answer for Running {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delta>, Fault>> {
        if matches!(self.steps.front(), Some(Step::Never)) {
            return Poll::Pending;
        }
        Poll::Ready(match self.steps.pop_front() {
            Some(Step::Say(delta)) => Ok(Some(delta)),
            Some(Step::Fail(fault) | Step::Refuse(fault)) => Err(fault),
            Some(Step::Panic) => panic!("told to"),
            Some(Step::Never) | None => Ok(None),
        })
    }
}

#[tonic::async_trait]
impl Dialect for Scripted {
    async fn healthy(&self) -> Result<(), Fault> {
        let health = self.health.lock().next();
        match health {
            Checkup::Well | Checkup::IllFor(0) => Ok(()),
            Checkup::Ill | Checkup::IllFor(_) => Err(Fault::Failed("ill".into())),
            Checkup::Late => pending().await,
        }
    }

    async fn describe(&self) -> Result<Description, Fault> {
        Ok(self.description.lock().clone())
    }

    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault> {
        self.asks.send_modify(|asks| asks.push(ask));
        let script = self.scripts.lock().pop_front().unwrap_or_else(|| vec![last(1)]);
        if let Some(Step::Refuse(fault)) = script.first() {
            return Err(fault.clone());
        }
        self.running.send_modify(|running| *running += 1);
        Ok(Box::new(Running { steps: script.into(), engine: self.running.clone() }))
    }

    async fn operate(&self, operation: &Operation) -> Result<(), Fault> {
        self.operated.send_modify(|done| done.push(operation.clone()));
        // The sender is as old as the engine.
        let _ = self.operates.subscribe().wait_for(|operates| *operates).await;
        Ok(())
    }

    fn pair(&self, shared: &SharedRequest, _: &RawValue) -> Result<Manner, Fault> {
        self.paired.lock().push(*shared);
        let unsupported = || Fault::Unsupported("it works alone".into());
        self.manner.lock().clone().ok_or_else(unsupported)
    }
}

/// Settings of an agent with these flags, whose engine is a stock engine.
pub(super) fn stock_settings(flags: &[&str]) -> StockSettings {
    let command = AgentArgs::augment_args(clap::Command::new("agent").no_binary_name(true));
    let args = AgentArgs::from_arg_matches(&command.get_matches_from(flags)).unwrap();
    match AgentSettings::try_from(args).unwrap().engine {
        Runs::Stock(stock) => *stock,
        Runs::Own(engine) => panic!("{engine:?} is our own"),
    }
}

pub(super) fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.into()).unwrap()
}

pub(super) fn token(token: u32) -> Step {
    Step::Say(Delta { tokens: vec![token], ..Delta::default() })
}

/// The last token of an answer.
pub(super) fn last(token: u32) -> Step {
    let finish = Some(Finish::Length);
    Step::Say(Delta { tokens: vec![token], finish, ..Delta::default() })
}

/// What a prefill in turn says.
pub(super) fn handover(json: &str) -> Step {
    let (handover, finish) = (Some(raw(json)), Some(Finish::Length));
    Step::Say(Delta { tokens: vec![9], handover, finish, ..Delta::default() })
}

/// A rank of an engine, its driver running, and a client of it.
pub(super) struct Bed {
    pub(super) engine: Arc<Scripted>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) in_flight: InFlight,
    pub(super) life: watch::Sender<Life>,
    pub(super) feeds: Arc<Feeds>,
    pub(super) queue: Arc<Queue>,
    pub(super) tally: Arc<Tally>,
    resting: Arc<AtomicBool>,
    registry: Registry,
    /// The agents that discovery lists: the peer of each request. `None` without discovery.
    pub(super) listing: Option<watch::Sender<Listing>>,
}

impl Bed {
    /// With an engine that serves.
    pub(super) fn up(scripts: impl IntoIterator<Item = Vec<Step>>) -> Self {
        let bed = Self::down(scripts);
        bed.begin(1);
        bed
    }

    /// With an engine that does not.
    pub(super) fn down(scripts: impl IntoIterator<Item = Vec<Step>>) -> Self {
        Self::with_tiers(scripts, None)
    }

    /// With an engine that does not serve yet, and tiers.
    pub(super) fn with_tiers(
        scripts: impl IntoIterator<Item = Vec<Step>>,
        read_ahead: Option<ReadAhead>,
    ) -> Self {
        let (engine, metrics) = (Scripted::new(scripts), AgentMetrics::default());
        let stock = StockMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        stock.register(&mut registry);
        let (tally, resting) = (Arc::new(Tally::default()), Arc::<AtomicBool>::default());
        let (listing, registered) = RegisteredAgents::listed();
        let rank = Rank {
            dialect: engine.clone(),
            rank: None,
            tally: tally.clone(),
            prefill_agents: Arc::new(prefill_agents(registered)),
            prefill_timeout: Duration::from_secs(1),
            metrics: metrics.clone(),
            stock,
            resting: resting.clone(),
            read_ahead,
            peers: None,
            pins: None,
            page_tokens: None,
        };
        let queue = Arc::new(Queue::default());
        let feeds = Arc::new(Feeds::new(1 << 20, queue.clone(), metrics.clone()));
        let (life, lives) = watch::channel(Life::Down("it starts".into()));
        let cache = Arc::new(Mutex::new(Cache { total_blocks: 100, ..Cache::default() }));
        let (gauges, load_interval) = (metrics.worker(WORKER), Duration::from_millis(50));
        let reporting = RankReporting { cache, tiers: None, gauges, load_interval };
        let driver = Driver::new(Arc::new(rank), lives, reporting);
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        tokio::spawn(driver.run(inbox));
        let (outbox, in_flight) = (Arc::new(Outbox::new()), InFlight::new());
        let listing = Some(listing);
        Self {
            engine,
            commands,
            outbox,
            in_flight,
            life,
            feeds,
            queue,
            tally,
            resting,
            registry,
            listing,
        }
    }

    /// Begins a life.
    pub(super) fn begin(&self, generation: u64) {
        let sink = LifeSink::new(&self.feeds, WORKER, Generation(generation), 16);
        self.life.send_replace(Life::Up(Arc::new(sink)));
    }

    /// Has the engine rest, or work again.
    pub(super) fn rest(&self, rests: bool) {
        self.resting.store(rests, Ordering::Relaxed);
    }

    /// Ends the life.
    pub(super) fn end(&self, why: &str) {
        self.life.send_replace(Life::Down(why.into()));
    }

    /// Sends a request; the life has room for all of its commands.
    pub(super) fn submit(
        &self,
        id: u64,
        change: impl FnOnce(&mut worker::Submit, &mut RequestMetadata),
    ) {
        let mut submit = worker::Submit {
            token_ids: vec![1, 2, 3],
            sampling: Some(worker::Sampling { max_tokens: 5, ..worker::Sampling::default() }),
            ..worker::Submit::default()
        };
        let mut metadata = RequestMetadata::default();
        change(&mut submit, &mut metadata);
        if let (Some(PrefillWorker { endpoint, handover, .. }), Some(listing)) =
            (&metadata.prefill, &self.listing)
        {
            let record = record("prefill", endpoint, handover.get());
            listing.send_replace(listing_of(record));
        }
        let key = RequestKey(id);
        self.outbox.admit(id, Route { worker: 0, key }, 100).unwrap();
        let submission = Submission {
            request: translate::request(submit, key).unwrap(),
            request_id: id,
            metadata,
            outbox: self.outbox.clone(),
            ticket: self.in_flight.enter(),
        };
        self.commands.try_send(Command::Submit(submission)).unwrap();
    }

    pub(super) fn cancel(&self, id: u64) {
        self.commands.try_send(Command::Cancel(vec![RequestKey(id)])).unwrap();
    }

    /// What the client has got, all together, once nothing runs.
    pub(super) async fn answers(&self) -> Vec<Got> {
        self.in_flight.none().await;
        self.got().await
    }

    /// What the client has got since it last asked; waits for something.
    pub(super) async fn got(&self) -> Vec<Got> {
        self.outbox.next().await.unwrap().into_iter().map(Got::from).collect()
    }

    /// Whether the metrics have this line.
    #[track_caller]
    pub(super) fn counted(&self, line: &str) {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
}

/// An output as tests compare it.
#[derive(Debug, PartialEq)]
pub(super) struct Got {
    pub(super) id: u64,
    pub(super) tokens: Vec<u32>,
    /// The reason, and what is said of it where it is an error.
    pub(super) end: Option<(FinishReason, String)>,
}

impl From<worker::Output> for Got {
    fn from(output: worker::Output) -> Self {
        let end = output.finish.map(|finish| {
            let kind = finish.error_kind();
            let error = finish.reason() == FinishReason::Error;
            let said =
                if error { format!("{kind:?}: {}", finish.error_message) } else { "".into() };
            (finish.reason(), said)
        });
        Self { id: output.request_id, tokens: output.token_ids, end }
    }
}

pub(super) fn part(id: u64, tokens: &[u32]) -> Got {
    Got { id, tokens: tokens.into(), end: None }
}

pub(super) fn whole(id: u64, tokens: &[u32]) -> Got {
    Got { id, tokens: tokens.into(), end: Some((FinishReason::Length, String::new())) }
}

pub(super) fn cancelled(id: u64) -> Got {
    Got { id, tokens: vec![], end: Some((FinishReason::Cancelled, String::new())) }
}

pub(super) fn failed(id: u64, said: &str) -> Got {
    Got { id, tokens: vec![], end: Some((FinishReason::Error, said.into())) }
}
