//! The planner over a fleet of real processes: a supervisor in the test starts and ends agents as
//! the planner's file says.

use crate::lifecycle::{agent, gauge_becomes};
use crate::support::{MODEL, chat, joined, ready};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use std::path::{Path, PathBuf};
use tokio::task::JoinSet;

/// A planner that decides ten times a second, by loads of decode workers.
fn planner(discovery: &str, file: &Path, more: &[&str]) -> Process {
    let file = format!("--replicas-file={}", file.display());
    let models = format!("--models={MODEL}");
    let flags = [
        "planner",
        &models,
        "--mode=decode",
        "--optimization-target=load",
        "--decode-scale-up-kv-percent=50",
        "--decode-scale-down-kv-percent=20",
        "--max-endpoint=2",
        "--load-adjustment-interval-s=0.1",
        "--cold-s=0",
        "--pin-s=2",
        "--metrics-port=0",
        discovery,
        &file,
    ];
    Process::start(&[&flags[..], more].concat())
}

/// An agent with room for 128 blocks of 16 tokens.
fn decoder(discovery: &str) -> Process {
    let flags =
        ["--engine=sim", "--role=decode", "--total-blocks=128", "--sim-step-ms=10", "--workers=1"];
    agent(discovery, &flags)
}

fn wanted(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let replicas: Value = serde_json::from_str(&text).unwrap();
    replicas["graphs"][MODEL]["decode"].as_u64().unwrap()
}

/// Waits until the file wants so many decode workers.
async fn becomes_wanted(file: &Path, workers: u64) {
    soon("another file", async {
        while wanted(file) != workers {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A request with an answer of so many tokens; its stream, with something of the answer there.
async fn answer(client: Client, tokens: u32) -> (usize, bool) {
    let mut body = chat("Once upon a time", tokens);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/chat/completions", &body).await;
    let status = stream.response.status();
    let chunks = stream.rest().await;
    let ended = chunks.iter().any(|chunk| chunk["choices"][0]["finish_reason"] == "length");
    (joined(&chunks).len(), status == 200 && ended)
}

/// The load doubles: one worker becomes two. It falls: two become one, and no answer is broken off.
#[tokio::test]
async fn decode_workers_follow_the_load_and_no_request_fails() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().join("agents").display());
    let file: PathBuf = home.path().join("replicas.json");
    let mut first = decoder(&dir);
    first.event("serving").await;
    // A machine that is busy with other tests is no silent agent.
    let flags = ["proxy", "--http-port=0", "--metrics-port=0", "--agent-silence-ms=60000", &dir];
    let mut proxy = Process::start(&flags);
    let address = ready(&mut proxy).await;
    gauge_becomes(&Client::new(address), "stator_proxy_workers", 1.0).await;
    let mut planner = planner(&dir, &file, &[]);
    planner.event("planning").await;

    // Each answer grows to 63 blocks: two of them pass the threshold when they are half as long.
    let mut answers = JoinSet::new();
    for _ in 0..2 {
        answers.spawn(answer(Client::new(address), 1_000));
    }
    let up = planner.nth_event("another number of workers", 0).await;
    assert_eq!((&up["from"], &up["to"], &up["role"]), (&json!(1), &json!(2), &json!("decode")));
    becomes_wanted(&file, 2).await;
    let mut second = decoder(&dir);
    second.event("serving").await;
    gauge_becomes(&Client::new(address), "stator_proxy_workers", 2.0).await;
    for _ in 0..2 {
        answers.spawn(answer(Client::new(address), 1_000));
    }

    let down = planner.nth_event("another number of workers", 1).await;
    assert_eq!((&down["from"], &down["to"]), (&json!(2), &json!(1)));
    becomes_wanted(&file, 1).await;
    second.terminate();
    assert!(second.ended().await.success());
    gauge_becomes(&Client::new(address), "stator_proxy_workers", 1.0).await;
    answers.spawn(answer(Client::new(address), 20));
    while let Some(answer) = answers.join_next().await {
        let (length, complete) = answer.unwrap();
        assert!(complete && length > 0);
    }
    planner.terminate();
    assert!(planner.ended().await.success());
}

/// The proxy holds the request for which there is no worker, and the planner sees it.
#[tokio::test]
async fn an_idle_model_goes_to_zero_and_the_first_request_brings_a_worker_back() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().join("agents").display());
    let file = home.path().join("replicas.json");
    let mut first = decoder(&dir);
    first.event("serving").await;
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let address = ready(&mut proxy).await;
    gauge_becomes(&Client::new(address), "stator_proxy_workers", 1.0).await;
    let page = format!("--metrics-url=http://{address}/metrics");
    let mut planner = planner(&dir, &file, &["--min-endpoint=0", "--idle-s=1", &page]);
    let rest = planner.event("another number of workers").await;
    assert_eq!((&rest["from"], &rest["to"]), (&json!(1), &json!(0)));
    becomes_wanted(&file, 0).await;
    first.terminate();
    assert!(first.ended().await.success());
    gauge_becomes(&Client::new(address), "stator_proxy_workers", 0.0).await;

    let waiting = tokio::spawn(answer(Client::new(address), 20));
    let woken = planner.nth_event("another number of workers", 1).await;
    assert_eq!((&woken["from"], &woken["to"]), (&json!(0), &json!(1)));
    becomes_wanted(&file, 1).await;
    let mut second = decoder(&dir);
    second.event("serving").await;
    let (length, complete) = waiting.await.unwrap();
    assert!(complete && length > 0);
}

/// The planner cannot read what is wanted now, so it wants nothing else, and goes on afterwards.
#[tokio::test]
async fn a_planner_that_loses_its_signals_holds_still_and_says_so() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().join("agents").display());
    std::fs::create_dir(home.path().join("agents")).unwrap();
    let file = home.path().join("replicas.json");
    std::fs::write(&file, "{").unwrap();
    let mut planner = planner(&dir, &file, &[]);
    let lost = planner.event("signals are lost; the workers stay as they are").await;
    assert!(lost["fault"].as_str().unwrap().contains("replicas.json"), "{lost}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{");
    std::fs::write(&file, json!({"graphs": {MODEL: {"decode": 2}}}).to_string()).unwrap();
    planner.event("signals are back").await;
    // Nobody answers, and nobody says that there is no load.
    assert_eq!(wanted(&file), 2);
    planner.terminate();
    assert!(planner.ended().await.success());
}

#[tokio::test]
async fn flags_that_cannot_be_used_are_told_at_once() {
    let mut planner = Process::start(&[
        "planner",
        "--models=m",
        "--optimization-target=sla",
        "--max-gpu-budget=8",
        "--ttft-ms=0",
    ]);
    assert!(!planner.ended().await.success());
    for part in ["ttft-ms: 0", "metrics-url", "timing", "worker-gpus"] {
        assert!(planner.log().contains(part), "{part} is not in {}", planner.log());
    }
}
