//! What every engine's agent is held to, against the engine's own word.

use crate::agents::{
    self, Agent, accepted, answer, completed, completion, hashes, refused, stream, streamed,
};
use serde_json::{Value, json};
use stator_protos::Generation;
use stator_protos::hash::SequenceHash;
use stator_tests::http::Client;
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, CONTEXT, Engine, MODEL, TOTAL_BLOCKS};
use std::collections::{BTreeSet, HashSet};

/// An agent and its engine, as the suite sees them.
pub(crate) trait Tested {
    /// The engine's own greedy answer.
    async fn answers(&self, prompt: &[u32], max_tokens: u32) -> Vec<u32>;

    /// Blocks that the agent says its engine holds, made of the engine's events.
    async fn blocks(&mut self) -> HashSet<SequenceHash>;

    /// Waits until the engine has no request, and no block in use.
    async fn has_released_all(&self);

    /// Runs `stator operate`, and says whether it was done, and what it printed.
    async fn operate(&mut self, operation: &[&str]) -> (bool, String);

    /// Leading tokens of a prompt that the agent says its engine holds.
    async fn holds(&mut self, prompt: &[u32]) -> usize {
        let blocks = self.blocks().await;
        let hashes = hashes(prompt);
        hashes.iter().take_while(|hash| blocks.contains(hash)).count() * BLOCK_SIZE
    }

