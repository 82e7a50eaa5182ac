//! The dialect against recorded answers, over real connections.

use crate::testkit::{Reply, Seen, Server, ask, fixture, raw, read, recorded};
use crate::{
    ApiKey, Ask, Connector, Dialect, EventSource, Fault, Finish, Hand, Kind, Operation, Options,
    Role, Trace, connect,
};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) const GENERATE: &str = "POST /inference/v1/generate";
const STREAM: &str = "vllm-0.32.0/main/31-generate-tokens-stream.response.sse";

pub(super) fn dialect(server: &Server, connector: Option<(&str, Role)>) -> Arc<dyn Dialect> {
    let connector = connector.map(|(name, role)| {
        let bootstrap = Some(server.url.clone());
        Connector { name: name.into(), role, bootstrap }
    });
    let api_key = Some(ApiKey("key-1".into()));
    let url = server.url.clone();
    connect(Kind::Vllm, Options { url, api_key, connector, ..Options::default() }).unwrap()
}

fn says_of_itself() -> Vec<(&'static str, Reply)> {
    let main = |path: &str| recorded(&format!("vllm-0.32.0/main/{path}"));
    vec![
        ("GET /version", main("02-version.response.json")),
        ("GET /v1/models", main("03-models.response.json")),
        ("GET /kv_event_sources", main("05-kv_event_sources.response.json")),
        ("GET /metrics", main("cache_config_info.txt")),
        ("GET /server_info?config_format=json", main("11-server_info.response.json")),
        ("GET /inference/v1/generate", Reply::recorded(405, r#"{"detail":"Method Not Allowed"}"#)),
    ]
}

/// The same, with some answers in place of others.
pub(super) fn but(others: Vec<(&'static str, Reply)>) -> Vec<(&'static str, Reply)> {
    says_of_itself().into_iter().chain(others).collect()
}

pub(super) async fn next_seen(server: &mut Server) -> Seen {
    server.seen.recv().await.expect("the server lives")
}

#[tokio::test]
async fn a_recorded_engine_is_described() {
    let server = Server::start(says_of_itself()).await;
    let described = dialect(&server, None).describe().await.unwrap();
    assert_eq!(described.version, "vllm 0.32.0");
    assert_eq!(described.model, "tiny");
    assert_eq!(described.context_length, Some(2048));
    assert_eq!(described.block_size, Some(32));
    assert_eq!(described.total_blocks, Some(160));
    assert_eq!(described.batch_tokens, Some(2048));
    assert_eq!(described.ranks, 1);
    let source = EventSource {
        endpoint: "tcp://127.0.0.1:5557".into(),
        replay: Some("tcp://127.0.0.1:6557".into()),
        topic: "kv-events".into(),
    };
    assert_eq!(described.events, [source]);
    assert_eq!(described.adapters, [""; 0]);
    assert!(described.handover.is_none());
}

#[tokio::test]
async fn ranks_share_the_blocks_and_have_a_publisher_each() {
    let server = Server::start(but(vec![
        ("GET /metrics", recorded("vllm-0.32.0/dp/cache_config_info.txt")),
        ("GET /kv_event_sources", recorded("vllm-0.32.0/dp/00-kv_event_sources.response.json")),
        ("GET /v1/models", recorded("vllm-0.32.0/lora/04-models-after.response.json")),
    ]))
    .await;
    let described = dialect(&server, None).describe().await.unwrap();
    assert_eq!((described.ranks, described.total_blocks), (2, Some(2048)));
    let endpoints: Vec<_> = described.events.iter().map(|source| &*source.endpoint).collect();
    assert_eq!(endpoints, ["tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"]);
    assert_eq!((&*described.model, &*described.adapters), ("tiny", &["style-a".to_owned()][..]));
}

#[tokio::test]
async fn outside_of_the_development_mode_the_rest_is_still_known() {
    let absent = || Reply::recorded(404, r#"{"detail":"Not Found"}"#);
    let server = Server::start(but(vec![
        ("GET /server_info?config_format=json", absent()),
        ("GET /kv_event_sources", absent()),
    ]))
    .await;
    let dialect = dialect(&server, Some(("NixlConnector", Role::Prefill)));
    let described = dialect.describe().await.unwrap();
    assert_eq!((described.block_size, described.batch_tokens), (Some(32), None));
    let handover = described.handover.expect("the connector is configured");
    let said = r#"{"connector":"NixlConnector","version":"0.32.0","block_size":32}"#;
    assert_eq!(handover.get(), said);
}

#[tokio::test]
async fn a_description_of_which_one_answer_never_comes_is_given_up() {
    let endpoint = "GET /inference/v1/generate";
    let mut server = Server::start(but(vec![(endpoint, Reply::Silent)])).await;
    let dialect = dialect(&server, None);
    let described = tokio::spawn(async move { dialect.describe().await });
    for _ in says_of_itself() {
        next_seen(&mut server).await;
    }
    tokio::time::pause();
    assert!(matches!(described.await.unwrap(), Err(Fault::Unreachable(_))));
}

#[tokio::test]
async fn the_engines_word_on_its_connector_goes_first() {
    let mut info: Value =
        serde_json::from_slice(&fixture("vllm-0.32.0/main/11-server_info.response.json")).unwrap();
    info["vllm_config"]["kv_transfer_config"] =
        serde_json::json!({"kv_connector": "MooncakeConnector", "kv_role": "kv_producer"});
    let server = Server::start(but(vec![
        ("GET /server_info?config_format=json", Reply::ok(info.to_string())),
        (
            "GET /query",
            recorded("vllm-0.32.0/pd-mooncake/00-completion-bootstrap-query.response.json"),
        ),
    ]))
    .await;
    let dialect = dialect(&server, Some(("MooncakeConnector", Role::Both)));
    let handover = dialect.describe().await.unwrap().handover.unwrap();
    let handover: Value = serde_json::from_str(handover.get()).unwrap();
    assert_eq!(handover["engines"], serde_json::json!(["988f444d-2d47-4a37-af77-e65b997bf1ae"]));
    assert_eq!(handover["bootstrap"], Value::from(&*server.url));
    // It said that it only computes prompts.
    let decode = Ask { hand: Hand::Decode(raw("{}")), ..ask(&[1]) };
    assert!(matches!(dialect.generate(decode).await.err(), Some(Fault::Unsupported(_))));
}

#[tokio::test]
async fn of_several_connectors_the_one_that_hands_over_is_the_engines() {
    let check = async |connectors: Value, expected: Option<&str>| {
        let mut info: Value =
            serde_json::from_slice(&fixture("vllm-0.32.0/main/11-server_info.response.json"))
                .unwrap();
        info["vllm_config"]["kv_transfer_config"] = serde_json::json!({
            "kv_connector": "MultiConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": connectors},
        });
        let info = Reply::ok(info.to_string());
        let server = Server::start(but(vec![("GET /server_info?config_format=json", info)])).await;
        let handover = dialect(&server, None).describe().await.unwrap().handover;
        let said = handover.map(|said| serde_json::from_str::<Value>(said.get()).unwrap());
        assert_eq!(said.as_ref().and_then(|said| said["connector"].as_str()), expected);
    };
    let one = |name: &str, role: &str| serde_json::json!({"kv_connector": name, "kv_role": role});
    let (ours, nixl) = (one("Connector", "kv_both"), one("NixlConnector", "kv_producer"));
    let offloading = one("OffloadingConnector", "kv_both");
    check(serde_json::json!([nixl, ours]), Some("NixlConnector")).await;
    check(serde_json::json!([ours, offloading, nixl]), Some("NixlConnector")).await;
    check(serde_json::json!([ours, offloading]), Some("OffloadingConnector")).await;
    // Nobody can share a request with it, and it is said with its name why.
    check(serde_json::json!([ours]), Some("MultiConnector")).await;
    check(serde_json::json!([one("NixlConnector", "kv_consumer"), ours]), None).await;
}

#[tokio::test]
async fn ranks_that_have_not_registered_leave_no_other_in_their_place() {
    let engine = |id: &str| serde_json::json!({"engine_id": id});
    let registered = serde_json::json!({"0": engine("a"), "1": engine("b"), "3": engine("d"), "10": engine("k")});
    let server = Server::start(but(vec![("GET /query", Reply::ok(registered.to_string()))])).await;
    let dialect = dialect(&server, Some(("MooncakeConnector", Role::Both)));
    let handover = dialect.describe().await.unwrap().handover.unwrap();
    let handover: Value = serde_json::from_str(handover.get()).unwrap();
    assert_eq!(handover["engines"], serde_json::json!(["a", "b"]));
}

#[tokio::test]
async fn a_recorded_stream_comes_through() {
    let mut server = Server::start([(GENERATE, recorded(STREAM))]).await;
    let trace = Trace { parent: "00-a-b-01".into(), state: Some("vendor=x".into()) };
    let asked = Ask { rank: Some(3), trace: Some(trace), ..ask(&[1, 2, 3]) };
    let answer = dialect(&server, None).generate(asked).await.unwrap();
    let (all, _) = read(answer).await.unwrap();
    assert_eq!(all.tokens, [1495, 3136, 2012, 6420]);
    assert_eq!((all.cached_tokens, all.finish), (Some(32), Some(Finish::Length)));
    let seen = next_seen(&mut server).await;
    assert_eq!(seen.line, GENERATE);
    assert_eq!(seen.headers["x-request-id"], "request-1");
    assert_eq!(seen.headers["x-data-parallel-rank"], "3");
    assert_eq!(seen.headers["traceparent"], "00-a-b-01");
    assert_eq!(seen.headers["tracestate"], "vendor=x");
    assert_eq!(seen.headers["authorization"], "Bearer key-1");
    assert_eq!(seen.headers["content-type"], "application/json");
    assert!(seen.body.starts_with(br#"{"token_ids":[1,2,3],"#));
}

#[tokio::test]
async fn without_the_endpoint_completions_serve_from_the_description_on() {
    let stream = recorded("vllm-0.32.0/main/24-completion-stream-token-ids.response.sse");
    let absent = Reply::recorded(404, r#"{"detail":"Not Found"}"#);
    let replies = vec![("GET /inference/v1/generate", absent), ("POST /v1/completions", stream)];
    let server = Server::start(but(replies)).await;
    let dialect = dialect(&server, None);
    let early = dialect.generate(ask(&[1])).await.err();
    assert!(matches!(early, Some(Fault::Unsupported(_))), "{early:?}");
    dialect.describe().await.unwrap();
    let (all, _) = read(dialect.generate(ask(&[1])).await.unwrap()).await.unwrap();
    assert_eq!(all.tokens.len(), 12);
    assert_eq!(all.tokens[..3], [1072, 542, 3209]);
}

#[tokio::test]
async fn prefill_hands_over_what_decode_takes() {
    let prefill = recorded("vllm-0.32.0/pd-nixl/19-generate-prefill.response.json");
    let server = Server::start([(GENERATE, prefill)]).await;
    let dialect_of = |server: &Server| dialect(server, Some(("NixlConnector", Role::Both)));
    let asked = Ask { hand: Hand::Prefill(None), ..ask(&[1, 2]) };
    let (first, _) = read(dialect_of(&server).generate(asked).await.unwrap()).await.unwrap();
    let handover = first.handover.expect("a prefill hands over");

    let decode = recorded("vllm-0.32.0/pd-nixl/20-generate-decode-stream.response.sse");
    let mut server = Server::start([(GENERATE, decode)]).await;
    let asked = Ask { hand: Hand::Decode(handover.clone()), ..ask(&[1, 2]) };
    let (all, _) = read(dialect_of(&server).generate(asked).await.unwrap()).await.unwrap();
    assert_eq!(all.tokens, [7015, 5555, 3821, 7250, 823, 5314, 3884, 586]);
    // What prefill computed is computed again here, from its KV.
    assert_eq!(all.tokens[..1], first.tokens);
    let body = next_seen(&mut server).await.body;
    assert!(String::from_utf8(body.to_vec()).unwrap().contains(handover.get()));
}

#[tokio::test]
async fn a_storage_is_filled_by_one_request_and_found_by_another() {
    let answer = recorded("vllm-0.32.0/pd-nixl/19-generate-prefill.response.json");
    let mut server = Server::start([(GENERATE, answer), ("GET /health", Reply::ok(""))]).await;
    let prefills = dialect(&server, Some(("ExampleConnector", Role::Prefill)));
    let asked = Ask { hand: Hand::Prefill(None), ..ask(&[1, 2]) };
    let (all, _) = read(prefills.generate(asked).await.unwrap()).await.unwrap();
    let body: Value = serde_json::from_slice(&next_seen(&mut server).await.body).unwrap();
    assert_eq!(
        (&body["sampling_params"]["max_tokens"], &body["stream"]),
        (&1.into(), &false.into())
    );
    assert_eq!(body.get("kv_transfer_params"), None);

    let mut server = Server::start([(GENERATE, recorded(STREAM))]).await;
    let decodes = dialect(&server, Some(("ExampleConnector", Role::Decode)));
    let hand = Hand::Decode(all.handover.expect("decode is begun with something"));
    read(decodes.generate(Ask { hand, ..ask(&[1, 2]) }).await.unwrap()).await.unwrap();
    let body: Value = serde_json::from_slice(&next_seen(&mut server).await.body).unwrap();
    assert_eq!(
        (&body["sampling_params"]["max_tokens"], &body["stream"]),
        (&16.into(), &true.into())
    );
    assert_eq!(body.get("kv_transfer_params"), None);
}

#[tokio::test]
async fn a_malformed_handover_never_reaches_the_engine() {
    let mut server = Server::start([(GENERATE, recorded(STREAM))]).await;
    let dialect = dialect(&server, Some(("NixlConnector", Role::Both)));
    let killer = Hand::Decode(raw(r#"{"do_remote_prefill":true}"#));
    let fault = dialect.generate(Ask { hand: killer, ..ask(&[1]) }).await.err();
    assert!(matches!(fault, Some(Fault::Invalid(_))), "{fault:?}");
    assert!(server.seen.try_recv().is_err(), "nothing was sent");
}

#[tokio::test]
async fn recorded_refusals_are_the_callers_choices() {
    let invalid = [
        (
            "main/38-error-unknown-model.response.json",
            "The model `nope` does not exist. Valid aliases: tiny.",
        ),
        ("main/41-error-bad-token-id.response.json", "Token id 999999 is out of vocabulary"),
        (
            "main/42-data-parallel-rank-out-of-range.response.json",
            "data_parallel_rank 3 is out of range [0, 1).",
        ),
        ("dp/03-completion-rank9.response.json", "data_parallel_rank 9 is out of range [0, 2)."),
        (
            "lora/10-completion-unloaded.response.json",
            "The model `style-a` does not exist. Valid aliases: tiny.",
        ),
    ];
    for (path, message) in invalid {
        let server = Server::start([(GENERATE, recorded(&format!("vllm-0.32.0/{path}")))]).await;
        let fault = dialect(&server, None).generate(ask(&[1])).await.err();
        assert_eq!(fault, Some(Fault::Invalid(message.into())), "{path}");
    }
    let too_long = recorded("vllm-0.32.0/main/39-error-too-long.response.json");
    let server = Server::start([(GENERATE, too_long)]).await;
    let fault = dialect(&server, None).generate(ask(&[1])).await.err();
    assert!(matches!(fault, Some(Fault::Invalid(_))), "{fault:?}");
    let died =
        Reply::recorded(500, fixture("vllm-0.32.0/pd-nixl/15-bad-port-decode.response.json"));
    let server = Server::start([(GENERATE, died)]).await;
    let fault = dialect(&server, None).generate(ask(&[1])).await.err();
    assert_eq!(fault, Some(Fault::Failed("Internal server error".into())));
}

#[tokio::test]
async fn operations_are_the_recorded_ones() {
    let lora = |path: &str| recorded(&format!("vllm-0.32.0/lora/{path}"));
    let sleep = |path: &str| recorded(&format!("vllm-0.32.0/sleep/{path}"));
    let mut server = Server::start([
        (
            "POST /reset_prefix_cache",
            recorded("vllm-0.32.0/main/57-reset-prefix-cache.response.json"),
        ),
        ("POST /pause?mode=keep", sleep("01-pause.response.json")),
        ("POST /resume", sleep("03-resume.response.json")),
        ("POST /sleep?level=1", sleep("07-sleep.response.json")),
        ("POST /v1/load_lora_adapter", lora("01-load.response.txt")),
        ("POST /v1/unload_lora_adapter", lora("09-unload-again.response.json")),
    ])
    .await;
    let dialect = dialect(&server, None);
    let adapter = |name: &str| Operation::LoadAdapter { name: name.into(), path: "p".into() };
    let sleep = Operation::Sleep { level: 1 };
    let done = [Operation::ResetCache, Operation::Pause, Operation::Resume, sleep, adapter("a")];
    for operation in &done {
        assert_eq!(dialect.operate(operation).await, Ok(()), "{operation:?}");
    }
    let forgets = |level| dialect.forgets(&Operation::Sleep { level });
    assert_eq!([0, 1, 2].map(forgets), [false, true, true]);
    let unload = Operation::UnloadAdapter { name: "a".into() };
    let fault = dialect.operate(&unload).await.unwrap_err();
    assert_eq!(fault, Fault::Invalid("The lora adapter 'style-a' cannot be found.".into()));
    // No development mode, no profiler.
    for operation in [Operation::StartProfile, Operation::Wake] {
        let fault = dialect.operate(&operation).await.unwrap_err();
        assert!(matches!(fault, Fault::Unsupported(_)), "{operation:?}: {fault:?}");
    }
    let mut bodies = Vec::new();
    while let Ok(seen) = server.seen.try_recv() {
        bodies.push(String::from_utf8(seen.body.to_vec()).unwrap());
    }
    assert_eq!(bodies[4..6], [r#"{"lora_name":"a","lora_path":"p"}"#, r#"{"lora_name":"a"}"#]);
}

#[tokio::test]
async fn loading_an_adapter_twice_or_from_nowhere_is_the_callers_fault() {
    let load = Operation::LoadAdapter { name: "a".into(), path: "p".into() };
    for path in ["02-load-again", "03-load-missing"] {
        let reply = recorded(&format!("vllm-0.32.0/lora/{path}.response.json"));
        let server = Server::start([("POST /v1/load_lora_adapter", reply)]).await;
        let fault = dialect(&server, None).operate(&load).await.unwrap_err();
        assert!(matches!(fault, Fault::Invalid(_)), "{path}: {fault:?}");
    }
}

#[tokio::test]
async fn health_is_what_the_engine_says() {
    let check = async |reply| {
        let server = Server::start([("GET /health", reply)]).await;
        dialect(&server, None).healthy().await
    };
    assert_eq!(check(Reply::ok("")).await, Ok(()));
    assert!(matches!(check(Reply::recorded(503, "")).await, Err(Fault::Failed(_))));
}

#[tokio::test]
async fn dropping_an_answer_or_its_future_tells_the_engine() {
    let first = r#"data: {"choices":[{"index":0,"token_ids":[5]}]}"#.to_owned() + "\n\n";
    let mut server = Server::start([(GENERATE, Reply::Hangs(first.into()))]).await;
    let mut answer = dialect(&server, None).generate(ask(&[1])).await.unwrap();
    let delta = answer.next().await.unwrap().expect("a token came");
    assert_eq!(delta.tokens, [5]);
    // A wait that is given up loses nothing.
    assert!(futures::FutureExt::now_or_never(answer.next()).is_none());
    drop(answer);
    server.gone.recv().await.expect("the server sees it");

    let mut server = Server::start([(GENERATE, Reply::Silent)]).await;
    let dialect = dialect(&server, None);
    let waiting = tokio::spawn(async move { dialect.generate(ask(&[1])).await.map(drop) });
    next_seen(&mut server).await;
    waiting.abort();
    server.gone.recv().await.expect("the server sees it");
}

#[tokio::test]
async fn a_request_is_aborted_by_its_connection_and_never_by_a_name() {
    let mut server = Server::start(but(vec![(GENERATE, Reply::Silent)])).await;
    let dialect = dialect(&server, None);
    let waiting = tokio::spawn(async move { dialect.generate(ask(&[1])).await.err() });
    let seen = next_seen(&mut server).await;
    assert_eq!(
        (&*seen.line, &seen.headers["x-request-id"]),
        (GENERATE, &"request-1".parse().unwrap())
    );
    waiting.abort();
    server.gone.recv().await.expect("the engine is told by the end of the connection");
    assert!(server.seen.try_recv().is_err(), "and by nothing else");
}

#[tokio::test]
async fn what_came_before_a_connection_broke_is_not_lost() {
    let first = r#"data: {"choices":[{"index":0,"token_ids":[5]}]}"#.to_owned() + "\n\n";
    let now = Arc::new(tokio::sync::Notify::new());
    let server = Server::start([(GENERATE, Reply::Breaks(first.into(), now.clone()))]).await;
    let mut answer = dialect(&server, None).generate(ask(&[1])).await.unwrap();
    assert_eq!(answer.next().await.unwrap().expect("a token came").tokens, [5]);
    now.notify_one();
    assert!(matches!(answer.next().await, Err(Fault::Unreachable(_))));
    assert!(matches!(answer.next().await, Ok(None)));
}

#[tokio::test]
async fn an_empty_answer_is_a_fault() {
    for body in ["", "data: [DONE]\n\n"] {
        let server = Server::start([(GENERATE, Reply::ok(body))]).await;
        let mut answer = dialect(&server, None).generate(ask(&[1])).await.unwrap();
        assert!(matches!(answer.next().await, Err(Fault::Failed(_))), "{body:?}");
    }
}

#[tokio::test]
async fn answers_read_to_their_finish_share_a_connection() {
    let Reply::Canned(status, body, _) = recorded(STREAM) else { panic!("a canned answer") };
    let server = Server::start([(GENERATE, Reply::Canned(status, body, 100))]).await;
    let dialect = dialect(&server, None);
    for _ in 0..5 {
        let mut answer = dialect.generate(ask(&[1])).await.unwrap();
        // As the agent does: after the finish it asks for nothing more.
        while answer.next().await.unwrap().expect("a finish comes").finish.is_none() {}
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_unreachable() {
    let url = Server::start([]).await.url.clone();
    let dialect = connect(Kind::Vllm, Options { url, ..Options::default() }).unwrap();
    assert!(matches!(dialect.healthy().await, Err(Fault::Unreachable(_))));
    assert!(matches!(dialect.generate(ask(&[1])).await.err(), Some(Fault::Unreachable(_))));
}
