//! The dialect against answers written from the documented schemas, over real connections.

use crate::testkit::{Reply, Server, ask, fixture, read, recorded};
use crate::{
    ApiKey, Ask, Connector, Dialect, Fault, Finish, First, Hand, Kind, Manner, Operation, Options,
    Role, connect,
};
use std::sync::Arc;

const COMPLETIONS: &str = "POST /v1/completions";
const SIGNATURE: &str = "x-trtllm-disagg-auth";

fn by_hand(name: &str) -> Reply {
    recorded(&format!("trtllm-1.2-by-hand/{name}"))
}

fn dialect(server: &Server, role: Option<Role>) -> Arc<dyn Dialect> {
    let connector = role.map(|role| Connector { name: "UCX".into(), role, bootstrap: None });
    let (url, handover_key) = (server.url.clone(), Some(ApiKey("hush".into())));
    let options = Options { url, connector, handover_key, ..Options::default() };
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
    assert!(matches!(decodes.pair(1, &handover, 0), Ok(Manner::InTurn(First::Passed))));
    assert!(matches!(dialect.pair(1, &handover, 0), Err(Fault::Unsupported(_))));
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
    let told = || crate::testkit::raw(r#"{"ctx_request_id":1}"#);
    let unsupported = fault(None, Hand::Prefill(None)).await;
    assert!(matches!(unsupported, Some(Fault::Unsupported(_))));
    let unsupported = fault(Some(Role::Prefill), Hand::Decode(told())).await;
    assert!(matches!(unsupported, Some(Fault::Unsupported(_))));
    let invalid = fault(Some(Role::Both), Hand::Prefill(Some(told()))).await;
    assert!(matches!(invalid, Some(Fault::Invalid(_))));
}
