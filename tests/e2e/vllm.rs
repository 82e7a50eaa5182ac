//! Agents that run a real vLLM, spoken to through the proxy.

use crate::lifecycle::gauge;
use crate::support::ready;
use serde_json::{Value, json};
use stator_protos::WorkerRank;
use stator_protos::discovery::AgentRecord;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::worker::SnapshotRequest;
use stator_protos::worker::worker_client::WorkerClient;
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::vllm::{BLOCK_SIZE, CONTEXT, MODEL, TOTAL_BLOCKS, VllmBed, VllmRole, WAY, core};
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::path::Path;
use tonic::transport::Channel;

/// Longest wait for a prefill worker: longer than the first hand-over takes, shorter than the
/// deadline.
const PREFILL_TIMEOUT: &str = "--prefill-timeout-ms=15000";

/// An agent and the engine that it runs.
pub(crate) struct Agent {
    pub process: Process,
    /// The engine itself, past the agent.
    pub engine: Client,
    pub client: WorkerClient<Channel>,
    pub worker: WorkerRank,
    metrics: Client,
}

impl Agent {
    pub(crate) fn start(bed: &VllmBed, home: &Path, who: (&str, VllmRole)) -> Process {
        Self::start_with(bed, home, who, (&[], &[]))
    }

    /// With further flags for the agent and for its engine.
    pub(crate) fn start_with(
        bed: &VllmBed,
        home: &Path,
        (id, role): (&str, VllmRole),
        (further, engine): (&[&str], &[&str]),
    ) -> Process {
        let dir = format!("--discovery-dir={}", home.display());
        let program = format!("--engine-program={}", bed.program().display());
        let model = format!("--model={}", bed.model().display());
        let (id, name) = (format!("--agent-id={id}"), format!("--model-name={MODEL}"));
        let role_flag = match role {
            VllmRole::Aggregated => "--role=aggregated",
            VllmRole::Prefill => "--role=prefill",
            VllmRole::Decode => "--role=decode",
        };
        let mut args = vec!["agent", "--engine=vllm", &program, &model, &name, &dir, &id];
        args.extend([role_flag, "--listen=127.0.0.1:0", "--metrics-port=0"]);
        args.extend(["--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0"]);
        args.extend(further);
        args.push("--");
        let flags = VllmBed::flags(role);
        args.extend(flags.iter().map(String::as_str).chain(engine.iter().copied()));
        let environment = match engine.contains(&"--data-parallel-size") {
            true => VllmBed::environment_of_ranks(),
            false => VllmBed::environment(),
        };
        Process::start_with(&args, &environment)
    }

    /// Waits until the engine that it starts serves.
    pub(crate) async fn ready(mut process: Process) -> Self {
        serves(&mut process, 0).await;
        Self::found(process).await
    }

    /// Waits until it has found out about its engine.
    pub(crate) async fn found(mut process: Process) -> Self {
        let side = process.event("side server listening").await;
        let engine = process.event("engine is ready").await;
        let serving = process.event("serving").await;
        let endpoint = serving["endpoint"].as_str().unwrap().to_owned();
        let mut client = WorkerClient::connect(endpoint).await.unwrap();
        let worker = record(&mut client).await.workers[0].worker;
        let address =
            |value: &Value| value.as_str().unwrap().trim_start_matches("http://").parse().unwrap();
        Self {
            engine: Client::new(address(&engine["url"])),
            metrics: Client::new(address(&side["address"])),
            worker,
            client,
            process,
        }
    }

    /// What it tells the fleet of itself.
    pub(crate) async fn record(&mut self) -> AgentRecord {
        record(&mut self.client).await
    }

    /// Runs `stator operate`, and says whether it was done, and what it printed.
    pub(crate) async fn operate(&mut self, operation: &[&str]) -> (bool, String) {
        let endpoint = self.process.event("serving").await["endpoint"].clone();
        let args = ["operate", "--agent", endpoint.as_str().unwrap()];
        let mut operate = Process::start(&[&args, operation].concat());
        (operate.ended().await.success(), operate.log())
    }

    /// Blocks that the agent says its engine holds.
    pub(crate) async fn blocks(&mut self) -> HashSet<SequenceHash> {
        let request =
            SnapshotRequest { worker_id: self.worker.worker.0, rank: self.worker.rank.into() };
        let mut chunks = self.client.snapshot(request).await.unwrap().into_inner();
        let mut blocks = HashSet::new();
        while let Some(chunk) = soon("a chunk", chunks.message()).await.unwrap() {
            blocks.extend(chunk.sequence_hashes.into_iter().map(SequenceHash));
        }
        blocks
    }

