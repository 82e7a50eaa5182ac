//! Agents that run real engines, and what is asked of them through the proxy.

use crate::lifecycle::{gauge, gauge_becomes};
use crate::support::ready;
use serde_json::{Value, json};
use stator_protos::WorkerRank;
use stator_protos::discovery::AgentRecord;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::worker::SnapshotRequest;
use stator_protos::worker::worker_client::WorkerClient;
use stator_tests::http::{Client, Events, Reply};
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role, START_DEADLINE};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use tonic::transport::Channel;

/// Where an agent is reached: nowhere that anything else is.
pub(crate) const PLANES: [&str; 4] = [
    "--listen=127.0.0.1:0",
    "--metrics-port=0",
    "--events-listen=tcp://127.0.0.1:0",
    "--replay-listen=tcp://127.0.0.1:0",
];

/// A process of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The engine's that serves HTTP.
    Server,
    /// The engine's that computes.
    Core,
    /// The agent's. Its engine ends with it.
    Agent,
}

/// An agent and the engine that it runs.
pub(crate) struct Agent {
    pub name: String,
    pub process: Process,
    pub kind: Engine,
    /// The engine itself, past the agent.
    pub engine: Client,
    pub client: WorkerClient<Channel>,
    pub worker: WorkerRank,
    pub(crate) metrics: Client,
    /// How often its engine was killed by [`Agent::strike`].
    deaths: usize,
}

impl Agent {
    /// With further flags, and an engine of so many data-parallel ranks.
    pub(crate) fn start_with(
        bed: &Bed,
        home: &Path,
        who: (&str, Role),
        (further, ranks): (&[&str], u16),
    ) -> Process {
        let flags = bed.engine().flags(who.1, ranks);
        let further = further.iter().copied().chain(["--"]);
        let args: Vec<_> = further.chain(flags.iter().map(String::as_str)).collect();
        Self::start_as(bed, home, who, (&args, ranks))
    }

    /// For whole requests, with these flags of its own and further ones of its engine, and further
    /// variables in its environment.
    pub(crate) fn start_in(
        bed: &Bed,
        home: &Path,
        (flags, further): (&[&str], &[&str]),
        variables: &[(&str, &str)],
    ) -> Process {
        let role = Role::Aggregated;
        let engine = bed.engine().flags(role, 1);
        let engine = engine.iter().map(String::as_str).chain(further.iter().copied());
        let flags: Vec<_> = flags.iter().copied().chain(["--"]).chain(engine).collect();
        let args = arguments(bed, home, (role.name(), role), &flags);
        let environment = [&bed.engine().environment(1), variables].concat();
        Process::start_with(&as_strs(&args), &environment)
    }

    /// With these flags of its own, and behind two dashes of its engine's, of so many ranks.
    pub(crate) fn start_as(
        bed: &Bed,
        home: &Path,
        who: (&str, Role),
        (flags, ranks): (&[&str], u16),
    ) -> Process {
        let args = arguments(bed, home, who, flags);
        Process::start_with(&as_strs(&args), &bed.engine().environment(ranks))
    }

    /// Waits until the engine that it starts serves.
    pub(crate) async fn ready(kind: Engine, mut process: Process) -> Self {
        serves(kind, &mut process, 0).await;
        Self::found(kind, process).await
    }

    /// Waits until it has found out about its engine.
    pub(crate) async fn found(kind: Engine, mut process: Process) -> Self {
        let side = process.event("side server listening").await;
        let engine = process.event("engine is ready").await;
        let serving = process.event("serving").await;
        let endpoint = serving["endpoint"].as_str().unwrap().to_owned();
        let mut client = WorkerClient::connect(endpoint).await.unwrap();
        let record = record(&mut client).await;
        Self {
            name: record.agent_id,
            engine: Client::new(address(&engine["url"])),
            metrics: Client::new(address(&side["address"])),
            worker: record.workers[0].worker,
            client,
            process,
            kind,
            deaths: 0,
        }
    }

    /// Waits until the engine serves again, the `n`th time after the first, which may be elsewhere.
    pub(crate) async fn comes_back(&mut self, n: usize) {
        serves(self.kind, &mut self.process, n).await;
        let serves = self.process.nth_event("the engine serves", n).await;
        self.engine = Client::new(address(&serves["url"]));
    }

    /// The engine's process, the `n`th that was started.
    pub(crate) async fn engine_process(&mut self, n: usize) -> u32 {
        self.process.nth_event("engine started", n).await["pid"].as_u64().unwrap() as u32
    }

    /// The process of its engine that computes, as it is now.
    pub(crate) fn core(&self) -> u32 {
        self.kind.core(&self.process.log())
    }

    /// Kills the engine, and waits until the agent knows.
    pub(crate) async fn kill_engine(&mut self) {
        self.strike(Part::Server).await;
        self.knows(Part::Server).await;
    }

    /// Kills one of its processes. Of an agent whose engine dies in no other way.
    pub(crate) async fn strike(&mut self, part: Part) {
        let process = match part {
            Part::Server => self.engine_process(self.deaths).await,
            Part::Core => self.core(),
            Part::Agent => self.process.id(),
        };
        signal(process, "KILL");
    }

