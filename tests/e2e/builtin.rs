//! An agent with the built-in engine, held to what agents of other engines are. It computes in the
//! agent's own process, and dies with it.

use crate::agents::{accepted, answer, completed, completion, operate, proxy, record, snapshot};
use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::suite::{
    Mortal, Tested, a_client_that_hangs_up_stops_the_engine,
    a_pause_holds_what_runs_and_forgets_nothing, a_reset_cache_is_known_to_be_empty,
    a_sleep_holds_what_runs_and_forgets_all, an_engine_that_dies_ends_its_requests_and_comes_back,
    greedy_answers_are_the_engines_own, tokens, what_is_cached_is_known_through_eviction,
};
use crate::support::{Up, up};
use stator_events::subscribe::replay;
use stator_protos::Generation;
use stator_protos::discovery::AgentRecord;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, decode};
use stator_protos::topic::{Topic, TopicKind};
use stator_protos::worker::worker_client::WorkerClient;
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::stock::{BLOCK_SIZE, CONTEXT, MODEL, TOTAL_BLOCKS};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tonic::transport::Channel;

/// Steps and blocks of another size give the same tokens.
pub(crate) const ALONE: [&str; 4] =
    ["--model-name=tiny", "--workers=1", "--max-batched-tokens=48", "--block-size=512"];

/// An agent, and one beside it whose engine answers alone.
struct Builtin {
    home: PathBuf,
    life: Life,
    alone: Up,
}

/// A process of an agent.
pub(crate) struct Life {
    pub(crate) process: Process,
    pub(crate) client: WorkerClient<Channel>,
    metrics: Client,
    pub(crate) record: AgentRecord,
    /// What its events tell of its blocks, up to the batch of the number `heard`.
    told: HashSet<SequenceHash>,
    heard: u64,
}

impl Life {
    pub(crate) async fn begin(home: &Path, id: &str, further: &[&str]) -> Self {
        let flags = [
            format!("--agent-id={id}"),
            format!("--model-name={MODEL}"),
            format!("--block-size={BLOCK_SIZE}"),
            format!("--total-blocks={TOTAL_BLOCKS}"),
            format!("--context-length={CONTEXT}"),
        ];
        let flags = flags.iter().map(String::as_str).chain(["--workers=1"]);
        let flags = flags.chain(further.iter().copied());
        let dir = format!("--discovery-dir={}", home.display());
        let mut process = agent(&dir, &flags.collect::<Vec<_>>());
        let side = process.event("side server listening").await;
        let endpoint = process.event("serving").await["endpoint"].as_str().unwrap().to_owned();
        let mut client = WorkerClient::connect(endpoint).await.unwrap();
        let record = record(&mut client).await;
        let metrics = Client::new(side["address"].as_str().unwrap().parse().unwrap());
        Self { process, client, metrics, record, told: HashSet::new(), heard: 0 }
    }

    /// A number on its page.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        gauge(&self.metrics, &format!("stator_agent_{series}")).await.unwrap_or(0.0)
    }

    /// Waits until a number on its page is this.
    pub(crate) async fn shows(&self, series: &str, value: f64) {
        gauge_becomes(&self.metrics, &format!("stator_agent_{series}"), value).await;
    }

    /// Waits until it has no request, and no block in use.
    pub(crate) async fn has_released_all(&self) {
        for gauge in ["requests_running", "requests_waiting", "kv_blocks_used"] {
            self.shows(gauge, 0.0).await;
        }
    }

    /// Follows one event.
    fn hear(&mut self, event: KvEvent) {
        match event {
            KvEvent::Stored(stored) => {
                self.told.extend(stored.hashes.into_iter().map(SequenceHash))
            }
            KvEvent::Removed(removed) => {
                for hash in removed.hashes {
                    assert!(self.told.remove(&SequenceHash(hash)), "{hash:x} was not stored");
                }
            }
            KvEvent::Cleared => self.told.clear(),
        }
    }
}

impl Tested for Builtin {
    async fn answers(&self, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
        let body = completion(prompt, max_tokens);
        answer(&self.alone.client.post("/v1/completions", &body).await.json()).0
    }

