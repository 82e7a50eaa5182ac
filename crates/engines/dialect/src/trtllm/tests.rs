//! The dialect against answers written from the documented schemas, over real connections.

use crate::testkit::{Reply, Server, ask, fixture, raw, read, recorded, shared};
use crate::{
    ApiKey, Ask, Connector, Dialect, Fault, Finish, FirstToken, Hand, Kind, Manner, Operation,
    Options, Role, connect,
};
use serde_json::{Value, json};
use std::sync::Arc;

const COMPLETIONS: &str = "POST /v1/completions";
const SIGNATURE: &str = "x-trtllm-disagg-auth";

fn by_hand(name: &str) -> Reply {
    recorded(&format!("trtllm-1.2-by-hand/{name}"))
}

fn dialect(server: &Server, role: Option<Role>) -> Arc<dyn Dialect> {
    let connector = role.map(|role| Connector { name: "UCX".into(), role, bootstrap: None });
    let (url, handover_key) = (server.url.clone(), Some(ApiKey("hush".into())));
    let options = Options { url, connector, handover_key, together: true, ..Options::default() };
    connect(Kind::Trtllm, options).unwrap()
}

#[tokio::test]
async fn an_engine_is_described_as_far_as_it_tells() {
    let server = Server::start([
        ("GET /version", by_hand("version.response.json")),
        ("GET /v1/models", by_hand("models.response.json")),
        ("GET /health", Reply::ok("")),
        (
            "GET /prometheus/metrics",
            Reply::ok(fixture("trtllm-1.2-by-hand/prometheus-metrics.txt")),
        ),
    ])
    .await;
    let dialect = dialect(&server, Some(Role::Prefill));
    assert_eq!(dialect.healthy().await, Ok(()));
    let described = dialect.describe().await.unwrap();
    assert_eq!(described.version, "tensorrt-llm 1.2.1");
    assert_eq!((&*described.model, described.ranks), ("tiny", 1));
    assert_eq!((described.block_size, described.total_blocks), (Some(32), Some(4096)));
    assert!(described.events.is_empty());
    let handover = described.handover.expect("it prefills");
    let decodes = super::tests::dialect(&server, Some(Role::Decode));
    let manner = decodes.pair(&shared(1, 0), &handover);
    let in_turn = matches!(manner, Ok(Manner::InTurn { prefill: None, first: FirstToken::Passed }));
    assert!(in_turn, "{manner:?}");
    let manner = dialect.pair(&shared(1, 0), &handover);
    assert!(matches!(manner, Err(Fault::Unsupported(_))), "{manner:?}");
}

/// What a server describes whose hand-overs may have these fields.
fn described(fields: &[&str]) -> Reply {
    let fields: Value = fields.iter().map(|field| ((*field).to_owned(), json!({}))).collect();
    let schemas = json!({"DisaggregatedParams": {"properties": fields}});
    Reply::ok(json!({"components": {"schemas": schemas}}).to_string())
}

/// A server that does `completion` and describes such fields, and what it says where it is found.
async fn paired(completion: Reply, fields: &[&str], info: Option<Reply>) -> Server {
    let mut replies = vec![
        ("GET /version", by_hand("version.response.json")),
        ("GET /v1/models", by_hand("models.response.json")),
        ("GET /openapi.json", described(fields)),
        (COMPLETIONS, completion),
    ];
    replies.extend(info.map(|info| ("GET /server_info", info)));
    Server::start(replies).await
}

fn found(endpoint: Value) -> Option<Reply> {
    let params = json!({"ctx_dp_rank": 0, "ctx_info_endpoint": endpoint});
    Some(Reply::ok(json!({ "disaggregated_params": params }).to_string()))
}

const BOTH: [&str; 2] = ["schedule_style", "ctx_info_endpoint"];

