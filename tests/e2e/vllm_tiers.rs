//! Agents that keep the KV of a real vLLM in their host memory.

use crate::agents::{Agent, PLANES, answer, completed, hashes, tokens};
use serde_json::json;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::worker::SnapshotRequest;
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role};
use stator_tests::vllm::{VllmServer, serve_with};
use stator_tests::{soon, stock::all_engines};
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

/// Tokens of a long prompt: 46 whole blocks and some more.
const LONG: usize = 1500;
/// Tokens of an answer.
const ANSWER: u32 = 16;
/// Folder of the modules that engines load.
const SHIMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker-agent/kv/shims");

/// The shim's own tests: every method takes whatever there is, and no request waits for long.
#[test]
fn shim_never_raises() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let python = bed.program().with_file_name("python");
    let mut tests = Command::new(python);
    tests.args(["-B", "-m", "unittest", "test_vllm_0_32"]).current_dir(SHIMS);
    let result = tests.output().unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
}

#[tokio::test]
async fn a_vllm_finds_again_what_it_computed_before() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    // Slots for 488 blocks, of which the engine itself has room for 256.
    let role = ("aggregated", Role::Aggregated);
    let flags = (&["--kv-host-gb=0.008"][..], 1);
    let process = Agent::start_with(&bed, home.path(), role, flags);
    let mut agent = Agent::ready(Engine::Vllm, process).await;

    prompts_and_answers_come_back_when_the_engine_forgot_them(&agent).await;
    answers_stay_when_host_memory_is_too_small(&agent).await;
    a_new_life_of_the_engine_finds_what_the_one_before_stored(&mut agent).await;
}

async fn prompts_and_answers_come_back_when_the_engine_forgot_them(agent: &Agent) {
    for (seed, length) in [(1, 200), (2, LONG), (3, 33)] {
        let prompt = tokens(seed, length);
        let blocks = computed_blocks(length);
        let (first, cached) = asked_and_stored(agent, &prompt, blocks).await;
        assert_eq!(cached, 0);
        forget(&agent.engine).await;
        assert_eq!(asked(&agent.engine, &prompt).await, (first.clone(), whole_blocks(length)));

        // The answer is part of the next prompt, as in a conversation.
        let next = [prompt, first, tokens(seed + 50, 40)].concat();
        let new = computed_blocks(next.len()) - blocks;
        let (second, _) = asked_and_stored(agent, &next, new).await;
        forget(&agent.engine).await;
        assert_eq!(asked(&agent.engine, &next).await, (second, whole_blocks(next.len())));
    }
}

async fn answers_stay_when_host_memory_is_too_small(agent: &Agent) {
    let prompts: Vec<_> = (0..16).map(|seed| tokens(100 + seed, LONG)).collect();
    let mut first = Vec::new();
    for prompt in &prompts {
        first.push(asked(&agent.engine, prompt).await.0);
    }
    // Backwards: the last are there still.
    let mut hits = 0;
    for (prompt, first) in prompts.iter().zip(&first).rev() {
        forget(&agent.engine).await;
        let (again, cached) = asked(&agent.engine, prompt).await;
        assert_eq!(again, *first);
        hits += cached;
    }
    assert!(hits >= whole_blocks(LONG) && hits < 16 * LONG, "{hits}");
}

async fn a_new_life_of_the_engine_finds_what_the_one_before_stored(agent: &mut Agent) {
    let prompt = tokens(4, LONG);
    let (first, _) = asked_and_stored(agent, &prompt, computed_blocks(LONG)).await;
    agent.kill_engine().await;
    agent.recovers().await;
    // Routers know it before anybody asks.
    let blocks: HashSet<_> = hashes(&prompt).into_iter().collect();
    assert_eq!(blocks.len(), LONG / BLOCK_SIZE);
    soon("host memory is published", async {
        while !published(agent, Medium::Host).await.is_superset(&blocks) {}
    })
    .await;
    assert_eq!(asked(&agent.engine, &prompt).await, (first, whole_blocks(LONG)));
}

#[tokio::test]
async fn a_vllm_outlives_the_agent_whose_host_memory_it_uses() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("kv");
    let server = start_with_tiers(&bed, &folder).await;
    // There is no agent yet.
    let prompt = tokens(5, LONG);
    let (expected, _) = asked(&server.client(), &prompt).await;

    let mut agent = attached(&bed, &server, home.path()).await;
    finds_again(&agent.engine, &prompt, &expected).await;
    answers_come_while_the_agent_stands_still(&agent, &prompt, &expected).await;
    finds_again(&agent.engine, &prompt, &expected).await;

    signal(agent.process.id(), "KILL");
    agent.process.kill().await;
    forget(&server.client()).await;
    assert_eq!(asked(&server.client(), &prompt).await, (expected.clone(), 0));

    // The next agent has other memory, and nothing in it.
    agent = attached(&bed, &server, home.path()).await;
    finds_again(&agent.engine, &prompt, &expected).await;
    if all_engines("two vLLMs that share the host memory of an agent") {
        let second = start_with_tiers(&bed, &folder).await;
        assert_eq!(asked(&second.client(), &prompt).await, (expected, whole_blocks(LONG)));
    }
}

