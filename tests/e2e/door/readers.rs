//! Clients that do not read their answers.

use super::post;
use super::raw::Raw;
use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::support::{MODEL, ready};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::process::Process;

#[tokio::test]
async fn a_client_that_does_not_read_frees_its_engine() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut agent = agent(&dir, &["--engine=sim", "--sim-step-ms=5"]);
    let metrics = agent.event("side server listening").await;
    let metrics = Client::new(metrics["address"].as_str().unwrap().parse().unwrap());
    let flags = ["proxy", "--http-port=0", "--metrics-port=0", "--write-timeout-ms=200", &dir];
    let mut proxy = Process::start(&flags);
    let client = Client::new(ready(&mut proxy).await);

    // Enough for every buffer on the way within a second or two, and for half a minute in all.
    let body = json!({"model": MODEL, "prompt": "Hello", "max_tokens": 4000, "n": 64,
                      "stream": true, "ignore_eos": true});
    let body = body.to_string();
    let mut unread = Raw::connect_narrow(client.address()).await;
    unread.send(post(&format!("content-length: {}\r\n", body.len())) + &body).await;
    gauge_becomes(&metrics, "stator_agent_requests_running", 64.0).await;
    gauge_becomes(&metrics, "stator_agent_requests_running", 0.0).await;
    let generated = gauge(&metrics, "stator_agent_generated_tokens_total").await;
    assert!(generated.is_some_and(|tokens| tokens < 64.0 * 4000.0), "{generated:?}");
    gauge_becomes(&client, "stator_proxy_client_timeouts_total", 1.0).await;
    gauge_becomes(&client, "stator_proxy_connections", 1.0).await;
}