/// What the next request for tokens says of the pair, and its signature.
async fn asked(server: &mut Server) -> (String, Option<String>) {
    loop {
        let seen = server.seen.recv().await.unwrap();
        if seen.line == COMPLETIONS {
            let body = String::from_utf8(seen.body.to_vec()).unwrap();
            let (_, params) = body.split_once(r#""disaggregated_params":"#).unwrap();
            let params = format!("{}}}", params.split_once('}').unwrap().0);
            let signature = seen.headers.get(SIGNATURE);
            return (params, signature.map(|value| value.to_str().unwrap().to_owned()));
        }
    }
}

#[tokio::test]
async fn both_are_asked_at_once_and_told_of_each_other() {
    let context = by_hand("context.response.json");
    let mut there =
        paired(context, &["schedule_style"], found(json!(["tcp://10.0.0.1:5000"]))).await;
    let generation = by_hand("completion-stream.response.sse");
    let mut here = paired(generation, &BOTH, None).await;
    let prefills = dialect(&there, Some(Role::Prefill));
    let decodes = dialect(&here, Some(Role::Decode));
    let handover = prefills.describe().await.unwrap().handover.unwrap();
    assert!(decodes.describe().await.unwrap().handover.is_none());
    let manner = decodes.pair(&shared(7, 0), &handover).unwrap();
    let Manner::Together { prefill, decode, first, prompt_first: false } = manner else {
        panic!("{manner:?}")
    };
    assert_eq!(first, FirstToken::PassedUnlessLast);

    let request = Ask { hand: Hand::Prefill(Some(prefill)), ..ask(&[1, 2]) };
    let (first, _) = read(prefills.generate(request).await.unwrap()).await.unwrap();
    assert_eq!((first.tokens, first.finish), (vec![1072], Some(Finish::Length)));
    assert!(first.handover.is_none());
    let request = Ask { hand: Hand::Decode(decode), ..ask(&[1, 2]) };
    let (all, _) = read(decodes.generate(request).await.unwrap()).await.unwrap();
    assert_eq!((all.tokens[0], all.finish), (1072, Some(Finish::Stop(Some(7)))));

    let (params, signature) = asked(&mut there).await;
    assert_eq!(signature, None);
    let value: Value = serde_json::from_str(&params).unwrap();
    let id = value["disagg_request_id"].as_u64().unwrap();
    assert!((1 << 62..1 << 63).contains(&id), "{id}");
    let kind = r#""request_type":"context_only""#;
    assert_eq!(params, format!(r#"{{{kind},"disagg_request_id":{id},"schedule_style":1}}"#));
    let (params, signature) = asked(&mut here).await;
    let numbers = format!(r#""disagg_request_id":{id},"ctx_request_id":{id},"schedule_style":1"#);
    let place = r#""ctx_info_endpoint":"tcp://10.0.0.1:5000","ctx_dp_rank":0"#;
    let kind = r#""request_type":"generation_only""#;
    assert_eq!(params, format!("{{{kind},{numbers},{place}}}"));
    // By Python's hmac, of {"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":null}.
    let signed = "sha256=4fb177752f91fab751270b49e883857a68aa6203aa41760f178ca41b6e0a85b5";
    assert_eq!(signature.as_deref(), Some(signed));

    let Manner::Together { prefill, .. } = decodes.pair(&shared(8, 0), &handover).unwrap() else {
        panic!("in turn")
    };
    let expected = format!(r#"{{"disagg_request_id":{},"schedule_style":1}}"#, id + 1);
    assert_eq!(prefill.get(), expected);
}

#[tokio::test]
async fn servers_that_cannot_be_asked_at_once_are_asked_in_turn() {
    let endpoint = || found(json!("tcp://10.0.0.1:5000"));
    let broken = || Some(Reply::recorded(500, "no"));
    let leases = json!({"ctx_info_endpoint": "e", "context_transceiver_lifecycle": {"v": 1}});
    let leases = Reply::ok(json!({ "disaggregated_params": leases }).to_string());
    let style = &BOTH[..1];
    type Fields<'a> = &'a [&'a str];
    let cases: [(Fields<'_>, Option<Reply>, Fields<'_>, bool); 9] = [
        (&BOTH, endpoint(), &BOTH, true),
        (style, endpoint(), &BOTH, true),
        (&[], endpoint(), &BOTH, false),
        (&BOTH, endpoint(), style, false),
        (&BOTH, endpoint(), &BOTH[1..], false),
        (&BOTH, None, &BOTH, false),
        (&BOTH, broken(), &BOTH, false),
        (&BOTH, found(json!(null)), &BOTH, false),
        (&BOTH, Some(leases), &BOTH, false),
    ];
    for (case, (theirs, info, ours, expected)) in cases.into_iter().enumerate() {
        let there = paired(Reply::Silent, theirs, info).await;
        let here = paired(Reply::Silent, ours, None).await;
        let handover = dialect(&there, Some(Role::Prefill)).describe().await.unwrap().handover;
        let decodes = dialect(&here, Some(Role::Decode));
        let pair =
            |together: &dyn Dialect| together.pair(&shared(7, 0), handover.as_ref().unwrap());
        let in_turn = Manner::InTurn { prefill: None, first: FirstToken::Passed };
        let manner = pair(&*decodes).unwrap();
        assert_eq!(format!("{manner:?}"), format!("{in_turn:?}"), "not described yet");
        decodes.describe().await.unwrap();
        let manner = pair(&*decodes).unwrap();
        assert_eq!(matches!(manner, Manner::Together { .. }), expected, "{case}: {manner:?}");
    }
}

#[tokio::test]
async fn a_half_that_is_dropped_is_hung_up_on() {
    let mut server = paired(Reply::Silent, &BOTH, None).await;
    let dialect = dialect(&server, Some(Role::Both));
    let context = r#"{"disagg_request_id":4611686018427387911,"schedule_style":1}"#;
    let generation = r#"{"ctx_request_id":4611686018427387911,"ctx_info_endpoint":"e"}"#;
    for hand in [Hand::Prefill(Some(raw(context))), Hand::Decode(raw(generation))] {
        let half = dialect.generate(Ask { hand, ..ask(&[1]) });
        let seen = tokio::select! {
            _ = half => panic!("it says nothing"),
            asked = asked(&mut server) => asked,
        };
        assert!(seen.0.contains("4611686018427387911"));
        server.gone.recv().await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_refuses_a_half_says_why() {
    let why = r#"{"object":"error","message":"Invalid internal disaggregated request authentication",
        "type":"BadRequestError","param":null,"code":400}"#;
    let server = paired(Reply::recorded(400, why), &BOTH, None).await;
    let told = raw(r#"{"ctx_request_id":1,"ctx_info_endpoint":"e"}"#);
    let asked = Ask { hand: Hand::Decode(told), ..ask(&[1]) };
    let fault = dialect(&server, Some(Role::Decode)).generate(asked).await.err();
    let Some(Fault::Invalid(why)) = fault else { panic!("{fault:?}") };
    assert!(why.contains("request authentication"), "{why}");
}

#[tokio::test]
async fn memory_is_given_back_and_taken_again_and_weights_are_taken_as_they_are_told() {
    let success = || by_hand("operation.response.json");
    let mut server = Server::start([
        ("POST /release_memory", success()),
        ("POST /resume_memory", success()),
        ("POST /update_weights", success()),
    ])
    .await;
    let dialect = dialect(&server, None);
    let weights = r#"{"weights":{"GPU-1":"opaque"}}"#;
    let update = Operation::UpdateWeights { request: weights.into() };
    for operation in [Operation::Sleep { level: 1 }, Operation::Wake, update] {
        assert_eq!(dialect.operate(&operation).await, Ok(()), "{operation:?}");
        assert_eq!(dialect.forgets(&operation), operation != Operation::Wake, "{operation:?}");
    }
    for expected in [("release_memory", "{}"), ("resume_memory", "{}"), ("update_weights", weights)]
    {
        let seen = server.seen.recv().await.unwrap();
        let body = std::str::from_utf8(&seen.body).unwrap();
        assert_eq!((seen.line, body), (format!("POST /{}", expected.0), expected.1));
    }
}

#[tokio::test]
async fn what_a_server_does_not_offer_is_not_done() {
    let server = Server::start([]).await;
    let dialect = dialect(&server, None);
    let sleeps = [0, 1].map(|level| Operation::Sleep { level });
    for operation in sleeps.into_iter().chain([Operation::ResetCache, Operation::Pause]) {
        let fault = dialect.operate(&operation).await;
        assert!(matches!(fault, Err(Fault::Unsupported(_))), "{operation:?}: {fault:?}");
    }
}

#[tokio::test]
async fn a_priority_goes_to_servers_that_describe_one() {
    let api = r#"{"components":{"schemas":{"CompletionRequest":{"properties":{"priority":{}}}}}}"#;
    for (api, told) in [(Some(api), true), (Some("{}"), false), (None, false)] {
        let mut replies = vec![
            ("GET /version", by_hand("version.response.json")),
            ("GET /v1/models", by_hand("models.response.json")),
            (COMPLETIONS, by_hand("completion-stream.response.sse")),
        ];
        replies.extend(api.map(|api| ("GET /openapi.json", Reply::ok(api))));
        let mut server = Server::start(replies).await;
        let dialect = dialect(&server, None);
        dialect.describe().await.unwrap();
        let answer = dialect.generate(Ask { priority: 9, ..ask(&[1]) }).await.unwrap();
        read(answer).await.unwrap();
        let asked = loop {
            let seen = server.seen.recv().await.unwrap();
            if seen.line == COMPLETIONS {
                break String::from_utf8(seen.body.to_vec()).unwrap();
            }
        };
        assert_eq!(asked.contains("\"priority\":0.5"), told, "{asked}");
    }
}

#[tokio::test]
async fn context_first_then_generation() {
    let mut server = Server::start([
        ("GET /v1/models", by_hand("models.response.json")),
        (COMPLETIONS, by_hand("context.response.json")),
    ])
    .await;
    let asked = Ask { hand: Hand::Prefill(None), ..ask(&[1, 2]) };
    let answer = dialect(&server, Some(Role::Both)).generate(asked).await.unwrap();
    let (first, _) = read(answer).await.unwrap();
    let handover = first.handover.expect("a context server hands over");
    // The name of the model is asked for once, and is in the request.
    assert_eq!(server.seen.recv().await.unwrap().line, "GET /v1/models");
    let seen = server.seen.recv().await.unwrap();
    assert!(seen.body.starts_with(br#"{"model":"tiny","prompt":[1,2],"#));
    assert_eq!(seen.headers.get(SIGNATURE), None);

    let mut server = Server::start([
        ("GET /v1/models", by_hand("models.response.json")),
        (COMPLETIONS, by_hand("completion-stream.response.sse")),
    ])
    .await;
    let asked = Ask { hand: Hand::Decode(handover), ..ask(&[1, 2]) };
    let answer = dialect(&server, Some(Role::Decode)).generate(asked).await.unwrap();
    let (all, _) = read(answer).await.unwrap();
    assert_eq!(all.tokens, [1072, 542, 3209, 7]);
    assert_eq!(all.finish, Some(Finish::Stop(Some(7))));
    server.seen.recv().await.unwrap();
    let seen = server.seen.recv().await.unwrap();
    // By Python's hmac, of {"ctx_info_endpoint":null,"encoded_opaque_state":"c3RhdGU="}.
    let signed = "sha256=79dc0c2672c3b0fb1dbcc2598b8176dc493b33dc7878a31d639dfa9b8d310a6a";
    assert_eq!(seen.headers.get(SIGNATURE).unwrap(), signed);
}

#[tokio::test]
async fn roles_that_are_not_configured_are_not_asked_for() {
    let server = Server::start([]).await;
    let fault = |role, hand| {
        let dialect = dialect(&server, role);
        async move { dialect.generate(Ask { hand, ..ask(&[1]) }).await.err() }
    };
    let told = || raw(r#"{"ctx_request_id":1}"#);
    let unsupported = fault(None, Hand::Prefill(None)).await;
    assert!(matches!(unsupported, Some(Fault::Unsupported(_))));
    let unsupported = fault(Some(Role::Decode), Hand::Prefill(Some(told()))).await;
    assert!(matches!(unsupported, Some(Fault::Unsupported(_))));
    let unsupported = fault(Some(Role::Prefill), Hand::Decode(told())).await;
    assert!(matches!(unsupported, Some(Fault::Unsupported(_))));
}