async fn answers_come_while_the_agent_stands_still(
    agent: &Agent,
    prompt: &[u32],
    expected: &[u32],
) {
    signal(agent.process.id(), "STOP");
    for _ in 0..5 {
        forget(&agent.engine).await;
        assert_eq!(asked(&agent.engine, prompt).await, (expected.to_vec(), 0));
    }
    signal(agent.process.id(), "CONT");
}

/// Blocks that the agent says a medium holds.
async fn published(agent: &mut Agent, medium: Medium) -> HashSet<SequenceHash> {
    let WorkerRank { worker, rank } = agent.worker;
    let request = SnapshotRequest { worker_id: worker.0, rank: rank.into() };
    let mut chunks = agent.client.snapshot(request).await.unwrap().into_inner();
    let mut held = HashSet::new();
    while let Some(chunk) = soon("a chunk", chunks.message()).await.unwrap() {
        if Medium::from(chunk.medium()) == medium {
            held.extend(chunk.sequence_hashes.into_iter().map(SequenceHash));
        }
    }
    held
}

/// Waits until a prompt comes from the host memory of an agent that the engine may have to join.
async fn finds_again(engine: &Client, prompt: &[u32], expected: &[u32]) {
    soon("a prompt from host memory", async {
        loop {
            forget(engine).await;
            let (tokens, cached) = asked(engine, prompt).await;
            assert_eq!(tokens, expected);
            if cached == whole_blocks(prompt.len()) {
                return;
            }
        }
    })
    .await;
}

/// A vLLM that finds an agent's tiers in this folder, once they are there.
async fn start_with_tiers(bed: &Bed, folder: &Path) -> VllmServer {
    let config = json!({
        "kv_connector": "Connector",
        "kv_connector_module_path": "vllm_0_32",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "Spec",
            "spec_module_path": "vllm_0_32",
            "stator_socket": folder.join("kv.sock"),
        },
    });
    let flags = ["--kv-transfer-config", &config.to_string()];
    serve_with(bed, Role::Aggregated, &flags, &[("PYTHONPATH", SHIMS)]).await
}

/// An agent for an engine that runs, with tiers in the folder `kv` of `home`.
async fn attached(bed: &Bed, server: &VllmServer, home: &Path) -> Agent {
    let dir = format!("--discovery-dir={}", home.display());
    let socket = format!("--kv-socket-dir={}", home.join("kv").display());
    let attach = format!("--attach={}", server.url());
    let model = format!("--model={}", bed.model().display());
    let name = format!("--model-name={MODEL}");
    let mut args =
        vec!["agent", "--engine=vllm", &attach, &model, &name, &dir, "--kv-host-gb=0.02"];
    args.push(&socket);
    args.extend(PLANES);
    Agent::found(Engine::Vllm, Process::start(&args)).await
}

/// An engine's greedy answer, and the tokens of the prompt that it had cached anywhere.
async fn asked(engine: &Client, prompt: &[u32]) -> (Vec<u32>, usize) {
    answer(&completed(engine, MODEL, prompt, ANSWER).await)
}

/// Has an engine forget all KV in its own memory.
async fn forget(engine: &Client) {
    let reply = engine.post("/reset_prefix_cache", &json!({})).await;
    assert!(reply.status.is_success(), "{}", reply.status);
}

/// Tokens of a prompt's blocks, without one that is not full.
fn whole_blocks(tokens: usize) -> usize {
    tokens / BLOCK_SIZE * BLOCK_SIZE
}

/// Blocks that the agent has taken into host memory since it began.
async fn stored(agent: &Agent) -> f64 {
    agent.metric("stator_kv_filled_slots_total{outcome=\"registered\"}").await
}

/// Asks, and waits until so many blocks that are new to the agent are in its host memory.
async fn asked_and_stored(agent: &Agent, prompt: &[u32], blocks: usize) -> (Vec<u32>, usize) {
    let before = stored(agent).await;
    let answered = asked(&agent.engine, prompt).await;
    let all = before + blocks as f64;
    soon("blocks in host memory", async { while stored(agent).await < all {} }).await;
    assert_eq!(stored(agent).await, all);
    answered
}

/// Blocks whose KV an engine has after the answer to a prompt: the last token's is not computed.
fn computed_blocks(prompt: usize) -> usize {
    (prompt + ANSWER as usize - 1) / BLOCK_SIZE
}