    /// Waits until the agent knows that this part of its engine was killed, or where it was killed
    /// itself until its engine is gone too.
    pub(crate) async fn knows(&mut self, part: Part) {
        if part == Part::Agent {
            let engine = self.engine_process(self.deaths).await;
            self.process.kill().await;
            return is_gone(engine).await;
        }
        self.process.nth_event("the engine's life ended", self.deaths).await;
        self.deaths += 1;
    }

    /// Waits until the engine that was killed serves again.
    pub(crate) async fn recovers(&mut self) {
        self.comes_back(self.deaths).await;
    }

    /// Waits until it has something to do.
    pub(crate) async fn has_requests(&self) {
        soon("a request", async {
            let [running, waiting] = ["running", "waiting"];
            let count = async |of| self.metric(&format!("stator_agent_requests_{of}")).await;
            while count(running).await + count(waiting).await == 0.0 {}
        })
        .await;
    }

    /// Waits until nothing that it was asked for is with its engine.
    pub(crate) async fn has_no_requests(&self) {
        gauge_becomes(&self.metrics, "stator_agent_requests_running", 0.0).await;
        gauge_becomes(&self.metrics, "stator_agent_requests_waiting", 0.0).await;
    }

    /// Prompt tokens that the engine has computed, by its own count.
    pub(crate) async fn has_computed(&self) -> f64 {
        let (name, labels) = self.kind.computed();
        // An engine may show nothing before its first prompt.
        self.says(name, labels).await.max(0.0)
    }

    /// What it tells the fleet of itself.
    pub(crate) async fn record(&mut self) -> AgentRecord {
        record(&mut self.client).await
    }

    /// The engine's own greedy answer.
    pub(crate) async fn answers(&self, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
        let (path, body) = self.kind.question(MODEL, prompt, max_tokens);
        self.kind.answer(&self.engine.post(path, &body).await.json())
    }

    /// Prompts of requests that a prefill worker was named for, by who computed them.
    pub(crate) async fn prefills(&self, by: &str) -> f64 {
        self.metric(&format!("stator_agent_prefills_total{{by=\"{by}\"}}")).await
    }

    /// Of these the prompts that its own engine computed after all.
    pub(crate) async fn prefills_by_itself(&self) -> f64 {
        let all = self.metric("stator_agent_prefills_total").await;
        all - self.prefills("prefill_worker").await - self.prefills("nobody").await
    }

    /// A number that the engine itself shows, summed over all its series whose labels contain
    /// `labels`; no number, which equals none, where it shows none of that name.
    pub(crate) async fn says(&self, name: &str, labels: &str) -> f64 {
        let page = self.engine.get("/metrics").await.body;
        let page = String::from_utf8_lossy(&page).into_owned();
        if !page.contains(name) {
            return f64::NAN;
        }
        let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let series =
            lines.filter(|(of, _)| of.split('{').next() == Some(name) && of.contains(labels));
        series.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
    }

    /// Waits until the engine says that it runs so many requests.
    pub(crate) async fn runs(&self, count: f64) {
        let [running, _] = self.kind.busy();
        soon("requests", async { while self.says(running, "").await != count {} }).await;
    }

    /// Waits until the engine has no request, and no block in use.
    pub(crate) async fn has_released_all(&self) {
        soon("an idle engine", async {
            let [running, used] = self.kind.busy();
            while self.says(running, "").await + self.says(used, "").await != 0.0 {}
        })
        .await;
    }

    pub(crate) async fn metric(&self, series: &str) -> f64 {
        gauge(&self.metrics, series).await.unwrap_or(0.0)
    }
}

