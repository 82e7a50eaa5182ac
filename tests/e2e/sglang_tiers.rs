//! Agents that keep the KV of a real SGLang below the engine's own host memory.

use crate::agents::{Agent, answer, first_answer, hashes, proxy, tokens};
use crate::kv_peers::ask_near;
use crate::vllm_tiers::{published, the_disk_is_read_while_the_engine_computes};
use stator_protos::kv_event::Medium;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, Role};
use std::collections::HashSet;
use std::path::Path;

/// Tokens of the prompt: 56 whole pages and some more.
const PROMPT: usize = 1800;
/// Pages of the prompt.
const PAGES: usize = PROMPT / BLOCK_SIZE;
/// Tokens of an answer.
const ANSWER: u32 = 16;
/// Flags of HiCache where there is no GPU: copies by PyTorch, from memory that has the layout of the
/// engine's. A request waits until its pages are there.
const HICACHE: [&str; 5] = [
    "--hicache-io-backend=direct",
    "--hicache-mem-layout=layer_first",
    "--hicache-ratio=2",
    "--hicache-write-policy=write_through",
    "--hicache-storage-prefetch-policy=wait_complete",
];

/// Starts an agent with these flags, and an SGLang with HiCache.
fn start(bed: &Bed, home: &Path, id: &str, tiers: &[&str]) -> Process {
    let mut flags: Vec<_> = tiers.iter().copied().chain(["--"]).map(str::to_owned).collect();
    flags.extend(bed.engine().flags(Role::Aggregated, 1));
    flags.extend(HICACHE.map(str::to_owned));
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Agent::start_as(bed, home, (id, Role::Aggregated), (&flags, 1))
}

/// Waits until the agent says that a medium holds the whole pages of a prompt: routers know it before
/// anybody asks.
async fn holds(agent: &mut Agent, medium: Medium, prompt: &[u32]) {
    let blocks: HashSet<_> = hashes(prompt).into_iter().collect();
    assert_eq!(blocks.len(), PAGES);
    soon("published pages", async {
        while !published(agent, medium).await.is_superset(&blocks) {}
    })
    .await;
}

/// Waits until the agent has so many pages.
async fn stored(agent: &Agent, pages: usize) {
    let filled = "stator_kv_filled_slots_total{outcome=\"registered\"}";
    soon("pages with the agent", async { while agent.metric(filled).await < pages as f64 {} })
        .await;
}

#[tokio::test]
async fn an_sglang_finds_what_its_life_before_left_with_the_agent() {
    let Some(bed) = Bed::find_among_all(Engine::Sglang, "SGLang with KV tiers") else { return };
    let home = tempfile::tempdir().unwrap();
    let disk = format!("--kv-disk-dir={}", home.path().join("disk").display());
    let tiers = ["--kv-host-gb=0.2", &disk, "--kv-disk-gb=0.2"];
    let process = start(&bed, home.path(), "aggregated", &tiers);
    let mut agent = Agent::ready(Engine::Sglang, process).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    let prompt = tokens(7, PROMPT);
    let (expected, cached) = answer(&first_answer(&client, &prompt, ANSWER).await);
    assert_eq!(cached, 0);
    stored(&agent, PAGES).await;

    agent.kill_engine().await;
    agent.recovers().await;
    holds(&mut agent, Medium::Host, &prompt).await;
    // The proxy hears of the engine's new life a moment later.
    let (again, cached) = answer(&first_answer(&client, &prompt, ANSWER).await);
    assert_eq!((&again, cached), (&expected, PAGES * BLOCK_SIZE));

    // A new life of both: the names of the pages are on disk with them.
    let on_disk = "stator_kv_blocks{medium=\"disk\"}";
    soon("pages on disk", async { while agent.metric(on_disk).await < PAGES as f64 {} }).await;
    agent.process.kill().await;
    drop(agent);
    let process = start(&bed, home.path(), "aggregated", &tiers);
    let mut agent = Agent::ready(Engine::Sglang, process).await;
    holds(&mut agent, Medium::Disk, &prompt).await;
    let asked = (&*prompt, ANSWER);
    let answered = the_disk_is_read_while_the_engine_computes(&mut agent, asked).await;
    assert_eq!(answered, (expected, PAGES * BLOCK_SIZE));
}

#[tokio::test]
async fn an_sglang_reads_what_the_agent_of_another_holds() {
    let Some(bed) =
        Bed::find_among_all(Engine::Sglang, "two SGLangs whose agents lend each other KV")
    else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let tiers = ["--kv-host-gb=0.2"];
    let process = start(&bed, home.path(), "first", &tiers);
    let mut first = Agent::ready(Engine::Sglang, process).await;
    let process = start(&bed, home.path(), "second", &tiers);
    let mut second = Agent::ready(Engine::Sglang, process).await;
    let address = first.record().await.profile.kv_transfer.expect("it lends");
    let holders = [(&*address, PAGES as u32)];

    let prompt = tokens(8, PROMPT);
    let asked = (&*prompt, ANSWER);
    let (expected, _) = ask_near(&mut first.client, first.worker, asked, &[]).await;
    stored(&first, PAGES).await;
    let answered = ask_near(&mut second.client, second.worker, asked, &holders).await;
    assert_eq!(answered, (expected, (PAGES * BLOCK_SIZE) as u32));
    let read = "stator_kv_tier_operations_total{tier=\"peer\",way=\"read\",outcome=\"done\"}";
    assert_eq!(second.metric(read).await, PAGES as f64);

    // Without a living holder it computes.
    let prompt = tokens(9, PROMPT);
    let asked = (&*prompt, ANSWER);
    let (expected, _) = ask_near(&mut first.client, first.worker, asked, &[]).await;
    signal(first.process.id(), "KILL");
    first.process.kill().await;
    let answered = ask_near(&mut second.client, second.worker, asked, &holders).await;
    assert_eq!(answered, (expected, 0));
}
