//! The proxy and servers of the OpenAI API between raw connections: what is on the wire.

use crate::tests::bed::{Agent, Bed};
use crate::upstream::testkit::{BODY, DONE, Engine, Peer, check_done, tree};

pub(super) const COMPLETIONS: &str = "/v1/completions";

/// A proxy with `servers`, each of which its agent watches.
pub(super) async fn bed(servers: &[&Engine], flags: &[&str]) -> (Bed, Vec<Agent>) {
    let mut bed = Bed::start(flags).await;
    let mut agents = Vec::new();
    for server in servers {
        agents.push(bed.watched(server.address(), "m").await);
    }
    bed.until_listed("m").await;
    bed.until_workers(servers.len()).await;
    (bed, agents)
}

pub(super) async fn post(bed: &Bed, path: &str, headers: &str, body: &str) -> Peer {
    let mut client = Peer::connect(bed.address).await;
    client.post(path, headers, body).await;
    client
}

#[tokio::test]
async fn a_request_goes_through_as_it_came_and_so_does_its_answer() {
    let server = Engine::start().await;
    let (bed, agents) = bed(&[&server], &[]).await;
    let headers = "User-Agent: test\r\nX-Request-Id: mine\r\nTraceparent: 00-1\r\n";
    let mut client = post(&bed, "/v1/completions?a=b", headers, BODY).await;
    let mut asked = server.asked().await;
    assert!(asked.head.starts_with("POST /v1/completions?a=b HTTP/1.1\r\n"), "{}", asked.head);
    assert_eq!(asked.body, BODY);
    let host = server.address().to_string();
    for (name, value) in [
        ("host", &*host),
        ("user-agent", "test"),
        ("x-request-id", "mine"),
        ("traceparent", "00-1"),
    ] {
        assert_eq!(asked.header(name), Some(value), "{}", asked.head);
    }
    asked.write("HTTP/1.1 201 Made\r\nx-own: 1\r\ncontent-length: 5\r\n\r\nhello").await;
    assert!(client.read().await);
    assert_eq!((client.status(), client.body.as_str()), (201, "hello"));
    assert_eq!((client.header("x-own"), client.header("x-request-id")), (Some("1"), Some("mine")));
    let worker = agents[0].record.workers[0].worker.worker.to_string();
    assert_eq!(client.header("x-stator-worker-id"), Some(&*worker));
    assert!(agents[0].asked().is_empty(), "the agent is not on the way");
}

#[tokio::test]
async fn headers_reach_a_server_where_they_are_on_a_list() {
    let server = Engine::start().await;
    let (bed, _agents) = bed(&[&server], &["--pass-headers=x-tenant"]).await;
    let headers = "X-Tenant: blue\r\nCookie: a=b\r\nAuthorization: Bearer key\r\nX-Any: 1\r\n";
    let mut client = post(&bed, COMPLETIONS, headers, BODY).await;
    let mut asked = server.asked().await;
    assert_eq!(asked.header("x-tenant"), Some("blue"));
    for name in ["cookie", "authorization", "x-any"] {
        assert_eq!(asked.header(name), None, "{}", asked.head);
    }
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn a_server_gets_its_own_key_with_every_request() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "engines-key\n").expect("it can be written");
    let server = Engine::start().await;
    let flag = format!("--engine-api-key-file={}", file.path().display());
    let (bed, _agents) = bed(&[&server], &[&flag]).await;
    for headers in ["", "Authorization: Bearer clients-key\r\n"] {
        let mut client = post(&bed, COMPLETIONS, headers, BODY).await;
        let mut asked = server.asked().await;
        assert_eq!(asked.header("authorization"), Some("Bearer engines-key"));
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
    }
}

