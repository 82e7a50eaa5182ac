//! The planner over a fleet of real processes: a supervisor in the test starts and ends agents as
//! the planner's file says.

use crate::lifecycle::{agent, gauge_becomes};
use crate::support::{MODEL, chat, joined, ready};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use std::path::Path;
use std::time::Duration;

/// A planner that decides ten times a second, by loads of two decode workers at most.
fn planner(discovery: &str, file: &Path, more: &[&str]) -> Process {
    let file = format!("--replicas-file={}", file.display());
    let models = format!("--models={MODEL}");
    let flags = [
        "planner",
        &models,
        "--mode=decode",
        "--optimization-target=load",
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
fn decoder(discovery: &str, more: &[&str]) -> Process {
    let flags = ["--engine=sim", "--role=decode", "--total-blocks=128", "--workers=1"];
    agent(discovery, &[&flags[..], more].concat())
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

/// A trace whose rate doubles for a while, its requests at even distances.
fn doubling_trace(file: &Path) {
    let phases = [(8, 1.2), (24, 2.4), (8, 1.2)];
    let (mut begun_s, mut at_ms) = (0.0, Vec::new());
    for (seconds, rate) in phases {
        let seconds = f64::from(seconds);
        let count = (seconds * rate) as u32;
        at_ms.extend((0..count).map(|at| (begun_s + f64::from(at) / rate) * 1e3));
        begun_s += seconds;
    }
    let line = |(at, ms): (usize, &f64)| {
        let line = json!({
            "timestamp": ms.round(), "input_length": 160, "output_length": 20, "hash_ids": [at],
        });
        line.to_string() + "\n"
    };
    let lines: String = at_ms.iter().enumerate().map(line).collect();
    std::fs::write(file, lines).unwrap();
}

/// Workers of a supervisor: as many as the planner says.
struct Supervised {
    dir: String,
    running: Vec<Process>,
    drained: Vec<Process>,
    most: usize,
}

impl Supervised {
    async fn become_many(&mut self, wanted: usize) {
        while self.running.len() < wanted {
            let mut worker = decoder(&self.dir, &SLOW);
            worker.event("serving").await;
            self.running.push(worker);
        }
        for worker in self.running.split_off(wanted) {
            worker.terminate();
            self.drained.push(worker);
        }
        self.most = self.most.max(wanted);
    }
}

/// Four answers at a time, of two seconds each: one worker holds 1.9 requests a second.
const SLOW: [&str; 2] = ["--sim-step-ms=100", "--max-running=4"];
/// Longest time of the trace and all that follows, on a machine that is busy with other tests.
const TRACE_LIMIT: Duration = Duration::from_secs(240);

/// A trace doubles the load: decode workers scale out and back, and 96 % of the requests are within
/// targets that one worker would miss: its queue would grow to 12 requests, 6 s.
#[tokio::test]
async fn decode_workers_follow_a_trace_that_doubles_the_load_within_its_targets() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let dir = format!("--discovery-dir={}", at("agents").display());
    let file = at("replicas.json");
    let mut workers =
        Supervised { dir: dir.clone(), running: Vec::new(), drained: Vec::new(), most: 0 };
    workers.become_many(1).await;
    // A machine that is busy with other tests is no silent agent.
    let flags = ["proxy", "--http-port=0", "--metrics-port=0", "--agent-silence-ms=60000", &dir];
    let mut proxy = Process::start(&flags);
    let address = ready(&mut proxy).await;
    gauge_becomes(&Client::new(address), "stator_proxy_workers", 1.0).await;
    // 4 running requests hold 37 % of the KV; one that waits makes it 47 %.
    let thresholds = ["--decode-scale-up-kv-percent=45", "--decode-scale-down-kv-percent=10"];
    let mut planner = planner(&dir, &file, &thresholds);
    planner.event("planning").await;

    doubling_trace(&at("trace.jsonl"));
    let url = format!("--url=http://{address}");
    let trace = format!("--trace={}", at("trace.jsonl").display());
    let report = format!("--json={}", at("report.json").display());
    let targets = ["--endpoint=completions", "--slo-ttft-ms=5000", "--slo-itl-ms=1000"];
    let mut bench = Process::start(&[&["bench", &url, &trace, &report][..], &targets].concat());
    let mut replay = tokio::spawn(async move {
        assert!(bench.ended_within(TRACE_LIMIT).await.success(), "{}", bench.log());
    });
    let (mut changes, mut is_over) = (0, false);
    while !is_over || workers.running.len() > 1 {
        tokio::select! {
            ended = &mut replay, if !is_over => {
                ended.unwrap();
                is_over = true;
            }
            change = planner.nth_event_within(TRACE_LIMIT, "another number of workers", changes) => {
                changes += 1;
                assert_eq!(change["role"], "decode");
                workers.become_many(change["to"].as_u64().unwrap() as usize).await;
            }
        }
    }
    assert_eq!(workers.most, 2, "{}", planner.log());
    becomes_wanted(&file, 1).await;
    for worker in &mut workers.drained {
        assert!(worker.ended().await.success(), "{}", worker.log());
    }
    let report: Value = serde_json::from_slice(&std::fs::read(at("report.json")).unwrap()).unwrap();
    let counts = &report["requests"];
    assert_eq!((&counts["sent"], &counts["failed"]), (&json!(75), &json!(0)), "{counts}");
    let attained = report["goodput"]["share"].as_f64().unwrap();
    assert!(attained >= 0.96, "{attained}: {}", planner.log());
    planner.terminate();
    assert!(planner.ended().await.success());
}

/// The proxy holds the request for which there is no worker, and the planner sees it.
#[tokio::test]
async fn an_idle_model_goes_to_zero_and_the_first_request_brings_a_worker_back() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().join("agents").display());
    let file = home.path().join("replicas.json");
    let mut first = decoder(&dir, &["--sim-step-ms=10"]);
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
    let mut second = decoder(&dir, &["--sim-step-ms=10"]);
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