    async fn blocks(&mut self) -> HashSet<SequenceHash> {
        let life = &mut self.life;
        let (worker, generation) =
            (life.record.workers[0].worker, life.record.workers[0].generation);
        let (held, next) = snapshot(&mut life.client, worker).await;
        let topic = Topic { kind: TopicKind::KvEvents, worker, generation }.to_string();
        let batches = replay(&life.record.replay_endpoint, Some(&topic), life.heard).await.unwrap();
        for (number, payload) in batches.into_iter().filter(|(number, _)| *number < next) {
            assert_eq!(number, life.heard);
            life.heard += 1;
            decode(&payload).unwrap().batch.events.into_iter().for_each(|event| life.hear(event));
        }
        assert_eq!((life.heard, &life.told), (next, &held), "events do not tell what is held");
        held
    }

    async fn has_released_all(&self) {
        self.life.has_released_all().await;
    }

    async fn operate(&mut self, operation: &[&str]) -> (bool, String) {
        operate(&mut self.life.process, operation).await
    }
}

impl Mortal for Builtin {
    async fn kill_engine(&mut self) {
        self.life.process.kill().await;
    }

    async fn recovers(&mut self) {
        self.life = Life::begin(&self.home, "builtin", &[]).await;
    }

    async fn generation(&mut self) -> Generation {
        self.life.record.workers[0].generation
    }
}

#[tokio::test]
async fn the_built_in_engine_is_known_by_its_events_and_comes_back_when_it_dies() {
    let home = tempfile::tempdir().unwrap();
    let (life, alone) = (Life::begin(home.path(), "builtin", &[]).await, up(&ALONE).await);
    let mut agent = Builtin { home: home.path().to_owned(), life, alone };
    let (_proxy, client) = proxy(home.path(), &[]).await;

    greedy_answers_are_the_engines_own(&client, &agent).await;
    what_is_cached_is_known_through_eviction(&client, &mut agent).await;
    a_client_that_hangs_up_stops_the_engine(&client, &agent).await;
    a_reset_cache_is_known_to_be_empty(&client, &mut agent).await;
    a_pause_holds_what_runs_and_forgets_nothing(&client, &mut agent).await;
    a_sleep_holds_what_runs_and_forgets_all(&client, &mut agent).await;
    what_it_has_not_is_refused_by_name_and_changes_nothing(&client, &mut agent).await;
    an_engine_that_dies_ends_its_requests_and_comes_back(&client, &mut agent).await;

    agent.life.process.terminate();
    assert!(agent.life.process.ended().await.success(), "{}", agent.life.process.log());
}

async fn what_it_has_not_is_refused_by_name_and_changes_nothing(
    client: &Client,
    agent: &mut Builtin,
) {
    let prompt = tokens(81, 200);
    let expected = answer(&accepted(client, &prompt).await).0;
    agent.hears_of(&prompt).await;
    let operations: [(&[&str], &str); 7] = [
        (&["sleep", "0"], "Sleep { level: 0 }"),
        (&["sleep", "2"], "Sleep { level: 2 }"),
        (&["load-adapter", "style", "/nowhere"], "LoadAdapter"),
        (&["unload-adapter", "style"], "UnloadAdapter"),
        (&["start-profile"], "StartProfile"),
        (&["stop-profile"], "StopProfile"),
        (&["update-weights", "{}"], "UpdateWeights"),
    ];
    for (operation, name) in operations {
        let (done, log) = agent.operate(operation).await;
        assert!(!done && log.contains(&format!("this engine has no {name}")), "{log}");
    }
    assert_eq!(agent.holds(&prompt).await, 192);
    assert_eq!(answer(&accepted(client, &prompt).await), (expected, 192));
}

/// Two prompts whose first 16 tokens have the same 64-bit hash.
const COLLIDING: [[u32; 16]; 2] = [
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    [19, 43, 51, 30, 85, 19, 19, 8, 96, 59, 75, 17, 52, 45, 72, 54],
];

#[tokio::test]
async fn a_prompt_made_to_collide_with_another_changes_no_answer() {
    let engine = up(&["--model-name=tiny", "--workers=1", "--block-size=16"]).await;
    let alone = up(&ALONE).await;
    for prompt in [1, 0, 1, 0].map(|which: usize| [&COLLIDING[which][..], &[77, 78]].concat()) {
        let ask = async |up: &Up| answer(&completed(&up.client, MODEL, &prompt, 24).await).0;
        assert_eq!(ask(&engine).await, ask(&alone).await, "{prompt:?}");
    }
}
