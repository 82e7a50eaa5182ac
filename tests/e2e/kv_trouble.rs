//! KV tiers in trouble: a full disk, a bucket that refuses, and more prompts than memory. Answers stay
//! what they are, and the agent says what is wrong, once.

use crate::agents::{accepted, answer, completion, operate, proxy};
use crate::kv_operate::status;
use crate::kv_tiers::{BLOCKS, CACHED, PROMPT, Tiered};
use crate::lifecycle::{gauge, gauge_becomes};
use crate::suite::tokens;
use futures::future::join_all;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A tier's state in words, from `kv-status`.
async fn state_of(agent: &mut Tiered, tier: &str) -> String {
    let seen: Value = status(&mut agent.process).await;
    let tiers = seen["tiers"].as_array().unwrap();
    let found = tiers.iter().find(|of| of["name"] == tier).unwrap();
    found["state"].as_str().unwrap().to_owned()
}

/// Writes of a tier that ended so.
fn writes(tier: &str, outcome: &str) -> String {
    let labels = format!("tier=\"{tier}\",way=\"write\",outcome=\"{outcome}\"");
    format!("stator_kv_tier_operations_total{{{labels}}}")
}

#[tokio::test]
async fn a_full_disk_costs_no_answer_and_is_said_once() {
    let home = tempfile::tempdir().unwrap();
    let disk = format!("--kv-disk-dir={}", home.path().join("kv").display());
    // No file may have more than 64 MB: host memory fits, a segment of 250 MB does not.
    let shell = "trap '' XFSZ; ulimit -f 125000;";
    let room = [&disk[..], "--kv-disk-gb=2"];
    let mut agent = Tiered::within(home.path(), &room, &[], shell).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let (first, second) = (tokens(41, PROMPT), tokens(42, PROMPT));
    let ask = async |prompt: &[u32]| answer(&accepted(&client, prompt).await);
    let (expected, _) = ask(&first).await;
    ask(&second).await;
    // Host memory goes on.
    assert_eq!(ask(&first).await, (expected, CACHED));
    let full = writes("disk", "full");
    while gauge(&agent.metrics, &full).await.unwrap_or(0.0) < 1.0 {
        tokio::task::yield_now().await;
    }
    let said = state_of(&mut agent, "disk").await;
    assert!(said.contains("writes full"), "{said}");
    assert_eq!(gauge(&agent.metrics, "stator_kv_blocks{medium=\"disk\"}").await, None);
    assert_eq!(agent.process.lines("the disk tier cannot grow"), 1, "{}", agent.process.log());
    agent.ends().await;
}

/// A server that answers 503 to whatever it is asked; returns its address, and counts.
async fn throttled() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let refusal =
                    "HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(refusal.as_bytes()).await;
            });
        }
    });
    (at, asked)
}

#[tokio::test]
async fn a_throttled_bucket_is_left_alone_and_costs_no_answer() {
    let home = tempfile::tempdir().unwrap();
    let (endpoint, asked) = throttled().await;
    let environment = [
        ("AWS_ENDPOINT_URL", &endpoint[..]),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "nowhere"),
    ];
    let bucket = ["--kv-object=s3://bucket/kv"];
    let mut agent = Tiered::within(home.path(), &bucket, &environment, "").await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let (first, second) = (tokens(51, PROMPT), tokens(52, PROMPT));
    let ask = async |prompt: &[u32]| answer(&accepted(&client, prompt).await);
    let (expected, _) = ask(&first).await;
    ask(&second).await;
    let left = "stator_kv_tier_condition{tier=\"object\",condition=\"left_alone\"}";
    gauge_becomes(&agent.metrics, left, 1.0).await;
    assert_eq!(ask(&first).await, (expected, CACHED));
    let said = state_of(&mut agent, "object").await;
    assert!(said.contains("it kept failing") && said.contains("writes failed"), "{said}");
    assert!(asked.load(Ordering::Relaxed) > 0);
    let told = agent.process.lines("the object store does not answer; it is left alone");
    assert!(told <= 1, "{}", agent.process.log());
    // Switched off it is asked nothing, and says so.
    let (done, log) = operate(&mut agent.process, &["kv-limit", "--object=off"]).await;
    assert!(done, "{log}");
    assert!(state_of(&mut agent, "object").await.starts_with("off by kv-limit"));
    agent.ends().await;
}

#[tokio::test]
async fn tokens_equal_under_pressure_with_offload() {
    const PROMPTS: u32 = 8;
    let home = tempfile::tempdir().unwrap();
    let disk = format!("--kv-disk-dir={}", home.path().join("kv").display());
    // Device memory for one prompt and a half, host memory for two: all others come from the disk.
    let agent = Tiered::above(home.path(), &[&disk, "--kv-disk-gb=0.2"]).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let prompts: Vec<_> = (0..PROMPTS).map(|number| tokens(60 + number, PROMPT)).collect();
    let mut expected = Vec::new();
    for prompt in &prompts {
        expected.push(answer(&accepted(&client, prompt).await).0);
    }
    agent.holds("disk", PROMPTS as usize * BLOCKS).await;
    for round in 0..4 {
        let all = prompts.iter().map(|prompt| async {
            let reply = client.post("/v1/completions", &completion(prompt, 8)).await;
            assert!(reply.status.is_success(), "{}", reply.json());
            answer(&reply.json()).0
        });
        assert_eq!(join_all(all).await, expected, "round {round}");
    }
    assert!(agent.hits("host").await + agent.hits("below").await > 0.0);
    agent.ends().await;
}
