//! The fleet against real agents, over real sockets on free ports.

mod absence;
mod bounds;
mod doubts;
mod gaps;
mod holders;
mod lives;
mod parts;
mod replicas;
mod scripted;

use super::*;
use clap::{Args, Command, FromArgMatches};
use stator_engine::sim::{self, SimOptions};
use stator_engine::{Engine, EngineOptions, ModelInfo};
use stator_fleet::{
    AgentClient, ClientSettings, Fleet, FleetEvent, FleetMetrics, FleetSettings, StreamError,
    TokenStream,
};
use stator_placement::PlacementRequest;
use stator_protos::discovery::{AgentRecord, ModelRecord};
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::worker::{ErrorKind, Finish, FinishReason, Output, Sampling, Submit};
use stator_runtime::Shutdown;
use stator_runtime::metrics::Metrics;
use stator_runtime::shutdown::Trigger;
use stator_timing::Timing;
use stator_worker_agent::agent::{Running, start};
use stator_worker_agent::config::{AgentArgs, AgentSettings};
use stator_worker_agent::{LoadedEngine, LoadedModel};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `done`, which must come true by itself.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waiting = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
        panic!("waited in vain: {what}");
    }
}

/// A simulated agent.
struct Agent {
    running: Running,
    shutdown: Trigger,
    metrics: Metrics,
}

impl Agent {
    /// Two workers whose steps take `step`; `flags` override those that every test has.
    async fn start(dir: &Path, step: Duration, flags: &[&str]) -> Self {
        Self::start_with(dir, loaded(step), flags).await
    }

    async fn start_with(dir: &Path, loaded: LoadedModel, flags: &[&str]) -> Self {
        let args = ["--listen=127.0.0.1:0", "--agent-id=a", "--drain-timeout-s=0"];
        let zmq = ["--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0"];
        let command = AgentArgs::augment_args(Command::new("agent").no_binary_name(true))
            .args_override_self(true);
        let dir = format!("--discovery-dir={}", dir.display());
        let args =
            args.iter().chain(&zmq).copied().chain([dir.as_str()]).chain(flags.iter().copied());
        let args = AgentArgs::from_arg_matches(&command.try_get_matches_from(args).unwrap());
        let mut settings = AgentSettings::try_from(args.unwrap()).unwrap();
        settings.metrics_listen = None;
        let metrics = Metrics::default();
        let (shutdown, stop) = Shutdown::new();
        let running = start(settings, loaded, metrics.clone(), stop).await.unwrap();
        Self { running, shutdown, metrics }
    }

    async fn stop(self) {
        self.shutdown.set();
        self.running.ended().await;
    }

    fn has_metric(&self, line: &str) -> bool {
        self.metrics.render().lines().any(|found| found == line)
    }
}

fn loaded(step: Duration) -> LoadedModel {
    let model = ModelInfo { context_length: 1 << 20, vocab_size: 1000, eos_token_ids: vec![] };
    let options = EngineOptions {
        total_blocks: 4096,
        max_running: 4096,
        max_waiting: 8192,
        max_batched_tokens: 1 << 16,
        ..EngineOptions::default()
    };
    let engine = || LoadedEngine {
        engine: Box::new(
            sim::engine(
                SimOptions {
                    model: model.clone(),
                    answer_tokens: [].into(),
                    timing: Timing::fixed(step),
                    speedup: 1.0,
                },
                options.clone(),
            )
            .unwrap(),
        ),
        total_blocks: options.total_blocks,
        computes: false,
    };
    LoadedModel {
        model: ModelRecord {
            name: "m".into(),
            context_length: 1 << 16,
            block_size: 16,
            vocab_size: 1000,
        },
        files: vec![("tokenizer.json".into(), b"{}".to_vec())],
        engines: vec![engine(), engine()],
        rules: None,
    }
}

/// Pools that no other replica shares.
fn pools(settings: PoolSettings) -> ModelPools {
    ModelPools::new(settings, None)
}

/// A fleet that has found the model and its two workers.
async fn fleet(dir: &Path) -> (Fleet, Arc<Pool>) {
    fleet_of(dir, 2).await
}

