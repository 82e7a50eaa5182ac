//! Agents that keep the KV of a real vLLM in their host memory.

use crate::agents::{Agent, PLANES, answer, completed, completion, completion_by, hashes, tokens};
use crate::kv_peers::ask_near;
use crate::lifecycle::gauge;
use crate::suite::Tested as _;
use crate::traces::Collector;
use crate::vllm_tiers_below::{
    a_second_agent_finds_what_the_first_left_in_an_object_store,
    damaged_blocks_of_a_disk_are_computed,
};
use serde_json::json;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::worker::SnapshotRequest;
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role};
use stator_tests::vllm::{VllmServer, serve_with};
use std::collections::HashSet;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Tokens of a long prompt: 46 whole blocks and some more.
pub(crate) const LONG: usize = 1500;
/// Tokens of its beginning, which end within a block.
const PART: usize = 700;
/// Tokens of an answer.
pub(crate) const ANSWER: u32 = 16;
/// Name of the LoRA adapter.
const ADAPTER: &str = "adapter";
/// Counter of blocks that requests found in a tier below host memory.
pub(crate) const HITS_BELOW: &str = "stator_kv_hit_blocks_total{from=\"below\"}";
/// Folder of the modules that engines load.
pub(crate) const SHIMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker-agent/kv/shims");

#[tokio::test]
async fn a_vllm_finds_again_what_it_computed_before() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    // Slots for 488 blocks, of which the engine itself has room for 256.
    let disk = format!("--kv-disk-dir={}", home.path().join("disk").display());
    let flags = ["--kv-host-gb=0.008", "--kv-disk-gb=0.2", &disk];
    let collector = Collector::default();
    let collected = collector.serve().await;
    let start = || Agent::start_in(&bed, home.path(), (&flags, &[]), &collected.variables());
    let mut agent = Agent::ready(Engine::Vllm, start()).await;

    prompts_and_answers_come_back_when_the_engine_forgot_them(&agent).await;
    tokens_equal_under_pressure_with_offload(&agent).await;
    a_new_life_of_the_engine_finds_what_the_one_before_stored(&mut agent).await;

    // A new life of both: host memory is gone, and the disk is not.
    let prompt = tokens(4, LONG);
    let (expected, _) = asked(&agent.engine, &prompt).await;
    holds(&agent, "disk", computed_blocks(LONG)).await;
    agent.process.kill().await;
    drop(agent);
    let mut agent = Agent::ready(Engine::Vllm, start()).await;
    let (disk, asked) = (("disk", Medium::Disk), (&*prompt, ANSWER));
    let (again, _) = a_tier_is_read_while_the_engine_computes(&mut agent, disk, asked).await;
    assert_eq!(again, expected);
    let told = collector.numbers("kv tiers", 1).await;
    let blocks = (LONG / BLOCK_SIZE) as f64;
    assert_eq!(told["kv.host_blocks"] + told["kv.lower_blocks"], blocks, "{told:?}");
    assert!(told["kv.bytes"] >= blocks && told["kv.asked_blocks"] >= blocks, "{told:?}");
    finds_again(&agent.engine, &prompt, &expected).await;
}

/// All blocks of a prompt come from a tier before the engine has looked at the request. Returns the
/// answer, and the tokens of the prompt that were cached.
pub(crate) async fn a_tier_is_read_while_the_engine_computes(
    agent: &mut Agent,
    (tier, medium): (&str, Medium),
    asked: (&[u32], u32),
) -> (Vec<u32>, usize) {
    let read =
        format!("stator_kv_tier_operations_total{{tier=\"{tier}\",way=\"read\",outcome=\"done\"}}");
    let (blocks, before) = (asked.0.len() / BLOCK_SIZE, agent.metric(&read).await);
    let below: HashSet<_> = hashes(asked.0).into_iter().collect();
    soon("an engine that finds the tier", async {
        while !published(agent, medium).await.is_superset(&below) {}
    })
    .await;
    // A step that takes long.
    let core = agent.core();
    signal(core, "STOP");
    let metrics = agent.metrics.clone();
    let come = async {
        let all = before + blocks as f64;
        soon("blocks from the tier", async {
            while gauge(&metrics, &read).await.unwrap_or(0.0) < all {}
        })
        .await;
        signal(core, "CONT");
    };
    let answered = ask_near(&mut agent.client, agent.worker, asked, &[]);
    let ((answer, cached), ()) = tokio::join!(answered, come);
    (answer, cached as usize)
}