    /// Leading tokens of a prompt that the agent says its engine holds.
    pub(crate) async fn holds(&mut self, prompt: &[u32]) -> usize {
        let blocks = self.blocks().await;
        let hashes = hashes(prompt);
        hashes.iter().take_while(|hash| blocks.contains(hash)).count() * BLOCK_SIZE
    }

    /// Waits until the agent has heard of all whole blocks of a prompt.
    pub(crate) async fn hears_of(&mut self, prompt: &[u32]) {
        let whole = prompt.len() / BLOCK_SIZE * BLOCK_SIZE;
        soon("the engine's events", async {
            while self.holds(prompt).await < whole {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// The engine's own greedy answer.
    pub(crate) async fn answers(&self, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
        let sampling = json!({ "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true });
        let body = json!({ "model": MODEL, "token_ids": prompt, "sampling_params": sampling });
        let reply = self.engine.post("/inference/v1/generate", &body).await.json();
        serde_json::from_value(reply["choices"][0]["token_ids"].clone()).unwrap()
    }

    /// Prompts of requests that a prefill worker was named for, by who computed them.
    async fn prefills(&self, by: &str) -> f64 {
        self.metric(&format!("stator_agent_prefills_total{{by=\"{by}\"}}")).await
    }

    /// A number that the engine itself shows, summed over all its series whose labels contain
    /// `labels`.
    pub(crate) async fn says(&self, name: &str, labels: &str) -> f64 {
        let page = self.engine.get("/metrics").await.body;
        let page = String::from_utf8_lossy(&page).into_owned();
        let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let series =
            lines.filter(|(of, _)| of.split('{').next() == Some(name) && of.contains(labels));
        series.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
    }

    /// Waits until the engine has no request, and no block in use.
    pub(crate) async fn has_released_all(&self) {
        soon("an idle engine", async {
            while self.says("vllm:num_requests_running", "").await
                + self.says("vllm:kv_cache_usage_perc", "").await
                > 0.0
            {}
        })
        .await;
    }

    pub(crate) async fn metric(&self, series: &str) -> f64 {
        gauge(&self.metrics, series).await.unwrap_or(0.0)
    }
}

async fn record(client: &mut WorkerClient<Channel>) -> AgentRecord {
    let described = client.describe(stator_protos::worker::DescribeRequest {}).await.unwrap();
    serde_json::from_str(&described.into_inner().record_json).unwrap()
}

/// Waits until an engine has come up for the `n`th time; each part of its way takes less than the
/// deadline, all of it may take longer.
pub(crate) async fn serves(agent: &mut Process, n: usize) {
    for mark in WAY {
        agent.nth_line(mark, n).await;
    }
}

pub(crate) fn hashes(prompt: &[u32]) -> Vec<SequenceHash> {
    let mut hashes = Vec::new();
    let block_size = NonZeroU32::new(BLOCK_SIZE as u32).unwrap();
    sequence_hashes(prompt, block_size, HashSeed::new(None, None), &mut hashes);
    hashes
}

/// Tokens that have no other meaning than to be told apart.
pub(crate) fn tokens(seed: u32, count: usize) -> Vec<u32> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let states = std::iter::successors(Some(seed.wrapping_mul(2_654_435_769)), next);
    states.skip(1).take(count).map(|state| 100 + (state >> 16) % 8000).collect()
}

pub(crate) fn completion(prompt: &[u32], max_tokens: u32) -> Value {
    json!({
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": true,
        "return_token_ids": true,
    })
}

/// The tokens of an answer, and the prompt tokens that its engine says it had cached.
pub(crate) fn answer(reply: &Value) -> (Vec<u32>, usize) {
    let tokens = serde_json::from_value(reply["choices"][0]["token_ids"].clone());
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    (tokens.unwrap_or_else(|error| panic!("{error}: {reply}")), cached.unwrap() as usize)
}

pub(crate) async fn proxy(home: &Path, flags: &[&str]) -> (Process, Client) {
    let dir = format!("--discovery-dir={}", home.display());
    let mut args = vec!["proxy", "--http-port=0", "--metrics-port=0", &dir];
    args.extend(flags);
    let mut proxy = Process::start(&args);
    let client = Client::new(ready(&mut proxy).await);
    (proxy, client)
}

#[tokio::test]
async fn an_agents_vllm_is_known_by_its_events_and_comes_back_when_it_dies() {
    let Some(bed) = VllmBed::find() else { return };
    let home = tempfile::tempdir().unwrap();
    let role = ("aggregated", VllmRole::Aggregated);
    let mut agent = Agent::ready(Agent::start(&bed, home.path(), role)).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    greedy_answers_are_the_engines_own(&client, &agent).await;
    what_is_cached_is_known_through_eviction(&client, &mut agent).await;
    a_client_that_hangs_up_stops_the_engine(&client, &agent).await;
    a_reset_cache_is_known_to_be_empty(&client, &mut agent).await;
    an_engine_that_dies_ends_its_requests_and_comes_back(&client, &mut agent).await;

    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
}

async fn greedy_answers_are_the_engines_own(client: &Client, agent: &Agent) {
    for length in [1, 40, 300] {
        let prompt = tokens(length, length as usize);
        let reply = client.post("/v1/completions", &completion(&prompt, 12)).await.json();
        assert_eq!(answer(&reply).0, agent.answers(&prompt, 12).await, "{length}");
    }
    // Streamed, with several choices of one prompt.
    let mut body = completion(&tokens(7, 100), 5);
    body["stream"] = json!(true);
    body["n"] = json!(2);
    let chunks = client.stream("/v1/completions", &body).await.rest().await;
    let choice = |index: u64| {
        let of = chunks.iter().filter(move |chunk| chunk["choices"][0]["index"] == index);
        let ids = |chunk: &Value| {
            serde_json::from_value::<Vec<u32>>(chunk["choices"][0]["token_ids"].clone())
        };
        of.flat_map(|chunk| ids(chunk).unwrap_or_default()).collect::<Vec<_>>()
    };
    let expected = agent.answers(&tokens(7, 100), 5).await;
    assert_eq!([choice(0), choice(1)], [expected.clone(), expected]);
    // What can never run is refused with the reason.
    let long = tokens(9, CONTEXT + 1);
    assert_eq!(client.post("/v1/completions", &completion(&long, 1)).await.status, 400);
}

/// The index that the engine's events build says before each request what the engine says after it.
async fn what_is_cached_is_known_through_eviction(client: &Client, agent: &mut Agent) {
    let documents: Vec<_> = (0..12).map(|seed| tokens(1000 + seed, 1600)).collect();
    let mut sent = 0;
    for turn in 0..60 {
        let document = &documents[turn * 5 % documents.len()];
        let mut prompt = document[..200 + turn * 311 % 1300].to_vec();
        prompt.extend(tokens(2000 + turn as u32, turn * 7 % 90));
        let holds = agent.holds(&prompt).await;
        // The last token is always computed.
        let expected = holds.min((prompt.len() - 1) / BLOCK_SIZE * BLOCK_SIZE);
        // One token, so that one step does it all and one message tells of it.
        let reply = client.post("/v1/completions", &completion(&prompt, 1)).await.json();
        assert_eq!(answer(&reply).1, expected, "request {turn} of {} tokens", prompt.len());
        agent.hears_of(&prompt).await;
        sent += (prompt.len() - expected) / BLOCK_SIZE;
    }
    assert!(sent > 2 * TOTAL_BLOCKS, "only {sent} blocks: nothing was evicted");
}

async fn a_client_that_hangs_up_stops_the_engine(client: &Client, agent: &Agent) {
    let mut body = completion(&tokens(3, 64), 1900);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &body).await;
    stream.next().await;
    drop(stream);
    agent.has_released_all().await;
}

async fn a_reset_cache_is_known_to_be_empty(client: &Client, agent: &mut Agent) {
    let prompt = tokens(4, 200);
    client.post("/v1/completions", &completion(&prompt, 1)).await;
    agent.hears_of(&prompt).await;
    let (done, log) = agent.operate(&["reset-cache"]).await;
    assert!(done, "{log}");
    // At once: vLLM itself says so only with the next request.
    assert_eq!(agent.blocks().await, HashSet::new());
    let reply = client.post("/v1/completions", &completion(&prompt, 1)).await.json();
    assert_eq!(answer(&reply).1, 0);
    agent.hears_of(&prompt).await;
}

async fn an_engine_that_dies_ends_its_requests_and_comes_back(client: &Client, agent: &mut Agent) {
    let mut body = completion(&tokens(5, 64), 1900);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &body).await;
    stream.next().await;
    let started = agent.process.event("engine started").await;
    signal(started["pid"].as_u64().unwrap() as u32, "KILL");
    agent.process.event("the engine's life ended").await;
    let end = stream.end().await.unwrap();
    let end = String::from_utf8_lossy(&end).into_owned();
    assert!(end.contains("\"error\""), "a stream that was cut off ends with an error: {end}");

    serves(&mut agent.process, 1).await;
    agent.process.nth_event("the engine serves", 1).await;
    let prompt = tokens(6, 100);
    let answered = soon("an answer after the restart", async {
        loop {
            let reply = client.post("/v1/completions", &completion(&prompt, 4)).await;
            if reply.status.is_success() {
                return answer(&reply.json());
            }
        }
    });
    let (tokens, cached) = answered.await;
    assert_eq!((tokens, cached), (agent.answers(&prompt, 4).await, 0));
    assert_eq!(agent.metric("stator_agent_engine_lives_total").await, 2.0);
}

#[tokio::test]
async fn two_vllms_share_a_request_and_one_does_without_the_other() {
    let Some(bed) = VllmBed::find() else { return };
    let home = tempfile::tempdir().unwrap();
    let start = |role| Agent::start_with(&bed, home.path(), role, (&[PREFILL_TIMEOUT], &[]));
    let prefill = start(("prefill", VllmRole::Prefill));
    let decode = start(("decode", VllmRole::Decode));
    let (mut prefill, decode) = (Agent::ready(prefill).await, Agent::ready(decode).await);
    let (_proxy, client) = proxy(home.path(), &["--router-split=always"]).await;

    let prompt = tokens(11, 200);
    let expected = prefill.answers(&prompt, 16).await;
    let reply = client.post("/v1/completions", &completion(&prompt, 16)).await.json();
    assert_eq!(answer(&reply).0, expected, "{}", decode.process.log());
    assert_eq!(decode.prefills("prefill_worker").await, 1.0, "{}", decode.process.log());
    let moved = ("vllm:prompt_tokens_by_source_total", "external_kv_transfer");
    assert_eq!(decode.says(moved.0, moved.1).await, 200.0);
    a_hand_over_is_used_once(&client, &prefill, &decode).await;
    a_client_that_hangs_up_frees_both_engines(&client, &prefill, &decode).await;
    half_a_pair_is_given_up_in_time(&client, &prefill, &decode).await;

    // What a client sends of the hand-over never reaches an engine: one malformed set kills it.
    let mut hostile = completion(&tokens(12, 70), 2);
    hostile["kv_transfer_params"] = json!({ "do_remote_prefill": true });
    hostile["bootstrap_room"] = json!(1);
    let reply = client.post("/v1/completions", &hostile).await;
    assert!(reply.status.is_success() || reply.status == 400, "{}", reply.status);
    assert_eq!(decode.engine.get("/health").await.status, 200);

    // Without its prefill worker the decode worker computes prompts itself.
    let started = prefill.process.event("engine started").await;
    signal(started["pid"].as_u64().unwrap() as u32, "KILL");
    let prompt = tokens(13, 150);
    let reply = client.post("/v1/completions", &completion(&prompt, 8)).await.json();
    assert_eq!(answer(&reply).0, decode.answers(&prompt, 8).await);
}

/// What is left of a hand-over that was used are blocks that hold anything by now.
async fn a_hand_over_is_used_once(client: &Client, prefill: &Agent, decode: &Agent) {
    let prompt = tokens(14, 100);
    let expected = prefill.answers(&prompt, 8).await;
    let before = decode.prefills("prefill_worker").await;
    for n in 1..=3 {
        let reply = client.post("/v1/completions", &completion(&prompt, 8)).await.json();
        assert_eq!(answer(&reply).0, expected, "request {n}");
        assert_eq!(decode.prefills("prefill_worker").await, before + f64::from(n));
    }
    // Choices of one request would share it: they are computed in one place.
    let mut body = completion(&prompt, 8);
    body["n"] = json!(2);
    let reply = client.post("/v1/completions", &body).await.json();
    let tokens =
        |n: usize| serde_json::from_value::<Vec<u32>>(reply["choices"][n]["token_ids"].clone());
    assert_eq!([0, 1].map(|n| tokens(n).unwrap()), [expected.clone(), expected]);
    assert_eq!(decode.prefills("prefill_worker").await, before + 3.0);
    prefill.has_released_all().await;
    let late = "vllm:nixl_num_notifications_after_expiry_total";
    assert_eq!(prefill.says(late, "").await, 0.0);
}

async fn a_client_that_hangs_up_frees_both_engines(
    client: &Client,
    prefill: &Agent,
    decode: &Agent,
) {
    for seed in 15..18 {
        let before = decode.prefills("prefill_worker").await;
        let mut body = completion(&tokens(seed, 1000), 900);
        body["stream"] = json!(true);
        let mut stream = client.stream("/v1/completions", &body).await;
        stream.next().await;
        assert_eq!(decode.prefills("prefill_worker").await, before + 1.0);
        drop(stream);
        decode.has_released_all().await;
        prefill.has_released_all().await;
    }
}

/// The prefill worker takes a prompt and says nothing more.
async fn half_a_pair_is_given_up_in_time(client: &Client, prefill: &Agent, decode: &Agent) {
    let prompt = tokens(19, 300);
    let core = core(&prefill.process.log());
    signal(core, "STOP");
    let reply = client.post("/v1/completions", &completion(&prompt, 8)).await.json();
    signal(core, "CONT");
    assert_eq!(answer(&reply).0, decode.answers(&prompt, 8).await);
    assert_eq!(decode.prefills("itself_timeout").await, 1.0, "{}", decode.process.log());
    // What it was asked was taken back, so it holds nothing for anybody.
    prefill.has_released_all().await;
}