async fn fleet_of(dir: &Path, workers: usize) -> (Fleet, Arc<Pool>) {
    let settings =
        FleetSettings { poll: Duration::from_millis(5), ..FleetSettings::new(dir.into()) };
    let (fleet, mut events) =
        Fleet::start(settings, FleetMetrics::default(), pools(PoolSettings::default()));
    let pool = model_up(&mut events).await;
    until("all workers", || pool.accepting() == workers).await;
    (fleet, pool)
}

/// The next model that is announced.
async fn model_up(events: &mut mpsc::Receiver<FleetEvent<Pool>>) -> Arc<Pool> {
    loop {
        let event = tokio::time::timeout(DEADLINE, events.recv()).await.unwrap().unwrap();
        if let FleetEvent::ModelUp { pool, files } = event {
            assert_eq!(files, [("tokenizer.json".to_owned(), b"{}".to_vec())]);
            return pool;
        }
    }
}

/// Shows a record with a lease that does not end, in one move as the agent does.
fn put(dir: &tempfile::TempDir, record: &AgentRecord) {
    let record = AgentRecord { lease_ms: u64::MAX, ..record.clone() };
    let temporary = dir.path().join("record.tmp");
    std::fs::write(&temporary, serde_json::to_vec(&record).unwrap()).unwrap();
    std::fs::rename(temporary, dir.path().join(format!("{}.json", record.agent_id))).unwrap();
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|n| n % 1000).collect()
}

fn sequence(tokens: &[u32]) -> Vec<SequenceHash> {
    let mut sequence = Vec::new();
    let block_size = std::num::NonZeroU32::new(16).unwrap();
    sequence_hashes(tokens, block_size, HashSeed::default(), &mut sequence);
    sequence
}

fn submit(
    pool: &Arc<Pool>,
    tokens: &[u32],
    change: impl FnOnce(&mut Submit),
) -> (Place, TokenStream) {
    let sequence = sequence(tokens);
    let request = PlacementRequest {
        sequence: &sequence,
        prompt_tokens: tokens.len() as u32,
        ..PlacementRequest::default()
    };
    let place = pool.place(&request).unwrap();
    let sampling = Sampling { max_tokens: 10, ..Sampling::default() };
    let mut submit = Submit {
        worker_id: place.worker().worker.0,
        rank: place.worker().rank.into(),
        token_ids: tokens.to_vec(),
        sampling: Some(sampling),
        ..Submit::default()
    };
    change(&mut submit);
    let stream = place.client().submit(submit);
    (place, stream)
}

fn endless(submit: &mut Submit) {
    submit.sampling.as_mut().unwrap().max_tokens = 60_000;
}

/// The tokens and the end of a stream with one choice.
async fn answer(stream: &mut TokenStream) -> Result<(Vec<u32>, Finish), StreamError> {
    let (mut tokens, mut finish, mut outputs) = (Vec::new(), None, Vec::new());
    while tokio::time::timeout(DEADLINE, stream.next(&mut outputs)).await.expect("an answer")? {
        for Output { token_ids, finish: end, .. } in outputs.drain(..) {
            tokens.extend(token_ids);
            finish = finish.or(end);
        }
    }
    Ok((tokens, finish.expect("an end")))
}