    /// Waits until the agent has heard of all whole blocks of a prompt.
    async fn hears_of(&mut self, prompt: &[u32]) {
        let whole = prompt.len() / BLOCK_SIZE * BLOCK_SIZE;
        soon("the engine's events", async {
            while self.holds(prompt).await < whole {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// One whose engine dies and comes back.
pub(crate) trait Mortal: Tested {
    /// Kills the engine, and waits until that is known.
    async fn kill_engine(&mut self);

    /// Waits until the engine that was killed serves again.
    async fn recovers(&mut self);

    /// The life that the fleet is told of.
    async fn generation(&mut self) -> Generation;
}

impl Tested for Agent {
    async fn answers(&self, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
        self.answers(prompt, max_tokens).await
    }

    async fn blocks(&mut self) -> HashSet<SequenceHash> {
        agents::snapshot(&mut self.client, self.worker).await.0
    }

    async fn has_released_all(&self) {
        self.has_released_all().await;
    }

    async fn operate(&mut self, operation: &[&str]) -> (bool, String) {
        agents::operate(&mut self.process, operation).await
    }
}

impl Mortal for Agent {
    async fn kill_engine(&mut self) {
        self.kill_engine().await;
    }

    async fn recovers(&mut self) {
        self.recovers().await;
    }

    async fn generation(&mut self) -> Generation {
        self.record().await.workers[0].generation
    }
}

/// Tokens that all models here know, the built-in one too.
pub(crate) fn tokens(seed: u32, count: usize) -> Vec<u32> {
    agents::tokens(seed, count).into_iter().map(|id| id % 3000).collect()
}

pub(crate) async fn greedy_answers_are_the_engines_own(client: &Client, agent: &impl Tested) {
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
pub(crate) async fn what_is_cached_is_known_through_eviction(
    client: &Client,
    agent: &mut impl Tested,
) {
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

/// Under its own names and under ours, once nothing runs. Its counters have moved by then.
pub(crate) async fn what_the_engines_page_says_is_on_the_agents(agent: &Agent) {
    agent.has_released_all().await;
    let page = agent.engine.get("/metrics").await.body;
    let page = String::from_utf8_lossy(&page).into_owned();
    let own = format!("{}:", agent.kind.name());
    let names = page.lines().filter_map(|line| line.split(['{', ' ']).next());
    let names = names.filter(|name| name.starts_with(&own) && holds_still(name));
    let names: BTreeSet<_> = names.collect();
    assert!(names.len() > 50, "only {names:?}");
    for name in names {
        says_the_same(agent, name, (name, "")).await;
    }
    for (ours, theirs) in vocabulary(agent.kind) {
        says_the_same(agent, &format!("stator_agent_engine_{ours}"), theirs).await;
    }
    for moved in ["prefix_query_tokens", "prefix_hit_tokens", "prompt_tokens", "generated_tokens"] {
        assert!(agent.metric(&format!("stator_agent_engine_{moved}")).await > 0.0, "{moved}");
    }
    assert_eq!(agent.metric("stator_agent_engine_kv_blocks").await, TOTAL_BLOCKS as f64);
}

/// Whether nothing moves it while nothing runs. When counting began is on no page of ours; SGLang
/// counts how long it idles, and who reads its page.
fn holds_still(name: &str) -> bool {
    let idles = name.starts_with("sglang:") && name.ends_with("_seconds_total");
    !(idles || name.starts_with("sglang:http_") || name.ends_with("_created"))
}

/// The agent reads the page now and then.
async fn says_the_same(agent: &Agent, shown: &str, (name, labels): (&str, &str)) {
    soon(shown, async {
        loop {
            let (here, there) = (agent.metric(shown).await, agent.says(name, labels).await);
            // A share of nothing is no number.
            if here == there || (here.is_nan() && there.is_nan()) {
                break;
            }
        }
    })
    .await;
}

/// What an agent calls it, and where an engine's page has it: name and labels.
fn vocabulary(kind: Engine) -> [(&'static str, (&'static str, &'static str)); 8] {
    let [running, used] = kind.busy().map(|name| (name, ""));
    let [waiting, queries, hits, prompts, generated, steps] = match kind {
        Engine::Vllm => [
            ("vllm:num_requests_waiting", ""),
            ("vllm:prefix_cache_queries_total", ""),
            ("vllm:prefix_cache_hits_total", ""),
            ("vllm:prompt_tokens_total", ""),
            ("vllm:generation_tokens_total", ""),
            ("vllm:iteration_tokens_total_count", ""),
        ],
        Engine::Sglang => [
            ("sglang:num_queue_reqs", ""),
            ("sglang:realtime_tokens_total", "mode=\"prefill_"),
            ("sglang:realtime_tokens_total", "mode=\"prefill_cache\""),
            ("sglang:realtime_tokens_total", "mode=\"prefill_"),
            ("sglang:generation_tokens_total", ""),
            ("sglang:cuda_graph_passes_total", ""),
        ],
    };
    [
        ("requests_running", running),
        ("requests_waiting", waiting),
        ("kv_usage_ratio", used),
        ("prefix_query_tokens", queries),
        ("prefix_hit_tokens", hits),
        ("prompt_tokens", prompts),
        ("generated_tokens", generated),
        ("steps", steps),
    ]
}

pub(crate) async fn a_client_that_hangs_up_stops_the_engine(client: &Client, agent: &impl Tested) {
    let mut body = completion(&tokens(3, 64), 1900);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &body).await;
    stream.next().await;
    drop(stream);
    agent.has_released_all().await;
}

pub(crate) async fn a_reset_cache_is_known_to_be_empty(client: &Client, agent: &mut impl Tested) {
    let prompt = tokens(4, 200);
    client.post("/v1/completions", &completion(&prompt, 1)).await;
    agent.hears_of(&prompt).await;
    let (done, log) = agent.operate(&["reset-cache"]).await;
    assert!(done, "{log}");
    // At once, although vLLM itself says so only with the next request.
    assert_eq!(agent.blocks().await, HashSet::new());
    let reply = client.post("/v1/completions", &completion(&prompt, 1)).await.json();
    assert_eq!(answer(&reply).1, 0);
    agent.hears_of(&prompt).await;
}

/// Whoever has paused it is told that nothing comes through; what it was doing goes on afterwards.
pub(crate) async fn a_pause_holds_what_runs_and_forgets_nothing(
    client: &Client,
    agent: &mut impl Tested,
) {
    let prompt = tokens(41, 200);
    let expected = answer(&completed(client, MODEL, &prompt, 8).await).0;
    agent.hears_of(&prompt).await;
    let held = stream(client, &tokens(42, 64), 1000).await;
    does(agent, &["pause"]).await;
    assert_eq!(agent.holds(&prompt).await, 192);
    is_refused(client, &prompt).await;
    does(agent, &["resume"]).await;
    assert_eq!(streamed(held).await, agent.answers(&tokens(42, 64), 1000).await);
    assert_eq!(answer(&accepted(client, &prompt).await), (expected, 192));
}

/// Its requests outlast it too, although their KV does not.
pub(crate) async fn a_sleep_holds_what_runs_and_forgets_all(
    client: &Client,
    agent: &mut impl Tested,
) {
    let prompt = tokens(46, 200);
    let expected = answer(&completed(client, MODEL, &prompt, 8).await).0;
    agent.hears_of(&prompt).await;
    let held = stream(client, &tokens(47, 64), 1000).await;
    does(agent, &["sleep", "1"]).await;
    assert_eq!(agent.blocks().await, HashSet::new());
    is_refused(client, &prompt).await;
    does(agent, &["wake"]).await;
    assert_eq!(streamed(held).await, agent.answers(&tokens(47, 64), 1000).await);
    assert_eq!(answer(&accepted(client, &prompt).await), (expected, 0));
}

async fn does(agent: &mut impl Tested, operation: &[&str]) {
    let (done, log) = agent.operate(operation).await;
    assert!(done, "{operation:?}: {log}");
}

async fn is_refused(client: &Client, prompt: &[u32]) {
    let refused = refused(client, prompt).await;
    assert!(refused.headers.contains_key("retry-after"), "{:?}", refused.headers);
}

pub(crate) async fn an_engine_that_dies_ends_its_requests_and_comes_back(
    client: &Client,
    agent: &mut impl Mortal,
) {
    let before = agent.generation().await;
    let mut body = completion(&tokens(5, 64), 1900);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &body).await;
    stream.next().await;
    agent.kill_engine().await;
    let end = stream.end().await.unwrap();
    let end = String::from_utf8_lossy(&end).into_owned();
    assert!(end.contains("\"error\""), "a stream that was cut off ends with an error: {end}");

    agent.recovers().await;
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
    assert!(agent.generation().await > before);
}