async fn prompts_and_answers_come_back_when_the_engine_forgot_them(agent: &Agent) {
    for (seed, length) in [(1, 200), (2, LONG), (3, 33)] {
        let prompt = tokens(seed, length);
        let blocks = computed_blocks(length);
        let (first, cached) = asked_and_stored(agent, &prompt, blocks).await;
        assert_eq!(cached, 0);
        finds_again(&agent.engine, &prompt, &first).await;

        // The answer is part of the next prompt, as in a conversation.
        let next = [prompt, first, tokens(seed + 50, 40)].concat();
        let new = computed_blocks(next.len()) - blocks;
        let (second, _) = asked_and_stored(agent, &next, new).await;
        finds_again(&agent.engine, &next, &second).await;
    }
}

/// Eight requests at a time, of which the engine has room for five and the host memory for ten: they
/// preempt one another, and are evicted to the disk and read from there.
async fn tokens_equal_under_pressure_with_offload(agent: &Agent) {
    let prompts: Vec<_> = (0..16).map(|seed| tokens(100 + seed, LONG)).collect();
    let mut first = Vec::new();
    for prompt in &prompts {
        first.push(asked(&agent.engine, prompt).await.0);
    }
    let mut hits = 0;
    for turn in 0..3 {
        forget(&agent.engine).await;
        for at in (0..16).step_by(8) {
            let together =
                (at..at + 8).map(|at| asked(&agent.engine, &prompts[(at + 5 * turn) % 16]));
            let answers = futures::future::join_all(together).await;
            for (of, (again, cached)) in (at..at + 8).zip(answers) {
                assert_eq!(again, first[(of + 5 * turn) % 16]);
                hits += cached;
            }
        }
    }
    assert!(hits >= whole_blocks(LONG), "{hits}");
    let from_disk = hits_below(agent).await;
    assert!(from_disk > 0.0, "nothing came from the disk");
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
    finds_again(&agent.engine, &prompt, &first).await;

    // What routers predict from what the tiers hold is what the engine reports, for any prompt.
    for length in [PART, LONG - 1] {
        let begun = [&prompt[..length], &tokens(40 + length as u32, 20)].concat();
        forget(&agent.engine).await;
        let predicted = agent.holds(&begun).await;
        assert_eq!(predicted, length / BLOCK_SIZE * BLOCK_SIZE);
        assert_eq!(asked(&agent.engine, &begun).await.1, predicted);
    }
}