#[tokio::test]
async fn answers_lose_what_engines_tell_each_other() {
    let server = Engine::start().await;
    let (bed, _agents) = bed(&[&server], &[]).await;
    let mut client = post(&bed, COMPLETIONS, "", BODY).await;
    let mut asked = server.asked().await;
    let body = r#"{"id":"1","kv_transfer_params":{"remote_host":"10.0.0.1"},"remote_port":1}"#;
    asked
        .write("HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nserver: uvicorn\r\nx-stator-any: 1\r\n")
        .await;
    let length = body.len();
    asked
        .write(&format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"))
        .await;
    assert!(client.read().await);
    assert_eq!(client.body.replace(' ', ""), r#"{"id":"1"}"#);
    for name in ["set-cookie", "server", "x-stator-any"] {
        assert_eq!(client.header(name), None, "{}", client.head);
    }

    let mut client = post(&bed, "/v1/chat/completions", "", BODY).await;
    assert!(asked.read().await, "the connection was kept");
    asked.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
    asked.write("transfer-encoding: chunked\r\n\r\n").await;
    asked.chunk("data: {\"n\":1}\n\n").await;
    assert!(client.until("data: {\"n\":1}\n\n").await.is_some(), "no event waits for another");
    asked.chunk("data: {\"n\":2,\"kv_tran").await;
    asked.chunk("sfer_params\":{\"a\":[1]}}\n\n").await;
    let rest = client.until("}\n\n").await.expect("the event's end");
    assert!(!rest.contains("kv_tran") && !rest.contains("[1]"), "{rest}");
    asked.write("0\r\n\r\n").await;
    assert!(client.until("0\r\n\r\n").await.is_some());
}

#[tokio::test]
async fn the_keys_of_this_proxy_are_not_the_servers_business() {
    let server = Engine::start().await;
    let (bed, _agents) = {
        let mut bed = Bed::start(&["--api-key=secret"]).await;
        let agent = bed.watched(server.address(), "m").await;
        bed.until_workers(1).await;
        (bed, agent)
    };
    let mut refused = post(&bed, COMPLETIONS, "", BODY).await;
    assert!(refused.read().await);
    assert_eq!(refused.status(), 401);
    let mut client = post(&bed, COMPLETIONS, "Authorization: Bearer secret\r\n", BODY).await;
    let mut asked = server.asked().await;
    assert_eq!(asked.header("authorization"), None);
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn events_go_on_one_by_one() {
    let server = Engine::start().await;
    let (bed, _agents) = bed(&[&server], &[]).await;
    let mut client = post(&bed, "/v1/chat/completions", "", BODY).await;
    let mut asked = server.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
    asked.write("transfer-encoding: chunked\r\n\r\n").await;
    for text in ["data: 1\n\n", "data: 2\n\n"] {
        asked.chunk(text).await;
        assert!(client.until(text).await.is_some());
    }
    asked.write("0\r\n\r\n").await;
    assert!(client.until("0\r\n\r\n").await.is_some());
}

#[tokio::test]
async fn what_steers_does_not_come_from_a_client() {
    let server = Engine::start().await;
    let (bed, _agents) = bed(&[&server], &[]).await;
    let headers = "X-Data-Parallel-Rank: 3\r\nX-Stator-Any: 1\r\nX-Override-Bootstrap-Room: 1\r\n\
                   X-Gateway-Destination-Endpoint: a\r\n";
    let body = r#"{"model":"m","kv_transfer_params":{},"nvext":{"cache_salt":""},"priority":1,
        "stream_interval":2,"sampling_params":{"rid":1},"n":1 }"#;
    let mut client = post(&bed, COMPLETIONS, headers, body).await;
    let mut asked = server.asked().await;
    assert_eq!(asked.body, r#"{"model":"m","sampling_params":{},"n":1 }"#);
    for name in ["x-override", "x-data", "x-stator", "x-gateway"] {
        assert!(!asked.head.contains(name), "{}", asked.head);
    }
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    let ignored = client.header("x-stator-ignored").map(str::to_owned);
    let named = "x-data-parallel-rank, stream_interval, sampling_params.rid";
    assert_eq!(ignored.as_deref(), Some(named));
    bed.until_metric("stator_proxy_passed_bodies_stripped_total 1").await;
    bed.until_metric("stator_proxy_passed_fields_removed_total{kind=\"steering\"} 3").await;
    bed.until_metric("stator_proxy_passed_fields_removed_total{kind=\"unknown\"} 2").await;
    for (members, field) in [
        (r#""kv_transfer_params":{"a":1}"#, "kv_transfer_params"),
        (r#""bootstrap_room":1"#, "bootstrap_room"),
        (r#""custom_logit_processor":"a""#, "custom_logit_processor"),
        (r#""session_params":{"id":"a"}"#, "session_params"),
        (r#""lora_path":"/""#, "lora_path"),
        (r#""sampling_params":{"bootstrap_room":1}"#, "sampling_params.bootstrap_room"),
        (r#""nvext":{"decode_worker_id":0}"#, "nvext.decode_worker_id"),
        (r#""nvext":{"cache_control":{"type":"ephemeral"}}"#, "nvext.cache_control"),
        (r#""any":1"#, "any"),
    ] {
        let body = format!(r#"{{"model":"m","prompt":"a",{members}}}"#);
        let mut client = post(&bed, COMPLETIONS, "", &body).await;
        assert!(client.read().await, "{body}");
        assert_eq!((client.status(), &tree(&client.body)["error"]["param"]), (400, &field.into()));
    }
    for (headers, body, status) in [
        ("", r#"{"model":"m","kv_transfer_params":{},"t":1e999}"#, 400),
        ("Content-Encoding: gzip\r\n", BODY, 400),
        ("Content-Encoding: br\r\n", BODY, 415),
    ] {
        let mut client = post(&bed, COMPLETIONS, headers, body).await;
        assert!(client.read().await, "{body}");
        assert_eq!(client.status(), status, "{body}");
    }
    assert!(server.is_idle());
}

#[tokio::test]
async fn a_page_reads_what_passed_and_what_the_server_ignored() {
    let server = Engine::start().await;
    let flags = ["--cors-origins=https://a.example", "--unknown-fields=ignore"];
    let (bed, _agents) = bed(&[&server], &flags).await;
    let body = r#"{"model":"m","prompt":"a","any":1}"#;
    let mut client = post(&bed, COMPLETIONS, "Origin: https://a.example\r\n", body).await;
    let mut asked = server.asked().await;
    asked.write("HTTP/1.1 200 OK\r\nx-stator-ignored: user\r\nvary: accept\r\n").await;
    asked.write("content-length: 5\r\n\r\nhello").await;
    assert!(client.read().await);
    assert_eq!(client.header("x-stator-ignored"), Some("any, user"));
    assert_eq!(client.header("access-control-allow-origin"), Some("https://a.example"));
    assert!(client.head.to_lowercase().contains("vary: origin"), "{}", client.head);
    assert!(client.head.to_lowercase().contains("vary: accept\r\n"), "{}", client.head);
}

#[tokio::test]
async fn a_server_is_asked_for_the_model_by_its_own_name() {
    let server = Engine::start().await;
    let mut bed = Bed::start(&[]).await;
    let _agent = bed.watched(server.address(), "weights.gguf").await;
    bed.until_workers(1).await;
    bed.until_listed("m").await;
    let mut client = post(&bed, COMPLETIONS, "", r#"{ "model" : "m", "prompt":"m"}"#).await;
    let mut asked = server.asked().await;
    assert_eq!(asked.body, r#"{ "model" : "weights.gguf", "prompt":"m"}"#);
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn what_a_server_refuses_is_passed_on_as_it_refused_it() {
    let server = Engine::start().await;
    let (bed, _agents) = bed(&[&server], &[]).await;
    for status in [400, 429, 500, 503] {
        let mut client = post(&bed, COMPLETIONS, "", BODY).await;
        server.asked().await.answer(status, "{\"detail\":\"no\"}").await;
        assert!(client.read().await);
        assert_eq!((client.status(), client.body.as_str()), (status, "{\"detail\":\"no\"}"));
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_request() {
    let server = Engine::start().await;
    let (bed, _agents) = bed(&[&server], &[]).await;
    let client = post(&bed, COMPLETIONS, "", BODY).await;
    let mut asked = server.asked().await;
    drop(client);
    asked.closed().await;
    // And in the middle of an answer.
    let mut client = post(&bed, COMPLETIONS, "", BODY).await;
    let mut asked = server.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    asked.chunk("data: 1\n\n").await;
    assert!(client.until("data: 1").await.is_some());
    drop(client);
    asked.closed().await;
    bed.until_metric("stator_proxy_hang_ups_total 2").await;
}

#[tokio::test]
async fn another_server_is_asked_where_one_is_not_there_or_says_nothing() {
    let (gone, silent, server) =
        (Engine::start().await, Engine::start().await, Engine::start().await);
    let (bed, _agents) = bed(&[&gone, &silent, &server], &["--router-mode=round-robin"]).await;
    drop(gone);
    let breaking = async {
        loop {
            // Whatever comes here is dropped unanswered.
            drop(silent.asked().await);
        }
    };
    let answering = async {
        for _ in 0..6 {
            let mut client = post(&bed, COMPLETIONS, "", BODY).await;
            let mut asked = server.asked().await;
            asked.answer(200, DONE).await;
            check_done(&mut client).await;
        }
    };
    tokio::select! {
        () = breaking => {}
        () = answering => {}
    }
    let metrics = bed.metrics().await;
    assert!(!metrics.contains("stator_proxy_migrations_total 0\n"), "{metrics}");
}

#[tokio::test]
async fn servers_that_are_not_there_cost_no_attempt() {
    let gone = [Engine::start().await, Engine::start().await, Engine::start().await];
    let server = Engine::start().await;
    let [first, second, third] = &gone;
    let flags = ["--router-mode=round-robin", "--migration-limit=0"];
    let (bed, _agents) = bed(&[first, second, third, &server], &flags).await;
    drop(gone);
    // One of these at the latest is meant for a server that is gone.
    for _ in 0..4 {
        let mut client = post(&bed, COMPLETIONS, "", BODY).await;
        let mut asked = server.asked().await;
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
    }
    bed.until_metric("stator_proxy_migrations_total 0").await;
}

#[tokio::test]
async fn an_answer_that_begins_nowhere_is_an_error_with_a_reason() {
    let server = Engine::start().await;
    let flags = ["--first-token-timeout-ms=50", "--migration-limit=0"];
    let (bed, _agents) = bed(&[&server], &flags).await;
    let mut client = post(&bed, COMPLETIONS, "", BODY).await;
    let _silent = server.asked().await;
    assert!(client.read().await);
    assert_eq!(client.status(), 504, "{}", client.body);
    drop(server);
    client.post(COMPLETIONS, "", BODY).await;
    assert!(client.read().await);
    assert_eq!(client.status(), 502);
    assert!(client.body.contains("cannot connect to 127.0.0.1:"), "{}", client.body);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_taken_for_whole() {
    let server = Engine::start().await;
    let (bed, _agents) = bed(&[&server], &[]).await;
    let mut client = post(&bed, COMPLETIONS, "", BODY).await;
    let mut asked = server.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
    asked.write("transfer-encoding: chunked\r\n\r\n").await;
    asked.chunk("data: {\"half\":").await;
    assert!(client.until("half").await.is_some());
    drop(asked);
    assert!(client.until("\n\ndata: {\"error\":").await.is_some(), "the event before it is ended");
    bed.until_metric("stator_proxy_passed_answers_cut_total 1").await;
}

/// Checks that two conversations, begun at once, stay with the servers that they began at; `body` makes
/// a request of a conversation's turn.
pub(super) async fn check_that_both_stay(flags: &[&str], body: impl Fn(usize, usize) -> String) {
    let servers = [Engine::start().await, Engine::start().await, Engine::start().await];
    let (bed, _agents) = bed(&servers.each_ref(), flags).await;
    let [one, two, three] = &servers;
    let asked = async || {
        tokio::select! {
            asked = one.asked() => asked,
            asked = two.asked() => asked,
            asked = three.asked() => asked,
        }
    };
    // Both at once, so that each has a server of its own.
    let mut begun = Vec::new();
    for conversation in 0..2 {
        let client = post(&bed, COMPLETIONS, "", &body(conversation, 0)).await;
        begun.push((client, asked().await));
    }
    let mut workers = Vec::new();
    for (client, server) in &mut begun {
        server.answer(200, DONE).await;
        check_done(client).await;
        workers.push(client.header("x-stator-worker-id").expect("a worker").to_owned());
    }
    assert_ne!(workers[0], workers[1]);
    drop(begun);
    for (conversation, turn) in [(1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)] {
        let mut client = post(&bed, COMPLETIONS, "", &body(conversation, turn)).await;
        asked().await.answer(200, DONE).await;
        check_done(&mut client).await;
        let worker = client.header("x-stator-worker-id");
        assert_eq!(
            worker,
            Some(&*workers[conversation]),
            "conversation {conversation}, turn {turn}"
        );
    }
}

#[tokio::test]
async fn a_prompt_goes_back_to_the_server_that_had_its_beginning() {
    let stories = ["The sea was grey. ", "A wood stood still. "].map(|text| text.repeat(20));
    check_that_both_stay(&[], |story, turn| {
        format!(r#"{{"model":"m","prompt":"{}{}"}}"#, stories[story], "More. ".repeat(turn))
    })
    .await;
}

#[tokio::test]
async fn other_apis_go_through_where_the_model_is_of_this_kind() {
    let server = Engine::start().await;
    let (mut bed, _agents) = bed(&[&server], &[]).await;
    let mut client = post(&bed, "/v1/embeddings", "", r#"{"model":"m","input":"a"}"#).await;
    let mut asked = server.asked().await;
    assert!(asked.head.starts_with("POST /v1/embeddings HTTP/1.1\r\n"), "{}", asked.head);
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    for (path, body, status) in [
        ("/v1/embeddings", r#"{"model":"other","input":"a"}"#, 404),
        (COMPLETIONS, r#"{"model":"other","prompt":"a"}"#, 404),
        // A part of Cohere's API that only such servers have.
        ("/v2/embed", r#"{"model":"other","texts":["a"]}"#, 501),
        ("/sleep", r#"{"model":"m"}"#, 404),
        ("/v1/load_lora_adapter", r#"{"model":"m"}"#, 404),
    ] {
        let mut client = post(&bed, path, "", body).await;
        assert!(client.read().await);
        assert_eq!(client.status(), status, "{path} {body}");
    }
    for path in ["/v1/rerank", "/score", "/v2/embed", "/tokenize", "/inference/v1/generate"] {
        let mut client = post(&bed, path, "", r#"{"model":"m"}"#).await;
        assert!(asked.read().await, "the same connection is used");
        assert!(asked.head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{}", asked.head);
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
    }
    // An agent of the same name whose engine takes tokens is another model.
    let _other = bed.agent(Default::default()).await;
    let mut client = post(&bed, COMPLETIONS, "", BODY).await;
    assert!(asked.read().await, "the same connection is used");
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn an_upload_goes_through_with_the_engines_name_of_the_model() {
    let server = Engine::start().await;
    let mut bed = Bed::start(&["--pass-paths=/v1/videos"]).await;
    let _agent = bed.watched(server.address(), "whisper").await;
    bed.until_listed("m").await;
    bed.until_workers(1).await;
    let form = |model: &str| {
        format!(
            "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n\
             --b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nsound\r\n\
             --b--\r\n"
        )
    };
    let part =
        |name: &str| format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n9\r\n");
    let kind = "content-type: multipart/form-data; boundary=b\r\n";
    let sent = part("rid") + &form("m");
    let mut asked = None;
    for path in ["/v1/audio/transcriptions", "/v1/videos"] {
        let mut client = upload(&bed, path, kind, &sent).await;
        let engine = match &mut asked {
            None => asked.insert(server.asked().await),
            Some(engine) => {
                assert!(engine.read().await, "the same connection is used");
                engine
            }
        };
        assert!(engine.head.starts_with(&format!("POST {path} HTTP/1.1")), "{}", engine.head);
        assert_eq!(engine.body, form("whisper"), "a field that no engine gets is gone");
        engine.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(client.header("x-stator-ignored"), Some("rid"));
    }
    for (path, body, status) in [
        ("/v1/audio/transcriptions", part("priority") + &form("m"), 400),
        ("/v1/audio/transcriptions", part("made_up") + &form("m"), 400),
        ("/v1/audio/transcriptions", form("other"), 501),
        ("/v1/audio/transcriptions", "--c--".to_owned(), 400),
        ("/v1/images/edits", form("other"), 501),
    ] {
        let mut client = upload(&bed, path, kind, &body).await;
        assert!(client.read().await);
        assert_eq!(client.status(), status, "{path} {}", client.body);
    }
}

/// A client that has sent a body which is no JSON.
async fn upload(bed: &Bed, path: &str, headers: &str, body: &str) -> Peer {
    let mut client = Peer::connect(bed.address).await;
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\n{headers}");
    client.write(&format!("{head}Content-Length: {length}\r\n\r\n{body}")).await;
    client
}
