//! The dialect against recorded answers, over real connections.

use crate::testkit::{Reply, Server, ask, fixture, raw, read, recorded, shared};
use crate::{
    Ask, Connector, Dialect, Fault, Finish, Hand, Kind, Manner, Operation, Options, Pooling, Role,
    connect,
};
use serde_json::{Value, json};
use stator_protos::worker::Sampling;
use std::sync::Arc;

const GENERATE: &str = "POST /generate";

fn main(name: &str) -> Reply {
    recorded(&format!("sglang-0.5.23/main/{name}"))
}

fn dialect(server: &Server, connector: Option<Connector>) -> Arc<dyn Dialect> {
    let options = Options { url: server.url.clone(), connector, ..Options::default() };
    connect(Kind::Sglang, options).unwrap()
}

fn half(role: Role) -> Option<Connector> {
    Some(Connector { name: "mooncake".into(), role, bootstrap: None })
}

/// The recorded description, changed.
fn server_info(changes: Value) -> Reply {
    let info = fixture("sglang-0.5.23/main/06-server_info.response.json");
    let mut info: Value = serde_json::from_slice(&info).unwrap();
    for (field, value) in changes.as_object().unwrap() {
        info[field] = value.clone();
    }
    Reply::ok(info.to_string())
}

async fn engine(info: Reply) -> Server {
    Server::start([("GET /server_info", info), ("GET /v1/models", main("04-models.response.json"))])
        .await
}

#[tokio::test]
async fn a_recorded_engine_is_described() {
    let server = engine(main("06-server_info.response.json")).await;
    let described = dialect(&server, None).describe().await.unwrap();
    assert_eq!(described.version, "sglang 0.5.23");
    assert_eq!((&*described.model, described.context_length), ("tiny", Some(2048)));
    assert_eq!((described.block_size, described.total_blocks), (Some(16), Some(512)));
    assert_eq!((described.batch_tokens, described.ranks), (Some(4096), 1));
    assert_eq!(described.events.len(), 1);
    let source = &described.events[0];
    assert_eq!(source.endpoint, "tcp://127.0.0.1:5577");
    assert_eq!(source.replay.as_deref(), Some("tcp://127.0.0.1:5597"));
    assert_eq!(source.topic, "kv-events");
    assert!(described.handover.is_none());
}

#[tokio::test]
async fn ranks_have_blocks_and_a_publisher_each() {
    let server = engine(recorded("sglang-0.5.23/dp/06-server_info.response.json")).await;
    let described = dialect(&server, None).describe().await.unwrap();
    assert_eq!((described.ranks, described.total_blocks), (2, Some(512)));
    let endpoints: Vec<_> = described.events.iter().map(|source| &*source.endpoint).collect();
    assert_eq!(endpoints, ["tcp://127.0.0.1:5577", "tcp://127.0.0.1:5578"]);
}

#[tokio::test]
async fn older_versions_describe_themselves_elsewhere() {
    let server = Server::start([
        ("GET /get_server_info", server_info(json!({"context_length": null, "kv_events": null}))),
        ("GET /v1/models", main("04-models.response.json")),
    ])
    .await;
    let described = dialect(&server, None).describe().await.unwrap();
    assert_eq!(described.context_length, Some(2048));
    assert!(described.events.is_empty());
}

#[tokio::test]
async fn a_pair_meets_in_a_room_of_the_prefills() {
    let prefill = json!({"disaggregation_mode": "prefill", "dp_size": 2});
    let prefill = engine(server_info(prefill)).await;
    let described = dialect(&prefill, None).describe().await.unwrap();
    assert!(!described.needs_prefill);
    let advert = described.handover.unwrap();
    let said: Value = serde_json::from_str(advert.get()).unwrap();
    assert_eq!(said["bootstrap_host"], json!("127.0.0.1"));
    assert_eq!(said["bootstrap_port"], json!(8998));
    assert_eq!(said["dp_size"], json!(2));

    let mut server = Server::start([
        ("GET /server_info", server_info(json!({"disaggregation_mode": "decode"}))),
        ("GET /v1/models", main("04-models.response.json")),
        (GENERATE, recorded("sglang-0.5.23/pd/07-generate-stream-decode.response.sse")),
    ])
    .await;
    let dialect = dialect(&server, None);
    assert!(
        matches!(dialect.pair(&shared(7, 0), &advert), Err(Fault::Unsupported(_))),
        "not described yet"
    );
    let described = dialect.describe().await.unwrap();
    assert!(described.handover.is_none() && described.needs_prefill);
    let Manner::Together { decode, .. } = dialect.pair(&shared(7, 1), &advert).unwrap() else {
        panic!("in turn")
    };
    let told: Value = serde_json::from_str(decode.get()).unwrap();
    let asked = Ask { hand: Hand::Decode(decode), ..ask(&[1, 2]) };
    let (all, _) = read(dialect.generate(asked).await.unwrap()).await.unwrap();
    assert_eq!((all.tokens.len(), all.finish), (16, Some(Finish::Length)));
    let body = loop {
        let seen = server.seen.recv().await.unwrap();
        if seen.line == GENERATE {
            break serde_json::from_slice::<Value>(&seen.body).unwrap();
        }
    };
    assert_eq!(body["bootstrap_room"], told["bootstrap_room"]);
    assert_eq!(body["bootstrap_room"].as_u64().map(|room| room % 2), Some(1));
    assert_eq!(body["disagg_prefill_dp_rank"], json!(1));
    assert_eq!((&body["rid"], &body["stream"]), (&json!("request-1"), &json!(true)));
}

