//! The proxy and an engine between raw connections: what is on the wire.

use super::metrics::Header;
use super::testkit::Proxy;
use crate::upstream::testkit::{BODY, DONE, Engine, Peer, check_done, soon, tree};
use serde_json::Value;
use stator_api::space::tenant_salt;
use stator_handover::nixl;

#[tokio::test]
async fn a_request_goes_through_as_it_came_and_so_does_its_answer() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let headers = "Authorization: Bearer a\r\nTraceparent: 00-1\r\nX-Request-Id: mine\r\n\
                   Cookie: a=b\r\nX-Tenant: blue\r\n";
    let mut client = proxy.post("/v1/completions?a=b", headers, BODY).await;
    let mut asked = engine.asked().await;
    assert!(asked.head.starts_with("POST /v1/completions?a=b HTTP/1.1\r\n"), "{}", asked.head);
    assert_eq!(asked.body, BODY);
    for (name, value) in [
        ("host", "test"),
        ("authorization", "Bearer a"),
        ("traceparent", "00-1"),
        ("x-request-id", "mine"),
    ] {
        assert_eq!(asked.header(name), Some(value), "{}", asked.head);
    }
    for name in ["cookie", "x-tenant"] {
        assert_eq!(asked.header(name), None, "{}", asked.head);
    }
    let head = "HTTP/1.1 201 Made\r\nset-cookie: a\r\nset-cookie: b\r\nx-own: 1\r\n";
    asked.write(&format!("{head}content-length: 5\r\n\r\nhello")).await;
    assert!(client.read().await);
    assert_eq!((client.status(), client.body.as_str()), (201, "hello"));
    assert_eq!(client.header("set-cookie"), None);
    assert_eq!(client.header("x-own"), Some("1"));
}

#[tokio::test]
async fn beside_a_prefill_engine_the_wish_to_keep_a_prompt_passes_and_nothing_with_it() {
    let engine = Engine::start().await;
    let json = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
    let wish = r#"{"prompt":"p","kv_transfer_params":{"do_remote_decode":true,"remote_host":"a"}}"#;
    let other = wish.replace("do_remote_decode", "do_remote_prefill");
    let serves = Proxy::start(&[&engine], &["--serve-prefill"]).await;
    let media = wish.replace("\"prompt\"", "\"ec_transfer_params\":{\"a\":1},\"prompt\"");
    for (wish, ignored) in [(wish, None), (&*media, Some("ec_transfer_params"))] {
        let mut client = serves.post("/v1/completions", "", wish).await;
        let mut asked = engine.asked().await;
        let body = json(&asked.body);
        assert_eq!(body["kv_transfer_params"], json(nixl::PREFILL));
        assert_eq!(body.as_object().map(serde_json::Map::len), Some(2), "{body}");
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(client.header("x-stator-ignored"), ignored);
    }
    let serves_none = Proxy::start(&[&engine], &[]).await;
    for (proxy, body) in [(&serves_none, wish), (&serves_none, &*other), (&serves, &*other)] {
        check_refused(proxy, "/v1/completions", body, "kv_transfer_params").await;
    }
    assert!(engine.is_idle());
}

/// A request that is refused with the name of its field.
async fn check_refused(proxy: &Proxy, path: &str, body: &str, field: &str) {
    let mut client = proxy.post(path, "", body).await;
    assert!(client.read().await, "{body}");
    assert_eq!((client.status(), &tree(&client.body)["error"]["param"]), (400, &field.into()));
}

