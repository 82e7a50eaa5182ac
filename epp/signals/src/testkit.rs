//! Fixtures of several modules' tests: a real agent with a simulated engine.

use clap::{Args, Command, FromArgMatches};
use stator_engine::sim::{self, SimOptions};
use stator_engine::{
    Engine, EngineOptions, ModelInfo, Refusal, Request, RequestKey, Rest, SharedKv, Step,
};
use stator_protos::discovery::{AgentRecord, ModelRecord};
use stator_protos::hash::SequenceHash;
use stator_protos::load::Load;
use stator_runtime::Shutdown;
use stator_runtime::metrics::Metrics;
use stator_runtime::shutdown::Trigger;
use stator_timing::Timing;
use stator_worker_agent::agent::{Running, start};
use stator_worker_agent::config::{AgentArgs, AgentSettings};
use stator_worker_agent::{LoadedEngine, LoadedModel};
use std::net::SocketAddr;
use std::time::Duration;

/// Longest wait for anything that must happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `done`, which must come true by itself.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waiting = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
        panic!("waited in vain: {what}");
    }
}

/// A tokenizer of a few hundred tokens.
pub(crate) fn tokenizer_json() -> Vec<u8> {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/model/fixtures/tokenizers/llama3.json");
    std::fs::read(path).expect(path)
}

/// An agent with two workers.
pub(crate) struct Agent {
    pub(crate) address: SocketAddr,
    running: Running,
    shutdown: Trigger,
    _dir: tempfile::TempDir,
}

impl Agent {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts an agent with further flags.
    pub(crate) async fn start_with(flags: &[String]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let discovery = format!("--discovery-dir={}", dir.path().display());
        let args = [
            "--listen=127.0.0.1:0",
            "--agent-id=a",
            "--drain-timeout-s=0",
            "--events-listen=tcp://127.0.0.1:0",
            "--replay-listen=tcp://127.0.0.1:0",
            &discovery,
        ];
        let command = AgentArgs::augment_args(Command::new("agent").no_binary_name(true));
        let args = args.into_iter().map(str::to_owned).chain(flags.iter().cloned());
        let matches = command.try_get_matches_from(args).expect("valid flags");
        let args = AgentArgs::from_arg_matches(&matches).expect("valid flags");
        let mut settings = AgentSettings::try_from(args).expect("valid settings");
        settings.metrics_listen = None;
        let (shutdown, stop) = Shutdown::new();
        let running = start(settings, loaded(), Metrics::default(), stop).await.expect("it starts");
        let mut record: Option<AgentRecord> = None;
        until("the agent's record", || {
            let text = std::fs::read(dir.path().join("a.json")).unwrap_or_default();
            record = serde_json::from_slice(&text).ok();
            record.is_some()
        })
        .await;
        let endpoint = record.expect("it was there").endpoint;
        let address = endpoint.split_once("://").and_then(|(_, at)| at.parse().ok());
        Self { address: address.expect("an address"), running, shutdown, _dir: dir }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.set();
        self.running.ended().await;
    }
}

/// The prompt that an engine dies of.
pub(crate) const POISON: [u32; 1] = [666];

/// An engine that dies of [`POISON`].
struct Fragile<E>(E);

impl<E: Engine> Engine for Fragile<E> {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        assert_ne!(request.tokens, POISON, "an engine that is meant to die");
        self.0.submit(request)
    }

    fn cancel(&mut self, key: RequestKey) {
        self.0.cancel(key);
    }

    fn reset_cache(&mut self) {
        self.0.reset_cache();
    }

    fn rest(&mut self, rest: Rest) {
        self.0.rest(rest);
    }

    fn kv(&mut self) -> &mut dyn SharedKv {
        self.0.kv()
    }

    fn step(&mut self, step: &mut Step) {
        self.0.step(step);
    }

    fn load(&self) -> Load {
        self.0.load()
    }

    fn blocks(&self) -> Vec<SequenceHash> {
        self.0.blocks()
    }
}

fn loaded() -> LoadedModel {
    let model = ModelInfo { context_length: 1 << 20, vocab_size: 1000, eos_token_ids: vec![] };
    let options = EngineOptions { total_blocks: 4096, ..EngineOptions::default() };
    let engine = || {
        let sim = SimOptions {
            model: model.clone(),
            answer_tokens: [].into(),
            timing: Timing::fixed(Duration::ZERO),
            speedup: 1.0,
        };
        LoadedEngine {
            engine: Box::new(Fragile(sim::engine(sim, options.clone()).expect("valid options"))),
            total_blocks: options.total_blocks,
            computes: false,
        }
    };
    LoadedModel {
        model: ModelRecord {
            name: "m".into(),
            context_length: 1 << 16,
            block_size: 16,
            vocab_size: 1000,
        },
        files: vec![("tokenizer.json".into(), tokenizer_json())],
        engines: vec![engine(), engine()],
        rules: None,
    }
}