/// Waits until a process has ended. Nobody may have taken note of its end.
pub(crate) async fn is_gone(process: u32) {
    let status = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which is in parentheses.
    let runs = |status: &str| status.rsplit(") ").next().is_some_and(|of| !of.starts_with('Z'));
    soon("the end of a process", async {
        while Some(status()).is_some_and(|status| !status.is_empty() && runs(&status)) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The command line of an agent that starts an engine, with these flags behind its own.
fn arguments(bed: &Bed, home: &Path, (id, role): (&str, Role), flags: &[&str]) -> Vec<String> {
    let kind = bed.engine();
    let own = [
        "agent".to_owned(),
        format!("--engine={}", kind.name()),
        format!("--engine-program={}", bed.program().display()),
        format!("--model={}", bed.model().display()),
        format!("--model-name={MODEL}"),
        format!("--discovery-dir={}", home.display()),
        format!("--agent-id={id}"),
        format!("--role={}", role.name()),
    ];
    own.into_iter().chain(PLANES.iter().chain(flags).map(|&flag| flag.to_owned())).collect()
}

fn as_strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// Where `http://host:port`, or what is behind `http://`, leads.
fn address(url: &Value) -> SocketAddr {
    url.as_str().unwrap().trim_start_matches("http://").parse().unwrap()
}

/// Runs `stator operate` for an agent, and says whether it was done, and what it printed.
pub(crate) async fn operate(agent: &mut Process, operation: &[&str]) -> (bool, String) {
    let endpoint = agent.event("serving").await["endpoint"].clone();
    let args = ["operate", "--agent", endpoint.as_str().unwrap()];
    let mut operate = Process::start(&[&args, operation].concat());
    (operate.ended().await.success(), operate.log())
}

/// Blocks that an agent says a worker holds, and the number of the first event that is not in them.
pub(crate) async fn snapshot(
    client: &mut WorkerClient<Channel>,
    WorkerRank { worker, rank }: WorkerRank,
) -> (HashSet<SequenceHash>, u64) {
    let request = SnapshotRequest { worker_id: worker.0, rank: rank.into() };
    let mut chunks = client.snapshot(request).await.unwrap().into_inner();
    let (mut blocks, mut next) = (HashSet::new(), 0);
    while let Some(chunk) = soon("a chunk", chunks.message()).await.unwrap() {
        blocks.extend(chunk.sequence_hashes.into_iter().map(SequenceHash));
        next = chunk.next_sequence;
    }
    (blocks, next)
}

pub(crate) async fn record(client: &mut WorkerClient<Channel>) -> AgentRecord {
    let described = client.describe(stator_protos::worker::DescribeRequest {}).await.unwrap();
    let description = soon("a description", described.into_inner().message()).await.unwrap();
    serde_json::from_str(&description.unwrap().record_json).unwrap()
}

/// Waits until an engine has come up for the `n`th time.
pub(crate) async fn serves(kind: Engine, agent: &mut Process, n: usize) {
    for mark in kind.way() {
        agent.nth_line_within(START_DEADLINE, mark, n).await;
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

pub(crate) fn completion_by(model: &str, prompt: &[u32], max_tokens: u32) -> Value {
    let mut body = completion(prompt, max_tokens);
    body["model"] = json!(model);
    body
}

pub(crate) async fn completed(
    client: &Client,
    model: &str,
    prompt: &[u32],
    max_tokens: u32,
) -> Value {
    let reply = client.post("/v1/completions", &completion_by(model, prompt, max_tokens)).await;
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(reply.status.is_success(), "{}: {text}", reply.status);
    reply.json()
}

/// The first answer that is none.
pub(crate) async fn refused(client: &Client, prompt: &[u32]) -> Reply {
    soon("a refusal", async {
        loop {
            let reply = client.post("/v1/completions", &completion(prompt, 8)).await;
            if reply.status == 503 {
                return reply;
            }
        }
    })
    .await
}

/// The first answer that is one.
pub(crate) async fn accepted(client: &Client, prompt: &[u32]) -> Value {
    first_answer(client, prompt, 8).await
}

/// The first answer that is one, of so many tokens. Until then no engine has heard of the prompt.
pub(crate) async fn first_answer(client: &Client, prompt: &[u32], max_tokens: u32) -> Value {
    soon("an answer", async {
        loop {
            let reply = client.post("/v1/completions", &completion(prompt, max_tokens)).await;
            if reply.status.is_success() {
                return reply.json();
            }
        }
    })
    .await
}

pub(crate) async fn ends_with_an_error(mut stream: Events) {
    let end = stream.end().await.unwrap();
    let end = String::from_utf8_lossy(&end).into_owned();
    assert!(end.contains("\"error\""), "a stream that was cut off ends with an error: {end}");
    assert!(end.ends_with("\n\n"), "{end:?}");
}

/// The tokens of an answer, and the prompt tokens that its engine says it had cached.
pub(crate) fn answer(reply: &Value) -> (Vec<u32>, usize) {
    let tokens = serde_json::from_value(reply["choices"][0]["token_ids"].clone());
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    (tokens.unwrap_or_else(|error| panic!("{error}: {reply}")), cached.unwrap() as usize)
}

pub(crate) async fn proxy(home: &Path, flags: &[&str]) -> (Process, Client) {
    let dir = format!("--discovery-dir={}", home.display());
    let mut args = vec!["proxy", "--http-port=0", "--metrics-port=0", "--worker-wait-ms=10", &dir];
    args.extend(flags);
    let mut proxy = Process::start(&args);
    let client = Client::new(ready(&mut proxy).await);
    (proxy, client)
}

/// A stream that has begun, and what came of it.
pub(crate) async fn stream(
    client: &Client,
    prompt: &[u32],
    max_tokens: u32,
) -> (Events, Vec<Value>) {
    let mut body = completion(prompt, max_tokens);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &body).await;
    let Some(first) = stream.next().await else {
        panic!("{}: {:?}", stream.response.status(), stream.end().await);
    };
    (stream, vec![serde_json::from_str(&first).unwrap()])
}

/// All tokens of a stream, which ends by itself.
pub(crate) async fn streamed((mut stream, mut chunks): (Events, Vec<Value>)) -> Vec<u32> {
    chunks.extend(stream.rest().await);
    let finish = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]);
    assert!(finish.clone().any(|finish| finish == "length"), "{chunks:?}");
    let ids = |chunk: &Value| {
        serde_json::from_value::<Vec<u32>>(chunk["choices"][0]["token_ids"].clone())
    };
    chunks.iter().flat_map(|chunk| ids(chunk).unwrap_or_default()).collect()
}
