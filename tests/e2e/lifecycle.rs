//! Beginning, draining, and clients that leave early.

use crate::support::{chat, joined, ready, up};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;

#[tokio::test]
async fn sigterm_turns_readiness_off_lets_streams_finish_and_ends() {
    let mut up = up(&["--engine=sim", "--sim-step-ms=20"]).await;
    let mut body = chat("Hello", 50);
    body["stream"] = json!(true);
    let mut stream = up.client.stream("/v1/chat/completions", &body).await;
    stream.next().await;
    up.process.terminate();
    up.process.event("draining").await;

    assert_eq!(up.client.get("/health").await.status, 503);
    let refused = up.client.post("/v1/chat/completions", &chat("Hello", 2)).await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));

    let chunks = stream.rest().await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    drop(stream);
    assert!(up.process.ended().await.success(), "{}", up.process.log());
}

#[tokio::test]
async fn a_client_that_hangs_up_stops_the_engine() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut agent = agent(&dir, &["--engine=sim", "--sim-step-ms=5"]);
    let metrics = agent.event("side server listening").await;
    let metrics = Client::new(metrics["address"].as_str().unwrap().parse().unwrap());
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);

    let mut body = chat("Hello", 1_000_000);
    body["max_tokens"] = json!(4000);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/chat/completions", &body).await;
    stream.next().await;
    gauge_becomes(&metrics, "stator_agent_requests_running", 1.0).await;
    drop(stream);
    gauge_becomes(&metrics, "stator_agent_requests_running", 0.0).await;
    assert_eq!(
        gauge(&metrics, "stator_agent_generated_tokens_total").await.map(|n| n < 4000.0),
        Some(true)
    );
}

#[tokio::test]
async fn a_wrong_setting_is_refused_with_its_name() {
    for (args, words) in [
        (vec!["up", "--workers=0"], vec!["workers", "0", "1..=1024"]),
        (vec!["up", "--model=/nonexistent/model"], vec!["/nonexistent/model"]),
        (vec!["up", "--router-mode=best"], vec!["best", "round-robin"]),
        (vec!["proxy", "--router-temperature=-1"], vec!["router-temperature", "-1"]),
        (vec!["agent", "--engine=sim", "--sim-preset=none-such"], vec!["none-such"]),
    ] {
        let mut process = Process::start(&args);
        assert!(!process.ended().await.success(), "{args:?}");
        let log = process.log();
        for word in words {
            assert!(log.contains(word), "{word:?} is missing in\n{log}");
        }
    }
}

#[tokio::test]
async fn settings_come_from_the_environment_and_from_a_file_too() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "workers: 1\nmodel-name: from-file\nhttp-port: 0\n").unwrap();
    let path = file.path().display().to_string();
    let mut process =
        Process::start_with(&["up", "--config", &path], &[("STATOR_ROUTER_MODE", "round-robin")]);
    let client = Client::new(ready(&mut process).await);
    assert_eq!(client.get("/v1/models").await.json()["data"][0]["id"], "from-file");
    assert!(process.log().contains("round-robin"), "{}", process.log());
}

#[tokio::test]
async fn the_simulated_engine_gives_the_same_tokens_every_time() {
    let up = up(&["--engine=sim", "--sim-preset=none", "--workers=4"]).await;
    let mut body = chat("Hello", 40);
    body["stream"] = json!(true);
    let mut said = Vec::new();
    for _ in 0..4 {
        said.push(joined(&up.client.stream("/v1/chat/completions", &body).await.rest().await));
    }
    assert!(!said[0].is_empty());
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
}

/// Starts an agent on free ports.
pub(crate) fn agent(discovery: &str, flags: &[&str]) -> Process {
    let mut args = vec![
        "agent",
        "--listen=127.0.0.1:0",
        "--events-listen=tcp://127.0.0.1:0",
        "--replay-listen=tcp://127.0.0.1:0",
        "--metrics-port=0",
        discovery,
    ];
    args.extend(flags);
    Process::start(&args)
}

/// The sum of a metric's samples; `None` while there are none.
pub(crate) async fn gauge(metrics: &Client, name: &str) -> Option<f64> {
    let text = String::from_utf8(metrics.get("/metrics").await.body.to_vec()).unwrap();
    let samples = text
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    let values: Vec<f64> =
        samples.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Asks again until a metric has a value.
pub(crate) async fn gauge_becomes(metrics: &Client, name: &str, value: f64) {
    soon(name, async { while gauge(metrics, name).await != Some(value) {} }).await;
}