#[tokio::test]
async fn a_configured_place_is_where_others_find_it() {
    let server = engine(server_info(json!({"disaggregation_mode": "prefill"}))).await;
    let bootstrap = Some("http://10.0.0.9:9000/".into());
    let given = Connector { name: "ignored".into(), role: Role::Decode, bootstrap };
    let advert = dialect(&server, Some(given)).describe().await.unwrap().handover.unwrap();
    let said: Value = serde_json::from_str(advert.get()).unwrap();
    assert_eq!(
        (&said["bootstrap_host"], &said["bootstrap_port"]),
        (&json!("10.0.0.9"), &json!(9000))
    );
    assert_eq!(said["connector"], json!("mooncake"));
}

#[tokio::test]
async fn a_prefill_streams_its_one_token() {
    let prefill = recorded("sglang-0.5.23/pd/06-generate-stream-prefill.response.sse");
    let server = Server::start([(GENERATE, prefill)]).await;
    let told = raw(r#"{"bootstrap_host":"h","bootstrap_port":8998,"bootstrap_room":7}"#);
    let asked = Ask { hand: Hand::Prefill(Some(told)), ..ask(&[1, 2]) };
    let answer = dialect(&server, half(Role::Prefill)).generate(asked).await.unwrap();
    let (all, deltas) = read(answer).await.unwrap();
    assert_eq!((all.tokens, deltas), (vec![2242], 1));
}

#[tokio::test]
async fn health_is_a_ping_that_asks_for_no_token() {
    let mut server = Server::start([("GET /ping", Reply::ok(""))]).await;
    assert_eq!(dialect(&server, None).healthy().await, Ok(()));
    assert_eq!(server.seen.recv().await.unwrap().line, "GET /ping");
    // Of older versions, and where somebody else's check failed: they are asked for proof.
    let missing = ("GET /ping", Reply::recorded(404, "{}"));
    let doubtful = ("GET /ping", Reply::recorded(503, ""));
    for ping in [missing, doubtful] {
        let server = Server::start([ping, ("GET /health", Reply::ok(""))]).await;
        assert_eq!(dialect(&server, None).healthy().await, Ok(()));
    }
    let server = Server::start([("GET /health", Reply::recorded(503, ""))]).await;
    assert!(matches!(dialect(&server, None).healthy().await, Err(Fault::Failed(_))));
}

#[tokio::test]
async fn a_pause_leaves_the_cache_as_it_is() {
    let server = Server::start([]).await;
    let dialect = dialect(&server, None);
    let forgets = |operation| dialect.forgets(&operation);
    assert!(!forgets(Operation::Pause) && !forgets(Operation::Resume));
    assert!(forgets(Operation::ResetCache) && forgets(Operation::Sleep { level: 2 }));
}

#[tokio::test]
async fn sockets_of_the_engines_machine_are_found_in_its_flags() {
    let config = r#"{"publisher":"zmq","endpoint":"ipc:///x/events","topic":"kv"}"#;
    let info = json!({ "kv_events": null, "kv_events_config": config });
    let server = engine(server_info(info)).await;
    let described = dialect(&server, None).describe().await.unwrap();
    let [source] = &described.events[..] else { panic!("{:?}", described.events) };
    assert_eq!(
        (&*source.endpoint, &source.replay, &*source.topic),
        ("ipc:///x/events", &None, "kv")
    );
}

#[tokio::test]
async fn recorded_refusals_are_the_callers_choices() {
    let refusals = [
        ("main/26-generate-dp-rank-out-of-range", "routed_dp_rank=3 out of range [0, 1)"),
        ("dp/04-generate-rank9", "routed_dp_rank=9 out of range [0, 2)"),
        (
            "main/28-error-too-long",
            "The input (5000 tokens) is longer than the model's context length (2048 tokens).",
        ),
    ];
    for (path, message) in refusals {
        let reply = recorded(&format!("sglang-0.5.23/{path}.response.json"));
        let server = Server::start([(GENERATE, reply)]).await;
        let fault = dialect(&server, None).generate(ask(&[1])).await.err();
        assert_eq!(fault, Some(Fault::Invalid(message.into())), "{path}");
    }
    let body = |name: &str| fixture(&format!("sglang-0.5.23/{name}.response.json"));
    for (status, name) in
        [(400, "pd/14-no-bootstrap-prefill"), (500, "pd-prefill-died/03-generate-decode")]
    {
        let server = Server::start([(GENERATE, Reply::recorded(status, body(name)))]).await;
        let fault = dialect(&server, None).generate(ask(&[1])).await.err();
        match status {
            400 => assert!(matches!(fault, Some(Fault::Invalid(_))), "{fault:?}"),
            _ => assert!(matches!(fault, Some(Fault::Failed(_))), "{fault:?}"),
        }
    }
}

#[tokio::test]
async fn operations_are_the_recorded_ones() {
    let mut server = Server::start([
        ("POST /flush_cache", main("39-flush_cache.response.txt")),
        ("POST /pause_generation", main("37-pause.response.json")),
        ("POST /continue_generation", main("38-continue.response.json")),
    ])
    .await;
    let dialect = dialect(&server, None);
    let all = [Operation::ResetCache, Operation::Pause, Operation::Resume];
    for operation in &all {
        assert_eq!(dialect.operate(operation).await, Ok(()), "{operation:?}");
    }
    let mut bodies = Vec::new();
    while let Ok(seen) = server.seen.try_recv() {
        bodies.push(String::from_utf8(seen.body.to_vec()).unwrap());
    }
    assert_eq!(bodies, ["{}", r#"{"mode":"in_place"}"#, "{}"]);
    let fault = dialect.operate(&Operation::StartProfile).await;
    assert!(matches!(fault, Err(Fault::Unsupported(_))), "{fault:?}");
}

#[tokio::test]
async fn what_an_operation_refuses_is_told() {
    let failed = r#"{"success":false,"error_message":"LoRA is not enabled."}"#;
    let server = Server::start([
        ("POST /flush_cache", Reply::recorded(400, "Flush failed: requests are running.")),
        ("POST /load_lora_adapter", Reply::recorded(400, failed)),
    ])
    .await;
    let dialect = dialect(&server, None);
    let fault = dialect.operate(&Operation::ResetCache).await.unwrap_err();
    assert_eq!(fault, Fault::Overloaded("Flush failed: requests are running.".into()));
    let load = Operation::LoadAdapter { name: "a".into(), path: "p".into() };
    let fault = dialect.operate(&load).await.unwrap_err();
    assert_eq!(fault, Fault::Invalid("LoRA is not enabled.".into()));
}

#[tokio::test]
async fn a_server_that_answers_nothing_makes_vectors_or_classes() {
    for (architecture, expected) in [
        ("Qwen3ForCausalLM", Pooling::Vector),
        ("Qwen2ForSequenceClassification", Pooling::Classes),
    ] {
        let info = json!({"is_generation": false, "architectures": [architecture]}).to_string();
        let mut server = Server::start([
            ("GET /server_info", main("06-server_info.response.json")),
            ("GET /v1/models", main("04-models.response.json")),
            ("GET /model_info", Reply::ok(info)),
            ("POST /encode", Reply::ok(r#"{"embedding":[1.0,2.0],"meta_info":{}}"#)),
        ])
        .await;
        let dialect = dialect(&server, None);
        assert_eq!(dialect.describe().await.unwrap().pooling, Some(expected));
        let sampling = Sampling { pooled: true, ..Sampling::neutral() };
        let asked = Ask { sampling: Arc::new(sampling), ..ask(&[7]) };
        let (all, _) = read(dialect.generate(asked.clone()).await.unwrap()).await.unwrap();
        assert_eq!(all.pooled[0] == 1.0, expected == Pooling::Vector, "{:?}", all.pooled);
        let body = loop {
            let seen = server.seen.recv().await.unwrap();
            if seen.line == "POST /encode" {
                break serde_json::from_slice::<Value>(&seen.body).unwrap();
            }
        };
        assert_eq!(body, json!({"input_ids": [7], "rid": "request-1"}));
        // Its requests for vectors have no field that separates prefixes.
        let salted = Ask { cache_salt: Some("s".into()), ..asked };
        assert!(matches!(dialect.generate(salted).await.err(), Some(Fault::Invalid(_))));
        assert!(matches!(dialect.generate(ask(&[1])).await.err(), Some(Fault::Unsupported(_))));
    }
}