#[tokio::test]
async fn a_vllm_outlives_the_agent_whose_host_memory_it_uses() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("kv");
    let server = start_with_tiers(&bed, &folder, &adapters(&bed)).await;
    // There is no agent yet.
    let prompt = tokens(5, LONG);
    let (expected, _) = asked(&server.client(), &prompt).await;

    let mut agent = attached(&bed, &server, home.path(), &[]).await;
    finds_again(&agent.engine, &prompt, &expected).await;
    answers_come_while_the_agent_stands_still(&agent, &prompt, &expected).await;
    finds_again(&agent.engine, &prompt, &expected).await;

    signal(agent.process.id(), "KILL");
    agent.process.kill().await;
    forget(&server.client()).await;
    assert_eq!(asked(&server.client(), &prompt).await, (expected.clone(), 0));

    // The next agent has other memory, and nothing in it.
    agent = attached(&bed, &server, home.path(), &[]).await;
    finds_again(&agent.engine, &prompt, &expected).await;
    salts_and_adapters_share_nothing(&agent.engine, &prompt).await;

    // A second engine shares the host memory and the disk of the agent; later it has an agent of its
    // own, for which a link leads to another folder.
    let link = home.path().join("second");
    symlink(&folder, &link).unwrap();
    let second = start_with_tiers(&bed, &link, &adapters(&bed)).await;
    // The prompt plain, salted and adapted.
    let all = 3 * computed_blocks(LONG);
    holds(&agent, "host", all).await;
    finds_again(&second.client(), &prompt, &expected).await;
    assert_eq!(stored(&agent).await, all as f64, "the second engine stored something");
    agent.process.kill().await;
    let servers = [&server, &second];
    damaged_blocks_of_a_disk_are_computed(&bed, servers, home.path(), (&prompt, &expected)).await;
    a_vllm_reads_what_the_agent_of_another_holds(&bed, servers, home.path(), &link).await;
    drop(second);
    a_second_agent_finds_what_the_first_left_in_an_object_store(&bed, &server, home.path()).await;
}

/// The name of a block has all that its KV depends on.
async fn salts_and_adapters_share_nothing(engine: &Client, prompt: &[u32]) {
    let mut salted = completion(prompt, ANSWER);
    salted["cache_salt"] = json!("tenant");
    let adapted = completion_by(ADAPTER, prompt, ANSWER);
    for body in [salted, adapted] {
        let ask = async || {
            let reply = engine.post("/v1/completions", &body).await;
            assert!(reply.status.is_success(), "{}", reply.status);
            answer(&reply.json())
        };
        forget(engine).await;
        let (expected, cached) = ask().await;
        assert_eq!(cached, 0, "{body}");
        soon("blocks of its own", async {
            loop {
                forget(engine).await;
                let (again, cached) = ask().await;
                assert_eq!(again, expected);
                if cached == whole_blocks(prompt.len()) {
                    return;
                }
            }
        })
        .await;
    }
}

/// Waits until a medium holds so many blocks.
pub(crate) async fn holds(agent: &Agent, medium: &str, blocks: usize) {
    let series = format!("stator_kv_blocks{{medium=\"{medium}\"}}");
    soon("blocks on a medium", async { while agent.metric(&series).await < blocks as f64 {} })
        .await;
}

/// Blocks that requests found in a tier below host memory.
pub(crate) async fn hits_below(agent: &Agent) -> f64 {
    agent.metric(HITS_BELOW).await
}

