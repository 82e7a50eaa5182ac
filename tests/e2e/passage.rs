//! Traffic between clients and engines: TLS in every mode, the engine's key, and no field or path
//! that steers or operates an engine.

use crate::direct::testbed::{CHAT, Sidecar, chat as chat_with};
use crate::lifecycle::{agent, gauge_becomes};
use crate::support::{MODEL, chat, ready, up};
use hyper::StatusCode;
use serde_json::json;
use stator_tests::engine::{Engine, HOLD};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SIM: [&str; 2] = ["--engine=sim", "--workers=1"];

/// The warning about an engine that may share prefixes between API keys.
const UNSEPARATED: &str =
    "an engine is not known to take cache_salt: API keys and tenants share its prefixes";

/// Checks that a server answers over TLS and gives plain HTTP no answer.
async fn check_tls(server: SocketAddr) {
    let tls = ["--enable-tls=decoder", "--tls-insecure-skip-verify=decoder"];
    // A sidecar is the client: it speaks TLS to what it takes for an engine.
    let client = Sidecar::start(server, &tls).await;
    let reply = client.client.post(CHAT, &chat("hello", 2)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", client.process.log());

    let mut plain = TcpStream::connect(server).await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = soon("the connection's end", plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn tls_is_served_in_every_mode() {
    let up = up(&[&SIM[..], &["--secure-serving"]].concat()).await;
    check_tls(up.client.address()).await;

    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut worker = agent(&dir, &SIM);
    worker.event("serving").await;
    let args = ["proxy", "--http-port=0", "--metrics-port=0", &dir, "--secure-serving"];
    let mut proxy = Process::start(&args);
    check_tls(ready(&mut proxy).await).await;
}

#[tokio::test]
async fn flags_without_effect_are_named_all_at_once() {
    for (args, faults) in [
        (&["up", "--cert-path=/nowhere"][..], &["cert-path: needs secure-serving"][..]),
        (
            &["proxy", "--cert-path=/nowhere", "--peers-port=2"],
            &["cert-path: needs secure-serving", "peers-port: it has no effect without peers"],
        ),
        (
            &["sidecar", "--api-key=a", "--key-share-percent=9"],
            &["key-share-percent: the engine beside a sidecar checks keys", "api-key: "],
        ),
        (&["sidecar", "--peers=a:1"], &["unexpected argument '--peers'"]),
        (&["proxy", "--engine-port=1"], &["unexpected argument '--engine-port'"]),
    ] {
        let mut process = Process::start(args);
        assert!(!process.ended().await.success(), "{args:?}");
        let log = process.log();
        for fault in faults {
            assert!(log.contains(fault), "{fault} is not in {log}");
        }
    }
}

/// A proxy before the agents in `home`.
async fn front(home: &Path, flags: &[&str]) -> (Process, Client) {
    let dir = format!("--discovery-dir={}", home.display());
    let args = [&["proxy", "--http-port=0", "--metrics-port=0", &dir], flags].concat();
    let mut process = Process::start(&args);
    let client = Client::new(ready(&mut process).await);
    gauge_becomes(&client, "stator_proxy_workers", 1.0).await;
    (process, client)
}

#[tokio::test]
async fn an_openai_engine_gets_its_key_on_requests_and_no_clients_key() {
    let server = up(&[&SIM[..], &["--api-key=engines-secret"]].concat()).await;
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("key");
    std::fs::write(&key, "engines-secret\n").unwrap();
    let key = format!("--engine-api-key-file={}", key.display());
    let agents = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", agents.path().display());
    let url = format!("--attach=http://{}", server.client.address());
    let mut watch = agent(&dir, &["--engine=openai", &url, "--block-size=4", &key]);
    watch.event("serving").await;

    let (_without, client) = front(agents.path(), &[]).await;
    let own = client.with_header("authorization", "Bearer engines-secret");
    let reply = own.post(CHAT, &chat("hello", 2)).await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "a client's key stays with the proxy");
    let (process, client) = front(agents.path(), &[&key, "--log-level=debug"]).await;
    let reply = client.post(CHAT, &chat("hello", 2)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", process.log());
    assert_eq!(reply.json()["model"], MODEL);
    assert!(!process.log().contains("engines-secret"), "the key is in no log");
    let listed = client.get("/v1/models").await.json();
    let model = &listed["data"][0];
    assert!(model["id"] == MODEL && model["modalities"].is_null(), "it may read media: {listed}");
    assert!(!process.log().contains(UNSEPARATED), "nobody asked for spaces");

    // Nothing is known of what this engine does with a salt.
    let (mut process, client) = front(agents.path(), &[&key, "--api-key=clients-secret"]).await;
    let client = client.with_header("authorization", "Bearer clients-secret");
    for _ in 0..2 {
        assert_eq!(client.post(CHAT, &chat("hello", 2)).await.status, StatusCode::OK);
    }
    let told = process.event(UNSEPARATED).await;
    assert_eq!(told["model"], MODEL);
    assert_eq!(process.log().matches(UNSEPARATED).count(), 1);
}

#[tokio::test]
async fn what_steers_or_operates_does_not_pass_a_sidecar() {
    let engine = Engine::start().await;
    let flags = ["--pass-fields=lora_path", "--unknown-fields=ignore"];
    let sidecar = Sidecar::start(engine.address(), &flags).await;
    let plain = chat_with("hello");
    for (name, value) in [
        ("kv_transfer_params", json!({ "a": 1 })),
        ("bootstrap_room", json!(0)),
        ("priority", json!(1)),
        ("custom_logit_processor", json!("a")),
        ("session_params", json!({ "id": "a" })),
        ("data_parallel_rank", json!(0)),
        ("nvext.backend_instance_id", json!(7)),
        ("vllm_xargs.kv_transfer_params", json!("{}")),
    ] {
        let mut body = plain.clone();
        match name.split_once('.') {
            Some((outer, inner)) => body[outer] = json!({ inner: value }),
            None => body[name] = value,
        }
        let reply = sidecar.client.post(CHAT, &body).await;
        let param = &reply.json()["error"]["param"];
        assert_eq!((reply.status.as_u16(), param), (400, &json!(name)));
    }
    assert!(engine.requests().is_empty());
    let mut body = plain.clone();
    for name in ["rid", "request_id", "made_up"] {
        body[name] = json!(1);
    }
    body["kv_transfer_params"] = json!(null);
    body["vllm_xargs"] = json!({ "a": 1 });
    body["lora_path"] = json!("adapter");
    let client = sidecar.client.clone().with_header("cookie", "a=b").with_header("x-any", "1");
    let reply = client.post(CHAT, &body).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.headers.get("set-cookie"), None);
    let ignored: BTreeSet<_> =
        reply.headers["x-stator-ignored"].to_str().unwrap().split(", ").collect();
    assert_eq!(ignored, BTreeSet::from(["made_up", "request_id", "rid"]));
    let seen = engine.last();
    let mut expected = plain;
    expected["vllm_xargs"] = json!({ "a": 1 });
    expected["lora_path"] = json!("adapter");
    assert_eq!(seen.json(), expected);
    assert!(seen.header("cookie").is_empty() && seen.header("x-any").is_empty());
    let removed = "stator_direct_fields_removed_total";
    sidecar.counts(removed, &["kind=\"steering\""], 3.0).await;
    sidecar.counts(removed, &["kind=\"unknown\""], 1.0).await;

    let before = engine.requests().len();
    for path in [
        "/collective_rpc",
        "/sleep",
        "/wake_up",
        "/shutdown",
        "/pause",
        "/resume",
        "/reset_prefix_cache",
        "/start_profile",
        "/stop_profile",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/update_weights_from_disk",
        "/scale_elastic_ep",
        "/abort_requests",
        "/flush_cache",
    ] {
        let reply = sidecar.client.post(path, &json!({})).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path}");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(text.contains(path) && text.contains("pass-operations"), "{text}");
    }
    assert_eq!(engine.requests().len(), before);
}

#[tokio::test]
async fn answers_of_an_engine_are_cleaned_on_their_way() {
    let engine = Engine::start().await;
    let sidecar = Sidecar::start(engine.address(), &[]).await;
    let client = sidecar.client.clone().with_header(HOLD, "1");
    let mut events = client.stream(CHAT, &chat_with("hello")).await;
    let held = engine.held().await;
    held.event(&json!({ "n": 1 })).await;
    assert_eq!(events.next().await.as_deref(), Some("{\"n\":1}"));
    held.send("data: {\"n\":2,\"kv_trans").await;
    events.until("\"n\":2").await;
    held.send("fer_params\":{\"remote_host\":\"10.0.0.1\"}}\n\n").await;
    let event = events.next().await.unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&event).unwrap(), json!({ "n": 2 }));
    drop(held);
    assert_eq!(events.next().await, None);
}
