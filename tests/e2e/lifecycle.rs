//! Beginning, draining, and clients that leave early.

use crate::support::{chat, joined, ready, up};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

#[tokio::test]
async fn after_sigterm_requests_are_taken_until_balancers_have_noticed() {
    let mut up = up(&["--engine=sim", "--lame-duck-ms=3600000"]).await;
    up.process.terminate();
    up.process.event("not ready any more").await;
    assert_eq!(up.client.get("/health").await.status, 503);
    let reply = up.client.post("/v1/chat/completions", &chat("Hello", 2)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["connection"], "close");
    // A second signal does not wait for anything.
    up.process.terminate();
    assert_eq!(up.process.ended().await.code(), Some(130), "{}", up.process.log());
}

#[tokio::test]
async fn a_drain_closes_idle_connections_lets_streams_finish_and_ends() {
    let mut up = up(&["--engine=sim", "--sim-step-ms=20"]).await;
    let mut body = chat("Hello", 100);
    body["stream"] = json!(true);
    let mut stream = up.client.stream("/v1/chat/completions", &body).await;
    stream.next().await;
    let mut idle = kept(&up.client).await;
    let mut late = kept(&up.client).await;
    up.process.terminate();
    up.process.event("draining").await;

    let asked = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n";
    // Whether the request was on its way before the connection closed is up to chance.
    let answer = match late.write_all(asked.as_bytes()).await {
        Ok(()) => to_end(&mut late).await.to_lowercase(),
        Err(_) => String::new(),
    };
    let refused = ["http/1.1 503", "retry-after: ", "connection: close"];
    assert!(answer.is_empty() || refused.iter().all(|part| answer.contains(part)), "{answer}");
    assert_eq!(to_end(&mut idle).await, "");
    assert!(TcpStream::connect(up.client.address()).await.is_err(), "nobody listens any more");

    let chunks = stream.rest().await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    drop(stream);
    assert!(up.process.ended().await.success(), "{}", up.process.log());
}

/// Each client asks for the readiness before a request, as balancers do for it.
#[tokio::test]
async fn whoever_heeds_readiness_loses_no_request_at_the_end() {
    let flags = ["--engine=sim", "--sim-step-ms=2", "--lame-duck-ms=3000"];
    let mut up = up(&flags).await;
    let client = |client: Client| async move {
        let mut answered = 0;
        while client.get("/health").await.status == 200 {
            let reply = client.post("/v1/chat/completions", &chat("Hello", 4)).await;
            assert_eq!(reply.status, 200, "{:?}", reply.body);
            answered += 1;
        }
        answered
    };
    let mut clients: JoinSet<u32> = (0..8).map(|_| client(up.client.clone())).collect();
    let loaded = async {
        let counted = "stator_proxy_requests_total";
        while gauge(&up.client, counted).await.is_none_or(|count| count < 50.0) {}
    };
    soon("a load", loaded).await;
    up.process.terminate();
    while let Some(answered) = clients.join_next().await {
        assert!(answered.expect("no request is lost") > 0);
    }
    assert!(up.process.ended().await.success(), "{}", up.process.log());
}

/// A connection that has had one answer and is kept for the next.
async fn kept(client: &Client) -> TcpStream {
    let mut stream = TcpStream::connect(client.address()).await.unwrap();
    stream.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(br#"{"status":"live"}"#) {
        soon("an answer", stream.read_buf(&mut read)).await.unwrap();
    }
    stream
}

/// The rest of a connection's bytes before it closes.
async fn to_end(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    // A connection that closes on an unread request is reset.
    let _ = soon("the end of a connection", stream.read_to_string(&mut text)).await;
    text
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
async fn a_model_that_is_not_there_is_one_line_before_anything_listens() {
    let mut process = Process::start(&["up", "--model=/nonexistent/model"]);
    assert!(!process.ended().await.success());
    let log = process.log();
    assert_eq!(log.trim().lines().count(), 1, "{log}");
    assert!(log.starts_with("error: model: cannot read"), "{log}");
}

#[tokio::test]
async fn up_greets_with_what_a_person_needs() {
    let mut up = up(&["--engine=sim", "--sim-preset=none"]).await;
    for part in ["stator serves stator-tiny with 2 workers.", "/metrics", "Ctrl-C", "curl http://"]
    {
        up.process.nth_line(part, 0).await;
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
    agent_with(discovery, flags, &[])
}

/// An agent on free ports, with further environment variables.
pub(crate) fn agent_with(discovery: &str, flags: &[&str], environment: &[(&str, &str)]) -> Process {
    let mut args = vec![
        "agent",
        "--listen=127.0.0.1:0",
        "--events-listen=tcp://127.0.0.1:0",
        "--replay-listen=tcp://127.0.0.1:0",
        "--metrics-port=0",
        discovery,
    ];
    args.extend(flags);
    Process::start_with(&args, environment)
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
