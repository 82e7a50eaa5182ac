//! `stator operate kv-…` against a running agent: tiers are shown, cleared, limited, and keep or
//! forget a prompt.

use crate::agents::{accepted, answer, operate, proxy};
use crate::kv_tiers::{BLOCKS, CACHED, PROMPT, Tiered};
use crate::lifecycle::{agent, gauge_becomes};
use crate::suite::tokens;
use serde_json::Value;
use stator_tests::process::Process;

/// Room for the blocks of one prompt and a few more.
const FEW: usize = BLOCKS + 5;

/// The tiers of an agent as `kv-status --json` prints them.
pub(crate) async fn status(process: &mut Process) -> Value {
    let (done, log) = operate(process, &["kv-status", "--json"]).await;
    assert!(done, "{log}");
    let line = log.lines().find(|line| line.starts_with('{')).expect("a state");
    serde_json::from_str(line).unwrap()
}

/// A tier of a state.
fn tier<'s>(status: &'s Value, name: &str) -> &'s Value {
    let tiers = status["tiers"].as_array().unwrap();
    tiers.iter().find(|tier| tier["name"] == name).unwrap()
}

/// A prompt on the command line.
fn words(prompt: &[u32]) -> String {
    let ids: Vec<_> = prompt.iter().map(u32::to_string).collect();
    format!("--tokens={}", ids.join(","))
}

#[tokio::test]
async fn a_pinned_prompt_outlives_a_smaller_host_tier_and_an_evicted_one_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Tiered::begin(home.path()).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let (first, second) = (tokens(11, PROMPT), tokens(12, PROMPT));
    let ask = async |prompt: &[u32]| answer(&accepted(&client, prompt).await);
    let (expected, _) = ask(&first).await;
    ask(&second).await;
    agent.holds("host", 2 * BLOCKS).await;
    agent.holds("disk", 2 * BLOCKS).await;

    let seen = status(&mut agent.process).await;
    let (host, disk) = (tier(&seen, "host"), tier(&seen, "disk"));
    assert_eq!((&host["blocks"], &disk["blocks"]), (&38.into(), &38.into()));
    assert_eq!((&disk["state"], &disk["writes"]["done"]), (&"good".into(), &38.into()));
    let slot_bytes = seen["block_bytes"].as_u64().unwrap().next_multiple_of(4096);

    let pin = [&words(&first)[..], "--seconds=600"];
    let (done, log) = operate(&mut agent.process, &[&["kv-pin"], &pin[..]].concat()).await;
    assert!(done && log.contains("of 18 blocks 18 stay in host memory for 600 s"), "{log}");
    let room = format!("--host-gb={}", (FEW as u64 * slot_bytes) as f64 / 1e9);
    let (done, log) = operate(&mut agent.process, &["kv-limit", &room]).await;
    assert!(done, "{log}");
    gauge_becomes(&agent.metrics, "stator_kv_slot_use{state=\"used\"}", FEW as f64).await;
    // What is not pinned has gone, and the disk has all of it.
    let (done, log) = operate(&mut agent.process, &["kv-clear", "--tier=disk"]).await;
    assert!(done, "{log}");
    agent.holds("disk", 0).await;
    assert_eq!(ask(&first).await, (expected.clone(), CACHED));
    let kept = status(&mut agent.process).await;
    assert_eq!(tier(&kept, "host")["kept_blocks"], 18);

    let (done, log) = operate(&mut agent.process, &["kv-evict", &words(&first)]).await;
    assert!(done && log.contains("of 18 blocks 18 left host memory"), "{log}");
    ask(&second).await;
    let (tokens, cached) = ask(&first).await;
    assert_eq!(tokens, expected);
    assert!(cached < CACHED, "{cached}");
    let (done, log) = operate(&mut agent.process, &["kv-pin", &words(&tokens_of_nobody())]).await;
    assert!(!done && log.contains("no tier holds any of the prompt's 18 blocks"), "{log}");
    agent.ends().await;
}

fn tokens_of_nobody() -> Vec<u32> {
    tokens(99, PROMPT)
}

#[tokio::test]
async fn text_is_pinned_by_the_agents_model_and_a_disk_gives_its_room_back() {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Tiered::begin(home.path()).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let text = "Once upon a time there was a little girl who liked to walk. ".repeat(12);
    let body = serde_json::json!({ "model": "tiny", "prompt": text, "max_tokens": 4 });
    let reply = client.post("/v1/completions", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.json());
    let pin = ["kv-pin", "--text", &text];
    let (done, log) = operate(&mut agent.process, &pin).await;
    assert!(done && log.contains("stay in host memory for 3600 s"), "{log}");

    let seen = status(&mut agent.process).await;
    let disk = tier(&seen, "disk");
    let (before, blocks) = (disk["capacity_bytes"].as_u64().unwrap(), disk["blocks"].clone());
    assert!(before > 100_000_000, "{disk}");
    let (done, log) = operate(&mut agent.process, &["kv-limit", "--disk-gb=0.05"]).await;
    assert!(done, "{log}");
    let seen = status(&mut agent.process).await;
    let disk = tier(&seen, "disk");
    assert!(disk["capacity_bytes"].as_u64().unwrap() <= 50_000_000, "{disk}");
    assert_eq!(disk["blocks"], blocks, "one segment holds all of them");
    let (done, log) = operate(&mut agent.process, &["kv-limit", "--object=off"]).await;
    assert!(!done && log.contains("the agent has no object store"), "{log}");
    agent.ends().await;
}

#[tokio::test]
async fn tiers_are_operated_by_those_who_may_and_only_where_there_are_some() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let flags = ["--agent-id=bare", "--workers=1", "--total-blocks=32"];
    let mut bare = agent(&dir, &flags);
    let (done, log) = operate(&mut bare, &["kv-status"]).await;
    assert!(!done && log.contains("the agent has no KV tiers"), "{log}");
    let token = "--operations-token=correct-horse-battery";
    let mut known = agent(&dir, &["--agent-id=known", "--kv-host-gb=0.01", token]);
    for operation in ["kv-status", "kv-clear"] {
        let (done, log) = operate(&mut known, &[operation]).await;
        assert!(!done && log.contains("operations need a token"), "{log}");
    }
    let (done, log) = operate(&mut known, &[token, "kv-status"]).await;
    assert!(done && log.contains("host"), "{log}");
}