#[tokio::test]
async fn a_client_that_steers_is_refused_and_hears_what_is_ignored() {
    let engine = Engine::start().await;
    let strict = Proxy::start(&[&engine], &["--pass-fields=lora_path"]).await;
    let lenient = Proxy::start(&[&engine], &["--unknown-fields=ignore"]).await;
    for (body, field) in [
        (r#"{"bootstrap_room":0}"#, "bootstrap_room"),
        (r#"{"vllm_xargs":{"kv_transfer_params":"{}"}}"#, "vllm_xargs.kv_transfer_params"),
        (r#"{"priority":1}"#, "priority"),
        (r#"{"nvext":{"dp_rank":0}}"#, "nvext.dp_rank"),
        (r#"{"nvext":{"max_thinking_tokens":9}}"#, "nvext.max_thinking_tokens"),
        (r#"{"nvext":{"cache_salt":7}}"#, "nvext.cache_salt"),
        (r#"{"nvext":{"annotations":["c"]}}"#, "nvext.annotations"),
    ] {
        check_refused(&strict, "/v1/completions", body, field).await;
        check_refused(&lenient, "/v1/completions", body, field).await;
    }
    check_refused(&strict, "/v1/completions", r#"{"made_up":1}"#, "made_up").await;
    check_refused(&lenient, "/v1/completions", r#"{"lora_path":"/a"}"#, "lora_path").await;
    assert!(engine.is_idle());

    for (proxy, body, expected, ignored) in [
        (&strict, r#"{"lora_path":"/a"}"#, r#"{"lora_path":"/a"}"#, None),
        (&strict, r#"{"n":1,"rid":"a","priority":0}"#, r#"{"n":1}"#, Some("rid")),
        (&lenient, r#"{"n":1,"made_up":1}"#, r#"{"n":1}"#, Some("made_up")),
        (
            &strict,
            r#"{"cache_salt":"a","nvext":{"cache_salt":"b","annotations":[],"token_data":[1]}}"#,
            r#"{"cache_salt":"b"}"#,
            Some("nvext.token_data"),
        ),
    ] {
        let mut client = proxy.post("/v1/completions", "", body).await;
        let mut asked = engine.asked().await;
        assert_eq!(asked.body, expected);
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(client.header("x-stator-ignored"), ignored, "{body}");
    }
}

#[tokio::test]
async fn a_tenant_becomes_the_salt_of_its_prompts() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let blue = tenant_salt("blue", None, None);
    let narrow = tenant_salt("blue", Some("a"), Some("b"));
    for (path, body, expected) in [
        ("/v1/completions", r#"{"n":1}"#, format!(r#"{{"n":1,"cache_salt":"{blue}"}}"#)),
        (
            "/v1/completions",
            r#"{"cache_salt":"a","nvext":{"cache_salt":"b"}}"#,
            format!(r#"{{"cache_salt":"{narrow}"}}"#),
        ),
        ("/generate", r#"{"text":"p"}"#, format!(r#"{{"text":"p","extra_key":"{blue}"}}"#)),
        ("/v1/images/generations", r#"{"prompt":"p"}"#, r#"{"prompt":"p"}"#.to_owned()),
    ] {
        let mut client = proxy.post(path, "X-Tenant-Id: blue\r\n", body).await;
        let mut asked = engine.asked().await;
        assert_eq!((&asked.body, asked.header("x-tenant-id")), (&expected, None), "{path}");
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
    }
    let twice = "X-Tenant-Id: a\r\nX-Tenant-Id: b\r\n";
    let mut client = proxy.post("/v1/completions", twice, BODY).await;
    assert!(client.read().await);
    let param = &tree(&client.body)["error"]["param"];
    assert_eq!((client.status(), param), (400, &"x-tenant-id".into()));
    assert!(engine.is_idle());
}

#[tokio::test]
async fn labels_are_the_pickers_to_obey() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let body = r#"{"n":1,"nvext":{"routing_constraints":{"required_taints":["a"]}}}"#;
    let agents = "X-Dynamo-Session-Final: true\r\nX-Dynamo-Request-Priority: 9\r\nThread-Id: a\r\n";
    let named = "x-dynamo-session-final, x-dynamo-request-priority, nvext.routing_constraints";
    for (headers, ignored) in [
        (agents, Some(named)),
        ("", Some("nvext.routing_constraints")),
        ("X-Gateway-Destination-Endpoint: 10.0.0.1:1\r\n", None),
    ] {
        let mut client = proxy.post("/v1/completions", headers, body).await;
        let mut asked = engine.asked().await;
        assert_eq!(asked.body, r#"{"n":1}"#);
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(client.header("x-stator-ignored"), ignored);
    }
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = Peer::connect(proxy.address).await;
    client.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    for _ in 0..3 {
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
        client.post("/v1/completions", "", BODY).await;
        assert!(asked.read().await, "the same connection is used");
    }
}

#[tokio::test]
async fn a_probe_of_life_is_answered_whatever_the_engine_does() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut probe = Peer::connect(proxy.address).await;
    probe.write("GET /live HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(probe.read().await);
    assert_eq!((probe.status(), probe.body.as_str()), (200, r#"{"status":"live"}"#));
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_costs_no_request() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = proxy.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    client.post("/v1/completions", "", BODY).await;
    assert!(asked.read().await);
    // Closed after the request came and before an answer went.
    drop(asked);
    engine.asked().await.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn events_go_on_one_by_one_and_a_head_does_not_wait_for_them() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = proxy.post("/v1/chat/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
    asked.write("transfer-encoding: chunked\r\n\r\n").await;
    assert!(client.read_head().await);
    for text in ["data: 1\n\n", "data: 2\n\n"] {
        asked.chunk(text).await;
        assert!(client.until(text).await.is_some());
    }
    asked.write("0\r\n\r\n").await;
    assert!(client.until("0\r\n\r\n").await.is_some());
}

#[tokio::test]
async fn an_engine_is_not_operated_by_clients() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    for path in ["/sleep?level=1", "/collective_rpc", "/v1/models/../../shutdown", "/%73leep"] {
        let mut client = proxy.post(path, "", "{}").await;
        assert!(client.read().await, "{path}");
        assert_eq!(client.status(), 403, "{path}");
        assert!(client.body.contains("pass-operations"), "{}", client.body);
    }
    assert!(engine.is_idle());
    let proxy = Proxy::start(&[&engine], &["--pass-operations"]).await;
    let adapter = r#"{"lora_name":"a","lora_path":"/a"}"#;
    let mut client = proxy.post("/v1/load_lora_adapter", "", adapter).await;
    let mut asked = engine.asked().await;
    assert_eq!(asked.body, adapter);
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    let mut client = proxy.post("/v1/%63ompletions", "", "{}").await;
    assert!(client.read().await);
    assert_eq!(client.status(), 403, "its body would not be screened");
}

#[tokio::test]
async fn what_steers_engines_does_not_come_from_a_client() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let headers = "X-Override-Bootstrap-Room: 1\r\nX-Data-Parallel-Rank: 3\r\nX-Stator-Any: 1\r\n\
                   X-Encoder-Hosts-Ports: 10.0.0.1:1\r\nX-Gateway-Destination-Endpoint: a\r\n";
    let body = r#"{"request_id":"a","prompt":"a" }"#;
    let mut client = proxy.post("/v1/completions", headers, body).await;
    let mut asked = engine.asked().await;
    assert_eq!(asked.body, r#"{"prompt":"a" }"#);
    for name in ["x-override", "x-data", "x-stator", "x-encoder", "x-gateway"] {
        assert!(!asked.head.contains(name), "{}", asked.head);
    }
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.metrics.stripped.get(), 1);
    let unused = |header| proxy.metrics.headers_unused.get_or_create(&Header { header }).get();
    assert_eq!(unused("x-encoder-hosts-ports"), 1);
    assert_eq!(unused("x-kv-cache-source-host-port"), 0);
}

#[tokio::test]
async fn bodies_that_could_hide_something_are_refused() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &["--max-body-bytes=100"]).await;
    let long = "x".repeat(101);
    for (headers, body, status) in [
        ("", r#"{"kv_transfer_params":{},"t":NaN}"#, 400),
        ("", "not json", 400),
        ("", "{\0\"\0", 400),
        ("Content-Encoding: gzip\r\n", "{}", 400),
        ("Content-Encoding: br\r\n", "{}", 415),
        ("", &long, 413),
        ("X-Prefiller-Host-Port: here\r\n", "{}", 400),
        ("X-Data-Parallel-Host-Port: 10.0.0.1:1\r\n", "{}", 400),
    ] {
        let mut client = proxy.post("/v1/completions", headers, body).await;
        assert!(client.read_head().await, "{body}");
        assert_eq!(client.status(), status, "{body}");
    }
    let mut client = Peer::connect(proxy.address).await;
    let form = "Content-Type: multipart/form-data; boundary=b\r\nContent-Encoding: gzip\r\n";
    let head = format!("POST /v1/audio/transcriptions HTTP/1.1\r\nHost: test\r\n{form}");
    client.write(&format!("{head}Content-Length: 2\r\n\r\n{{}}")).await;
    assert!(client.read_head().await);
    assert_eq!(client.status(), 415, "a form passes while it comes");
    assert!(engine.is_idle());
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_hung_up_on_and_its_engine_knows() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &["--write-timeout-ms=100"]).await;
    let _client = proxy.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
    asked.write("transfer-encoding: chunked\r\n\r\n").await;
    let event = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    // More than any system keeps for a client.
    let mut events = 0;
    while asked.try_write(&event).await {
        events += 1;
        assert!(events < 10_000, "the proxy reads on for a client that does not");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_taken_for_whole() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = proxy.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
    asked.write("transfer-encoding: chunked\r\n\r\n").await;
    asked.chunk("data: {\"half\":").await;
    assert!(client.until("half").await.is_some());
    drop(asked);
    assert!(client.until("\n\ndata: {\"error\":").await.is_some(), "the event before it is ended");
    assert!(client.until("0\r\n\r\n").await.is_some());

    let mut client = proxy.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    asked.chunk("{\"half\":").await;
    drop(asked);
    assert!(!client.read().await, "{}", client.body);
    assert_eq!(proxy.metrics.cut.get(), 2);
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_an_error_with_a_reason() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &["--first-token-timeout-ms=50"]).await;
    let mut client = proxy.post("/v1/completions", "", BODY).await;
    let _silent = engine.asked().await;
    assert!(client.read().await);
    assert_eq!(client.status(), 504);
    drop(engine);
    client.post("/v1/completions", "", BODY).await;
    assert!(client.read().await);
    assert_eq!(client.status(), 502);
    assert!(client.body.contains("cannot connect to 127.0.0.1:"), "{}", client.body);
}

#[tokio::test]
async fn files_are_handed_on_as_they_come() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = Peer::connect(proxy.address).await;
    let head = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: test\r\n";
    client.write(&format!("{head}Content-Type: multipart/form-data; boundary=x\r\n")).await;
    client.write("Transfer-Encoding: chunked\r\n\r\n").await;
    let part = |name: &str| format!("--x\r\nContent-Disposition: form-data; name={name}\r\n\r\n");
    client.chunk(&(part("file") + "first, longer than a boundary")).await;
    let mut asked = engine.connected().await;
    assert!(asked.until("first, longer").await.is_some(), "the first part does not wait");
    client.chunk(&format!(" rest\r\n{}secret", part("rid"))).await;
    client.chunk(&format!("\r\n{}m\r\n--x--\r\n", part("model"))).await;
    client.write("0\r\n\r\n").await;
    let sent = asked.until("--x--\r\n\r\n0\r\n\r\n").await.expect("the form has its end");
    assert!(!sent.contains("rid") && !sent.contains("secret"), "{sent}");
    assert!(sent.contains("name=model"), "{sent}");
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(client.header("x-stator-ignored"), Some("rid"));

    // The engine gets no more of a form once it steers.
    let mut steers = Peer::connect(proxy.address).await;
    steers.write(&format!("{head}Content-Type: multipart/form-data; boundary=x\r\n")).await;
    steers.write("Transfer-Encoding: chunked\r\n\r\n").await;
    steers.chunk(&format!("{}a\r\n{}7\r\n", part("model"), part("bootstrap_room"))).await;
    assert!(steers.read().await);
    assert_eq!(steers.status(), 400);
    assert!(steers.body.contains("bootstrap_room"), "{}", steers.body);

    // Nor is that a way around the screening of bodies.
    client.write(&format!("{head}Content-Type: multipart/form-data\r\n")).await;
    client.write("Content-Length: 25\r\n\r\n{\"kv_transfer_params\":{} }").await;
    assert!(client.read().await);
    assert_eq!(client.status(), 400);
}

#[tokio::test]
async fn a_form_of_known_length_that_loses_a_field_is_sound() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = Peer::connect(proxy.address).await;
    let part =
        |name: &str| format!("--x\r\nContent-Disposition: form-data; name={name}\r\n\r\n1\r\n");
    let form = part("rid") + &part("model") + "--x--\r\n";
    let head = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: test\r\n";
    let head = format!("{head}Content-Type: multipart/form-data; boundary=x\r\n");
    client.write(&format!("{head}Content-Length: {}\r\n\r\n{form}", form.len())).await;
    let mut asked = engine.connected().await;
    let sent = asked.until("--x--\r\n\r\n0\r\n\r\n").await.expect("the form has its end");
    assert!(!sent.to_lowercase().contains("content-length"), "{sent}");
    assert!(sent.contains("name=model") && !sent.contains("name=rid"), "{sent}");
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn answers_without_a_body_and_older_clients_are_served() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = Peer::connect(proxy.address).await;
    client.write("HEAD /v1/models HTTP/1.1\r\nHost: test\r\n\r\n").await;
    let mut asked = engine.asked().await;
    assert!(asked.head.starts_with("HEAD /v1/models HTTP/1.1\r\n"));
    assert_eq!(asked.header("content-length"), None);
    asked.write("HTTP/1.1 200 OK\r\ncontent-length: 77\r\n\r\n").await;
    assert!(client.read_head().await);
    assert_eq!(client.header("content-length"), Some("77"));
    client.write("GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(asked.read().await, "the connection is in order");
    asked.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert!(client.read_head().await);
    assert_eq!((client.status(), client.header("transfer-encoding")), (204, None));

    let mut old = Peer::connect(proxy.address).await;
    old.write("GET /v1/models HTTP/1.0\r\n\r\n").await;
    assert!(asked.read().await);
    asked
        .write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        .await;
    assert!(old.read_head().await);
    assert_eq!(old.header("transfer-encoding"), None);
    assert_eq!(old.until("hello").await.as_deref(), Some("hello"));
    old.closed().await;
}

#[tokio::test]
async fn a_picker_names_the_rank_by_its_port() {
    let (first, second) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::start(&[&first, &second], &[]).await;
    let rank = proxy.address.port() + 1;
    let header = format!("x-data-parallel-host-port: 10.0.0.9:{rank}\r\n");
    let mut client = proxy.post("/v1/completions", &header, BODY).await;
    second.asked().await.answer(200, DONE).await;
    check_done(&mut client).await;
    assert!(first.is_idle());
}

#[tokio::test]
async fn no_more_requests_run_than_may() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &["--max-concurrent-requests=1"]).await;
    let mut first = proxy.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    let mut second = proxy.post("/v1/completions", "", BODY).await;
    assert!(second.read().await);
    assert_eq!(second.status(), 429);
    asked.answer(200, DONE).await;
    check_done(&mut first).await;
}

#[tokio::test]
async fn what_runs_is_finished_before_the_end() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = proxy.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    let mut probe = Peer::connect(proxy.address).await;
    probe.write("GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(probe.read().await, "it answers for itself");
    proxy.stop.set();
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    soon("the end", proxy.task).await.expect("nothing panicked");
}
