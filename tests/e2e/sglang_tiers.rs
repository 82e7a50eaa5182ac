//! Agents that keep the KV of a real SGLang below the engine's own host memory.

use crate::agents::{Agent, answer, first_answer, hashes, proxy, tokens};
use crate::kv_guarded::cached_of;
use crate::kv_operate::status;
use crate::kv_peers::ask_near;
use crate::traces::Collector;
use crate::vllm_tiers::{a_tier_is_read_while_the_engine_computes, published};
use stator_protos::kv_event::Medium;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, Role, TOTAL_BLOCKS};
use std::collections::HashSet;
use std::path::Path;

/// Tokens of the prompt: 56 whole pages and some more.
const PROMPT: usize = 1800;
/// Pages of the prompt.
const PAGES: usize = PROMPT / BLOCK_SIZE;
/// Host memory for five prompts: half of it has room for one beside what the engine is granted in advance.
const HOST: &str = "--kv-host-gb=0.01";
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
    let objects = format!("--kv-object=file://{}", home.path().join("objects").display());
    let tiers = ["--kv-host-gb=0.2", &objects, &disk, "--kv-disk-gb=0.2"];
    let collector = Collector::default();
    let collected = collector.serve().await;
    let start =
        |tiers| Agent::start_in(&bed, home.path(), (tiers, &HICACHE), &collected.variables());
    let mut agent = Agent::ready(Engine::Sglang, start(&tiers)).await;
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
    let told = collector.numbers("kv tiers", 2).await;
    let [asked, host] = ["kv.asked_blocks", "kv.host_blocks"].map(|of| told[of]);
    assert_eq!((asked, host), (PAGES as f64, PAGES as f64), "{told:?}");
    assert!(told["kv.bytes"] > 0.0, "{told:?}");

    // SGLang has room for so many pages on its device, and twice that in host memory of its own.
    for seed in 0..(3 * TOTAL_BLOCKS / PAGES) as u32 + 2 {
        first_answer(&client, &tokens(200 + seed, PROMPT), ANSWER).await;
    }
    let from_host = "stator_kv_hit_blocks_total{from=\"host\"}";
    let before = agent.metric(from_host).await;
    let evicted = answer(&first_answer(&client, &prompt, ANSWER).await);
    assert_eq!((&evicted.0, evicted.1), (&expected, PAGES * BLOCK_SIZE));
    assert!(agent.metric(from_host).await >= before + PAGES as f64);

    // A new life of both: the names of the pages are on disk with them.
    let on_disk = "stator_kv_blocks{medium=\"disk\"}";
    soon("pages on disk", async { while agent.metric(on_disk).await < PAGES as f64 {} }).await;
    agent.process.kill().await;
    drop(agent);
    let mut agent = Agent::ready(Engine::Sglang, start(&tiers)).await;
    let (disk, asked) = (("disk", Medium::Disk), (&*prompt, ANSWER));
    let answered = a_tier_is_read_while_the_engine_computes(&mut agent, disk, asked).await;
    assert_eq!((&answered.0, answered.1), (&expected, PAGES * BLOCK_SIZE));

    // An agent that ends writes what it has gathered for an object. The next one has no disk.
    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
    let mut agent = Agent::ready(Engine::Sglang, start(&tiers[..2])).await;
    let object = ("object", Medium::Remote);
    let answered = a_tier_is_read_while_the_engine_computes(&mut agent, object, asked).await;
    assert_eq!(answered, (expected, PAGES * BLOCK_SIZE));
}

#[tokio::test]
async fn one_tenants_flood_leaves_anothers_pages_with_the_agent_of_an_sglang() {
    let Some(bed) = Bed::find_among_all(Engine::Sglang, "SGLang with tenants") else { return };
    for (percent, is_kept) in [(50, true), (100, false)] {
        let home = tempfile::tempdir().unwrap();
        let share = format!("--kv-tenant-share-percent={percent}");
        let process = start(&bed, home.path(), "aggregated", &[HOST, &share]);
        let mut agent = Agent::ready(Engine::Sglang, process).await;
        let (_proxy, client) = proxy(home.path(), &[]).await;
        let quiet = tokens(31, PROMPT);
        assert_eq!(cached_of(&client, &quiet, "quiet").await, 0);
        stored(&agent, PAGES).await;
        let seen = status(&mut agent.process).await;
        let slot_bytes = seen["block_bytes"].as_u64().unwrap().next_multiple_of(4096);
        let slots = (seen["tiers"][0]["capacity_bytes"].as_u64().unwrap() / slot_bytes) as usize;
        for number in 0..slots / PAGES + 1 {
            cached_of(&client, &tokens(100 + number as u32, PROMPT), "flood").await;
            stored(&agent, PAGES * (number + 2)).await;
        }
        agent.kill_engine().await;
        agent.recovers().await;
        let cached = cached_of(&client, &quiet, "quiet").await;
        assert_eq!(cached == PAGES * BLOCK_SIZE, is_kept, "{percent} %: {cached}, {slots} slots");
    }
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