/// The second engine's link leads to the folder of an agent of its own from here on.
async fn a_vllm_reads_what_the_agent_of_another_holds(
    bed: &Bed,
    [server, reader]: [&VllmServer; 2],
    home: &Path,
    link: &Path,
) {
    let other = home.join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::remove_file(link).unwrap();
    symlink(other.join("kv"), link).unwrap();
    let mut first = attached(bed, server, home, &[]).await;
    let mut second = attached(bed, reader, &other, &[]).await;
    // Each engine has joined its agent when a prompt comes back.
    for (agent, seed) in [(&first, 8), (&second, 9)] {
        let prompt = tokens(seed, LONG);
        let (expected, _) = asked(&agent.engine, &prompt).await;
        finds_again(&agent.engine, &prompt, &expected).await;
        holds(agent, "host", computed_blocks(LONG)).await;
    }

    let address = first.record().await.profile.kv_transfer.expect("it lends");
    let blocks = LONG / BLOCK_SIZE;
    let holders = [(&*address, blocks as u32)];
    soon("a prompt that another agent holds", async {
        // Blocks that come later than they could be computed are given up.
        for seed in 100.. {
            let prompt = tokens(seed, LONG);
            let (expected, _) = asked_and_stored(&first, &prompt, computed_blocks(LONG)).await;
            let asked = (&*prompt, ANSWER);
            let (answer, cached) =
                ask_near(&mut second.client, second.worker, asked, &holders).await;
            assert_eq!(answer, expected);
            if cached as usize == whole_blocks(LONG) {
                break;
            }
        }
    })
    .await;
    let read = "stator_kv_tier_operations_total{tier=\"peer\",way=\"read\",outcome=\"done\"}";
    assert!(second.metric(read).await >= blocks as f64);

    // Without a living holder it computes.
    let prompt = tokens(11, LONG);
    let (expected, _) = asked_and_stored(&first, &prompt, computed_blocks(LONG)).await;
    signal(first.process.id(), "KILL");
    first.process.kill().await;
    let asked = (&*prompt, ANSWER);
    let answered = ask_near(&mut second.client, second.worker, asked, &holders).await;
    assert_eq!(answered, (expected, 0));
    second.process.kill().await;
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
pub(crate) async fn published(agent: &mut Agent, medium: Medium) -> HashSet<SequenceHash> {
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

/// Flags of a vLLM that has the adapter.
fn adapters(bed: &Bed) -> Vec<String> {
    let module = format!("{ADAPTER}={}", bed.adapter().display());
    let flags = ["--enable-lora", "--max-lora-rank=8", "--lora-modules", &module];
    flags.map(str::to_owned).to_vec()
}

/// Waits until a prompt comes from the host memory of an agent that the engine may have to join.
pub(crate) async fn finds_again(engine: &Client, prompt: &[u32], expected: &[u32]) {
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
pub(crate) async fn start_with_tiers(bed: &Bed, folder: &Path, further: &[String]) -> VllmServer {
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
    let config = config.to_string();
    let mut flags = vec!["--kv-transfer-config", &config];
    flags.extend(further.iter().map(String::as_str));
    serve_with(bed, Role::Aggregated, &flags, &[("PYTHONPATH", SHIMS)]).await
}

/// An agent for an engine that runs, with tiers in the folder `kv` of `home`.
pub(crate) async fn attached(
    bed: &Bed,
    server: &VllmServer,
    home: &Path,
    further: &[&str],
) -> Agent {
    attached_in(bed, server, home, further, &[]).await
}

/// The agent of [`attached`], with these variables in its environment.
pub(crate) async fn attached_in(
    bed: &Bed,
    server: &VllmServer,
    home: &Path,
    further: &[&str],
    environment: &[(&str, &str)],
) -> Agent {
    let dir = format!("--discovery-dir={}", home.display());
    let socket = format!("--kv-socket-dir={}", home.join("kv").display());
    let attach = format!("--attach={}", server.url());
    let model = format!("--model={}", bed.model().display());
    let name = format!("--model-name={MODEL}");
    let mut args =
        vec!["agent", "--engine=vllm", &attach, &model, &name, &dir, "--kv-host-gb=0.02"];
    args.push(&socket);
    args.extend(further);
    args.extend(PLANES);
    Agent::found(Engine::Vllm, Process::start_with(&args, environment)).await
}

/// An engine's greedy answer, and the tokens of the prompt that it had cached anywhere.
pub(crate) async fn asked(engine: &Client, prompt: &[u32]) -> (Vec<u32>, usize) {
    answer(&completed(engine, MODEL, prompt, ANSWER).await)
}

/// Has an engine forget all KV in its own memory.
pub(crate) async fn forget(engine: &Client) {
    let reply = engine.post("/reset_prefix_cache", &json!({})).await;
    assert!(reply.status.is_success(), "{}", reply.status);
}

/// Tokens of a prompt's blocks, without one that is not full.
pub(crate) fn whole_blocks(tokens: usize) -> usize {
    tokens / BLOCK_SIZE * BLOCK_SIZE
}

/// Blocks that the agent has taken into host memory since it began.
pub(crate) async fn stored(agent: &Agent) -> f64 {
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
pub(crate) fn computed_blocks(prompt: usize) -> usize {
    (prompt + ANSWER as usize - 1) / BLOCK_SIZE
}
