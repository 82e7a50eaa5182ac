//! HTTP/2 without TLS: the same routes, limits and ends as HTTP/1.1.

use super::connection::{Connection, body, open_body, whole};
use crate::door::Door;
use crate::lifecycle::{agent, gauge_becomes};
use crate::support::{MODEL, chat, joined, ready, text, up};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::Builder;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use stator_tests::engine::Engine;
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;

const CHAT: &str = "/v1/chat/completions";

fn streamed(words: &str, max_tokens: u32) -> Value {
    let mut body = chat(words, max_tokens);
    body["stream"] = json!(true);
    body
}

#[tokio::test]
async fn every_route_answers_as_it_does_over_http1() {
    let up = up(&[]).await;
    let (old, new) = (up.client.clone(), up.client.clone().over_http2());
    for path in ["/v1/models", "/health", "/openapi.json", "/docs", "/version", "/v1/nothing"] {
        let (one, two) = (old.get(path).await, new.get(path).await);
        assert_eq!((one.status, &one.body), (two.status, &two.body), "{path}");
        let id = two.headers["x-request-id"].to_str().unwrap();
        assert_eq!(id.len(), 32, "{path}");
        for name in ["connection", "transfer-encoding", "keep-alive"] {
            assert!(!two.headers.contains_key(name), "{name}");
        }
    }
    let head = new.send(Method::HEAD, "/v1/models", "").await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.headers["content-length"], old.get("/v1/models").await.body.len().to_string());
    let said = |reply: stator_tests::http::Reply| text(&reply.json());
    let expected = said(old.post(CHAT, &chat("Hello", 8)).await);
    assert_eq!(said(new.post(CHAT, &chat("Hello", 8)).await), expected);
    let mut events = new.stream(CHAT, &streamed("Hello", 8)).await;
    assert_eq!(events.response.headers()["content-type"], "text/event-stream");
    assert_eq!(joined(&events.rest().await), expected);
    let message = json!({"model": MODEL, "max_tokens": 4,
        "messages": [{"role": "user", "content": "Hello"}]});
    assert_eq!(new.post("/v1/messages", &message).await.status, StatusCode::OK);
    let mut unknown = chat("Hello", 1);
    unknown["model"] = json!("none");
    assert_eq!(new.post(CHAT, &unknown).await.status, StatusCode::NOT_FOUND);
    // Another method than the first one that comes to mind.
    let preflight = new.send(Method::OPTIONS, CHAT, "").await;
    assert_eq!(preflight.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_proxy_beside_an_engine_speaks_it_too() {
    let engine = Engine::start().await;
    let sidecar = crate::direct::testbed::Sidecar::start(engine.address(), &[]).await;
    let client = sidecar.client.clone().over_http2();
    let body = crate::direct::testbed::chat("hello");
    let reply = client.post(CHAT, &body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", sidecar.process.log());
    assert_eq!(reply.json(), sidecar.client.post(CHAT, &body).await.json());
    assert_eq!(engine.requests().len(), 2);
}

#[tokio::test]
async fn streams_share_a_connection_and_wait_for_each_other_at_its_limit() {
    let up = up(&["--engine=sim", "--sim-step-ms=50", "--max-streams-per-connection=2"]).await;
    let mut connection = Connection::open(up.client.address()).await;
    // The limit is known once the server has said something.
    connection.get("/live").await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(connection.post(CHAT, &streamed("Hello", 4000)).await);
    }
    gauge_becomes(&up.client, "stator_proxy_requests_running", 2.0).await;
    let mut third = Box::pin(connection.send(Method::POST, CHAT, whole(&chat("Hello", 2))));
    // The two of them go on meanwhile.
    for response in &mut held {
        for _ in 0..3 {
            tokio::select! {
                biased;
                early = &mut third => panic!("{early:?}"),
                frame = soon("an event", response.body_mut().frame()) => drop(frame.unwrap()),
            }
        }
    }
    drop(held.pop());
    let third = soon("the third answer", third).await.unwrap();
    assert_eq!(third.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_stream_that_is_reset_stops_the_engine_and_no_other_stream() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut agent = agent(&dir, &["--engine=sim", "--sim-step-ms=5"]);
    let metrics = agent.event("side server listening").await;
    let metrics = Client::new(metrics["address"].as_str().unwrap().parse().unwrap());
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let mut connection = Connection::open(ready(&mut proxy).await).await;
    let mut first = connection.post(CHAT, &streamed("Hello", 4000)).await;
    let second = connection.post(CHAT, &streamed("Hello", 4000)).await;
    soon("an event", first.body_mut().frame()).await.unwrap().unwrap();
    gauge_becomes(&metrics, "stator_agent_requests_running", 2.0).await;
    drop(second);
    gauge_becomes(&metrics, "stator_agent_requests_running", 1.0).await;
    soon("an event", first.body_mut().frame()).await.unwrap().unwrap();
    // One whose answer has not begun.
    let unary = connection.send(Method::POST, CHAT, whole(&chat("Hello", 4000)));
    let unary = tokio::spawn(unary);
    gauge_becomes(&metrics, "stator_agent_requests_running", 2.0).await;
    unary.abort();
    gauge_becomes(&metrics, "stator_agent_requests_running", 1.0).await;
    drop(first);
    gauge_becomes(&metrics, "stator_agent_requests_running", 0.0).await;
}

#[tokio::test]
async fn a_drain_tells_connections_lets_streams_finish_and_ends() {
    let mut up = up(&["--engine=sim", "--sim-step-ms=20"]).await;
    let mut busy = Connection::open(up.client.address()).await;
    let mut stream = busy.post(CHAT, &streamed("Hello", 100)).await;
    soon("an event", stream.body_mut().frame()).await.unwrap().unwrap();
    let mut idle = Connection::open(up.client.address()).await;
    idle.get("/live").await;
    up.process.terminate();
    up.process.event("draining").await;
    // A client that was told ends its connection without an error.
    idle.ended().await.unwrap();
    let rest = String::from_utf8(body(stream).await.to_vec()).unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    busy.ended().await.unwrap();
    assert!(up.process.ended().await.success(), "{}", up.process.log());
}

#[tokio::test]
async fn a_client_that_resets_all_that_it_asks_is_hung_up_on() {
    let up = up(&["--engine=sim", "--sim-step-ms=20"]).await;
    let mut connection = Connection::open(up.client.address()).await;
    let body = streamed("Hello", 4000);
    let resetting = async {
        // Each is reset as soon as its answer begins.
        while connection.send(Method::POST, CHAT, whole(&body)).await.is_ok() {}
    };
    soon("the end of patience", resetting).await;
    let error = connection.ended().await.unwrap_err();
    // A client that writes while the connection is closed may see that alone, and not the reason.
    let words = ["ENHANCE_YOUR_CALM", "ConnectionReset", "BrokenPipe"];
    let seen = format!("{error:?}");
    assert!(words.iter().any(|word| seen.contains(word)), "{seen}");
}

#[tokio::test]
async fn connections_and_bodies_are_waited_for_only_so_long() {
    let door = Door::start(&["--keep-alive-timeout-ms=200", "--body-deadline-ms=200"]).await;
    let mut connection = Connection::open(door.address).await;
    let (more, slow) = open_body(b"{");
    let answer = soon("an answer", connection.send(Method::POST, "/v1/completions", slow)).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert!(body(answer).await.windows(6).any(|part| part == b"200 ms"));
    drop(more);
    connection.ended().await.unwrap();
    assert_eq!(door.metric("stator_proxy_client_timeouts_total{phase=\"body\"}").await, 1.0);
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_one_stream_loses_that_stream_alone() {
    let flags = ["--engine=sim", "--sim-step-ms=0", "--write-timeout-ms=200"];
    let up = up(&flags).await;
    // Windows that are never opened again: its bodies are not read.
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1000);
    let mut connection = Connection::with(up.client.address(), &builder).await;
    let unread = connection.post(CHAT, &streamed("Hello", 4000)).await;
    let late = "stator_proxy_client_timeouts_total{phase=\"write\"}";
    gauge_becomes(&up.client, late, 1.0).await;
    assert_eq!(connection.get("/live").await.status(), StatusCode::OK);
    let cut = soon("the reset", unread.into_body().collect()).await.unwrap_err();
    assert!(format!("{cut:?}").contains("Reset("), "{cut:?}");
}

#[tokio::test]
async fn refusals_reach_a_client_whose_body_is_on_its_way() {
    let door = Door::start(&["--max-body-bytes=1000", "--max-header-bytes=1000"]).await;
    let mut connection = Connection::open(door.address).await;
    let much = Bytes::from(vec![b'x'; 4 << 20]);
    for (path, status) in [("/v1/completions", 413), ("/v1/nothing", 404)] {
        let body = Full::new(much.clone()).boxed_unsync();
        let answer = soon("an answer", connection.send(Method::POST, path, body)).await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
        let error: Value = serde_json::from_slice(&self::body(answer).await).unwrap();
        assert!(error["error"]["message"].is_string(), "{error}");
    }
    let long = connection.get(&format!("/{}", "x".repeat(2000))).await;
    assert!(long.status().is_client_error(), "{long:?}");
    assert_eq!(connection.get("/live").await.status(), StatusCode::OK);
}