/// Flags of an agent at places in a folder, where its successor is met as well.
fn sockets(home: &Path) -> [String; 3] {
    let at = |name: &str| home.join(name).display().to_string();
    [
        format!("--listen=unix://{}", at("requests")),
        format!("--events-listen=ipc://{}", at("events")),
        format!("--replay-listen=ipc://{}", at("replay")),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_answered_over_tcp_and_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("--listen=unix://{}", dir.path().join("agent.sock").display());
    for listen in ["--listen=127.0.0.1:0", &unix] {
        let agent = Agent::start(dir.path(), Duration::ZERO, &[listen]).await;
        let (_fleet, pool) = fleet(dir.path()).await;
        let (_place, mut stream) = submit(&pool, &prompt(40), |_| ());
        let (tokens, finish) = answer(&mut stream).await.unwrap();
        assert_eq!((tokens.len(), finish.reason()), (10, FinishReason::Length));
        let usage = finish.usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (40, 10));
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_requests_share_one_stream() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    let mut streams: Vec<_> = (0..4000).map(|_| submit(&pool, &prompt(20), |_| ())).collect();
    for (_, stream) in &mut streams {
        assert_eq!(answer(stream).await.unwrap().0.len(), 10);
    }
    drop(streams);
    assert_eq!(pool.stats().bookings, 0);
    until("all counted", || {
        agent.has_metric("stator_agent_requests_total{outcome=\"completed\"} 4000")
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_stream_stops_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::from_millis(1), &[]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    let (place, mut stream) = submit(&pool, &prompt(40), endless);
    assert!(stream.next(&mut Vec::new()).await.unwrap());
    drop((place, stream));
    until("cancelled", || agent.has_metric("stator_agent_requests_total{outcome=\"cancelled\"} 1"))
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_vanishes_cancels_what_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::from_millis(1), &[]).await;
    let (first, pool) = fleet(dir.path()).await;
    let (place, mut stream) = submit(&pool, &prompt(40), endless);
    assert!(stream.next(&mut Vec::new()).await.unwrap());
    // Its runtime ends without a word to anyone.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let endpoint = agent.running.record.endpoint.clone();
    let guard = runtime.enter();
    let client = AgentClient::connect(&endpoint, &ClientSettings::default()).unwrap();
    drop(guard);
    let links = client.links_up();
    until("connected", || *links.borrow() == 1).await;
    let worker = agent.running.record.workers[0].worker;
    let sampling = Sampling { max_tokens: 60_000, ..Sampling::default() };
    let mut other = client.submit(Submit {
        worker_id: worker.worker.0,
        token_ids: prompt(20),
        sampling: Some(sampling),
        ..Submit::default()
    });
    assert!(other.next(&mut Vec::new()).await.unwrap());
    runtime.shutdown_background();
    until("cancelled", || agent.has_metric("stator_agent_requests_total{outcome=\"cancelled\"} 1"))
        .await;
    // The other proxy's stream goes on.
    assert!(stream.next(&mut Vec::new()).await.unwrap());
    drop((place, stream, first));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_answered_and_the_stream_lives_on() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), Duration::ZERO, &[]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    type Change = fn(&mut Submit);
    let cases: [(Change, ErrorKind, &str); 5] = [
        (|s| s.worker_id ^= 1, ErrorKind::UnknownWorker, "no worker"),
        (|s| s.rank = 70_000, ErrorKind::UnknownWorker, "no worker"),
        (|s| s.token_ids.clear(), ErrorKind::Invalid, "token_ids: 0 tokens"),
        (|s| s.token_ids[0] = 1000, ErrorKind::Invalid, "1000"),
        (
            |s| s.sampling.as_mut().unwrap().temperature = f32::NAN,
            ErrorKind::Invalid,
            "temperature: NaN",
        ),
    ];
    for (change, kind, message) in cases {
        let (_place, mut stream) = submit(&pool, &prompt(20), change);
        let (_, finish) = answer(&mut stream).await.unwrap();
        assert_eq!((finish.reason(), finish.error_kind()), (FinishReason::Error, kind));
        assert!(finish.error_message.contains(message), "{}", finish.error_message);
    }
    let (_place, mut stream) = submit(&pool, &prompt(20), |_| ());
    assert_eq!(answer(&mut stream).await.unwrap().0.len(), 10);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_has_only_so_many_requests() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Duration::from_millis(10);
    let agent = Agent::start(dir.path(), slow, &["--max-requests-per-stream=1"]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    let (_place, mut first) = submit(&pool, &prompt(20), endless);
    assert!(first.next(&mut Vec::new()).await.unwrap());
    let (_place, mut second) = submit(&pool, &prompt(20), |_| ());
    let (_, finish) = answer(&mut second).await.unwrap();
    assert_eq!(finish.error_kind(), ErrorKind::Overloaded);
    assert_eq!(finish.error_message, "stream has 1 live requests, the limit");
    agent.stop().await;
}

/// An engine that fails when it is given a certain token.
struct Fragile(Box<dyn Engine>);

impl Engine for Fragile {
    fn submit(&mut self, request: stator_engine::Request) -> Result<(), stator_engine::Refusal> {
        assert_ne!(request.tokens[0], 666, "poisoned");
        self.0.submit(request)
    }

    fn cancel(&mut self, key: stator_engine::RequestKey) {
        self.0.cancel(key);
    }

    fn step(&mut self, step: &mut stator_engine::Step) {
        self.0.step(step);
    }

    fn load(&self) -> stator_protos::load::Load {
        self.0.load()
    }

    fn blocks(&self) -> Vec<SequenceHash> {
        self.0.blocks()
    }

    fn reset_cache(&mut self) {
        self.0.reset_cache();
    }

    fn rest(&mut self, rest: stator_engine::Rest) {
        self.0.rest(rest);
    }

    fn kv(&mut self) -> &mut dyn stator_engine::SharedKv {
        self.0.kv()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_engine_ends_its_requests_and_leaves_the_fleet_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut loaded = loaded(Duration::from_millis(1));
    let fragile = |LoadedEngine { engine, .. }| LoadedEngine {
        engine: Box::new(Fragile(engine)),
        total_blocks: 4096,
        // On a thread of its own, as engines that compute are.
        computes: true,
    };
    loaded.engines = loaded.engines.into_iter().map(fragile).collect();
    let agent = Agent::start_with(dir.path(), loaded, &[]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    let (first, mut running) = submit(&pool, &prompt(20), endless);
    assert!(running.next(&mut Vec::new()).await.unwrap());
    let poison = |submit: &mut Submit| {
        submit.worker_id = first.worker().worker.0;
        submit.token_ids = vec![666];
    };
    let (_place, mut poisoned) = submit(&pool, &prompt(20), poison);
    for stream in [&mut poisoned, &mut running] {
        let (_, finish) = answer(stream).await.unwrap();
        assert_eq!(finish.error_kind(), ErrorKind::Internal, "{}", finish.error_message);
    }
    until("it has left", || pool.stats().workers == 1).await;
    let (place, mut stream) = submit(&pool, &prompt(20), |_| ());
    assert_ne!(place.worker(), first.worker());
    assert_eq!(answer(&mut stream).await.unwrap().0.len(), 10);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_agent_runs_hundreds_of_simulated_workers() {
    let dir = tempfile::tempdir().unwrap();
    let mut many = loaded(Duration::from_millis(1));
    many.engines = (0..100).flat_map(|_| loaded(Duration::from_millis(1)).engines).collect();
    let agent = Agent::start_with(dir.path(), many, &[]).await;
    let (_fleet, pool) = fleet_of(dir.path(), 200).await;
    let mut streams = Vec::new();
    for record in &agent.running.record.workers {
        let to = |submit: &mut Submit| submit.worker_id = record.worker.worker.0;
        streams.push((record.worker, submit(&pool, &prompt(32), to)));
    }
    for (_, (_, stream)) in &mut streams {
        assert_eq!(answer(stream).await.unwrap().0.len(), 10);
    }
    for (worker, _) in &streams {
        until("its blocks are known", || pool.overlap(*worker, &sequence(&prompt(32))) == 2).await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_agent_is_left_alone_and_finishes_what_runs() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Duration::from_millis(20);
    let agent = Agent::start(dir.path(), slow, &["--drain-timeout-s=60"]).await;
    let (_fleet, pool) = fleet(dir.path()).await;
    let (_place, mut stream) = submit(&pool, &prompt(40), |_| ());
    let (place, mut endless_stream) = submit(&pool, &prompt(40), endless);
    assert!(endless_stream.next(&mut Vec::new()).await.unwrap());
    agent.shutdown.set();
    until("no worker accepts", || pool.accepting() == 0).await;
    let mut refused = place.client().submit(Submit {
        worker_id: place.worker().worker.0,
        token_ids: prompt(20),
        ..Submit::default()
    });
    assert_eq!(answer(&mut refused).await.unwrap().1.error_kind(), ErrorKind::Draining);
    assert_eq!(answer(&mut stream).await.unwrap().0.len(), 10);
    drop(endless_stream);
    agent.running.ended().await;
    until("the worker is gone", || pool.stats().workers == 0).await;
}
