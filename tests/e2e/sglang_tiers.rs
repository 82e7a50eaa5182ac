//! An agent that keeps the KV of a real SGLang below the engine's own host memory.

use crate::agents::{Agent, answer, completed, proxy, tokens};
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role, all_engines};

/// Tokens of the prompt: 56 whole pages and some more.
const PROMPT: usize = 1800;
/// Pages of the prompt.
const PAGES: usize = PROMPT / BLOCK_SIZE;
/// Flags of HiCache where there is no GPU: copies by PyTorch, from memory that has the layout of the
/// engine's. A request waits until its pages are there.
const HICACHE: [&str; 5] = [
    "--hicache-io-backend=direct",
    "--hicache-mem-layout=layer_first",
    "--hicache-ratio=2",
    "--hicache-write-policy=write_through",
    "--hicache-storage-prefetch-policy=wait_complete",
];

#[tokio::test]
async fn an_sglang_finds_what_its_life_before_left_with_the_agent() {
    if !all_engines("SGLang with KV tiers") {
        return;
    }
    let Some(bed) = Bed::find(Engine::Sglang) else { return };
    let home = tempfile::tempdir().unwrap();
    let mut flags: Vec<_> = ["--kv-host-gb=0.2", "--"].map(str::to_owned).to_vec();
    flags.extend(bed.engine().flags(Role::Aggregated, 1));
    flags.extend(HICACHE.map(str::to_owned));
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let who = ("aggregated", Role::Aggregated);
    let process = Agent::start_as(&bed, home.path(), who, (&flags, 1));
    let mut agent = Agent::ready(Engine::Sglang, process).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    let prompt = tokens(7, PROMPT);
    let (expected, cached) = answer(&completed(&client, MODEL, &prompt, 16).await);
    assert_eq!(cached, 0);
    let filled = "stator_kv_filled_slots_total{outcome=\"registered\"}";
    soon("pages with the agent", async { while agent.metric(filled).await < PAGES as f64 {} })
        .await;

    agent.kill_engine().await;
    agent.recovers().await;
    let (again, cached) = answer(&completed(&client, MODEL, &prompt, 16).await);
    assert_eq!((again, cached), (expected, PAGES * BLOCK_SIZE));
}
