//! Fields of bodies pass or are removed.

use super::tests::{Bench, Engine, SCORERS, bench, counted, head};
use super::*;
use crate::exchange::Watch;
use stator_api::UnknownFields;

/// A sound request that hands KV over, one whose field changes nothing, and what goes on of it.
const HANDS_OVER: &str = r#"{"model":"m","kv_transfer_params":{"remote_host":"h"},"prompt":"p"}"#;
const NAMED: &str = r#"{"model":"m","rid":"a","prompt":"p"}"#;
const HARMLESS: &str = r#"{"model":"m","prompt":"p"}"#;
/// A harmless request but for a field that no API has.
const MISSPELT: &str = r#"{"model":"m","promt":"","prompt":"p"}"#;

/// The field at fault, as a client of OpenAI's API reads it.
fn fault(refusal: Option<Refusal>) -> (u16, String) {
    let refusal = refusal.expect("it is refused");
    let body = refusal.body.expect("it is about a field");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("it is JSON");
    let error = &body["error"];
    assert_eq!(
        (&error["message"], &error["type"]),
        (&refusal.message.into(), &"invalid_request_error".into())
    );
    (refusal.status, error["param"].as_str().expect("a field").to_owned())
}

/// The names that an answer has of the fields that changed nothing.
fn told(watch: &mut impl Watch) -> Option<String> {
    let headers = watch.headers(200, &Default::default(), None);
    headers.into_iter().find(|(name, _)| *name == header::IGNORED).map(|(_, names)| names)
}

#[tokio::test]
async fn a_field_that_steers_is_refused_by_its_name_whenever_its_body_comes() {
    let mut bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let late = RequestHead { body: RequestBody::Late, answer: AnswerBody::Hidden, ..head(&[]) };
    let check = async |bench: &Bench, body: &'static str, field: &str| {
        let expected = (400, field.to_owned());
        assert_eq!(fault(bench.ask(head(&[]), body).await.err()), expected);
        let mut routed = bench.ask(late.clone(), "").await.expect("it is routed");
        assert_eq!(fault(routed.watch.amend(vec![body.into()]).err()), expected);
    };
    check(&bench, HANDS_OVER, "kv_transfer_params").await;
    check(&bench, r#"{"model":"m","prompt":"p","bootstrap_room":0}"#, "bootstrap_room").await;
    check(&bench, MISSPELT, "promt").await;
    let settings = DirectorSettings {
        unknown_fields: UnknownFields::Ignore,
        ..(*bench.director.settings).clone()
    };
    bench.director.settings = Arc::new(settings);
    check(&bench, HANDS_OVER, "kv_transfer_params").await;
    let mut routed = bench.ask(head(&[]), MISSPELT).await.expect("it is routed");
    assert_eq!(routed.body.concat(), HARMLESS.as_bytes());
    assert_eq!(told(&mut routed.watch).as_deref(), Some("promt"));
}

#[tokio::test]
async fn headers_that_change_nothing_are_named_beside_fields() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let sent = [("x-dynamo-meta-team", "a"), ("x-dynamo-request-priority", "9")];
    let names = "x-dynamo-meta-team, x-dynamo-request-priority";
    let mut routed = bench.ask(head(&sent), HARMLESS).await.expect("it is routed");
    assert_eq!(told(&mut routed.watch).as_deref(), Some(names));
    let late = RequestHead { body: RequestBody::Late, answer: AnswerBody::Hidden, ..head(&sent) };
    let mut routed = bench.ask(late, "").await.expect("it is routed");
    routed.watch.amend(vec![NAMED.into()]).expect("it is sound");
    let all = told(&mut routed.watch).expect("names");
    assert_eq!(all, format!("rid, {names}"));
}

#[tokio::test]
async fn a_compressed_body_is_refused_before_it_is_read() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let coded = |coding: &'static str, body: RequestBody| RequestHead {
        headers: [("content-encoding", coding)].into_iter().collect(),
        answer: AnswerBody::Hidden,
        body,
        ..head(&[])
    };
    let status = async |head: RequestHead, body: &str| {
        bench.ask(head, body).await.err().map(|refusal| refusal.status)
    };
    assert_eq!(status(coded("gzip", RequestBody::Whole), "\u{1f}").await, Some(415));
    assert_eq!(status(coded("zstd", RequestBody::Late), "").await, Some(415));
    assert_eq!(status(coded("identity", RequestBody::Whole), HARMLESS).await, None);
    assert_eq!(status(coded("gzip", RequestBody::Whole), "").await, None, "there is no body");
    assert_eq!(status(coded("gzip", RequestBody::Unseen), "").await, None, "a sidecar reads it");
}

#[tokio::test]
async fn a_refused_field_of_a_message_is_told_as_anthropic_does() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let head = RequestHead { path: "/v1/messages?beta=true".to_owned(), ..head(&[]) };
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"bootstrap_host":"h"}"#;
    let refusal = bench.ask(head, body).await.err().expect("it is refused");
    let body: serde_json::Value = serde_json::from_slice(&refusal.body.expect("a body")).unwrap();
    assert_eq!(
        (&body["type"], &body["error"]["type"]),
        (&"error".into(), &"invalid_request_error".into())
    );
}

#[tokio::test]
async fn a_body_that_comes_after_the_decision_is_screened() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let late = |kind: &'static str| RequestHead {
        body: RequestBody::Late,
        answer: AnswerBody::Hidden,
        headers: [("content-type", kind)].into_iter().collect(),
        ..head(&[])
    };
    let mut routed = bench.ask(late("application/json"), "").await.expect("it is routed");
    let body = routed.watch.amend(vec![NAMED.into()]).expect("it is sound");
    assert_eq!(body.concat(), HARMLESS.as_bytes());
    assert_eq!(told(&mut routed.watch).as_deref(), Some("rid"));
    let removed = "stator_epp_fields_removed_total{kind=\"steering\"}";
    assert_eq!(counted(&bench, removed), Some(1.0));

    let mut routed = bench.ask(late("application/json"), "").await.expect("it is routed");
    let refusal = routed.watch.amend(vec!["{\"rid\":NaN}".into()]).expect_err("it is no JSON");
    assert_eq!(refusal.status, 400);
}

/// The salt of the tenant `blue`, computed apart.
const BLUE: &str = "5d6e2809f8d9cf6fe3a0f9af5b53765e";

#[tokio::test]
async fn a_tenant_becomes_the_salt_of_its_prompts_whenever_their_bodies_come() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let salted = format!(r#"{{"model":"m","prompt":"p","cache_salt":"{BLUE}"}}"#);
    let named = head(&[("x-tenant-id", " blue ")]);
    let routed = bench.ask(named.clone(), HARMLESS).await.expect("it is routed");
    assert_eq!(routed.body.concat(), salted.as_bytes());
    let late = RequestHead { body: RequestBody::Late, answer: AnswerBody::Hidden, ..named };
    let mut routed = bench.ask(late, "").await.expect("it is routed");
    let body = routed.watch.amend(vec![HARMLESS.into()]).expect("it is sound");
    assert_eq!(body.concat(), salted.as_bytes());
    let twice = head(&[("x-tenant-id", "a"), ("x-tenant-id", "b")]);
    let refusal = bench.ask(twice, HARMLESS).await.err().expect("it is refused");
    assert_eq!(refusal.status, 400);
}

#[tokio::test]
async fn the_same_prompt_of_two_tenants_is_two_prefixes() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let source = RewriteSource { view: &bench.pool.view(), chance: 0 };
    let named = |tenant: &'static str, salt: &str| {
        let prompt = "It was a dark and stormy night. ".repeat(20);
        let body = format!(r#"{{"model":"m","prompt":"{prompt}"{salt}}}"#);
        let head = head(&[("x-tenant-id", tenant)]);
        let request = ParsedRequest::read(&head, body.into(), &bench.director.settings, source);
        bench.director.measure(&request.expect("it is sound"), None).sequence
    };
    let [none, blue, red] = ["", "blue", "red"].map(|tenant| named(tenant, ""));
    assert!(!none.is_empty());
    assert!(none != blue && blue != red && red != none);
    assert_eq!(named("", &format!(r#","cache_salt":"{BLUE}""#)), blue, "as endpoints name it");
}

#[tokio::test]
async fn a_client_that_names_its_worker_is_refused_whenever_its_body_comes() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let named = r#"{"model":"m","prompt":"p","nvext":{"dp_rank":0}}"#;
    let refusal = bench.ask(head(&[]), named).await.err().expect("it is refused");
    assert_eq!(refusal.status, 400);
    assert!(refusal.message.contains("nvext.dp_rank"), "{}", refusal.message);
    let late = RequestHead { body: RequestBody::Late, answer: AnswerBody::Hidden, ..head(&[]) };
    let mut routed = bench.ask(late, "").await.expect("it is routed");
    let refusal = routed.watch.amend(vec![named.into()]).expect_err("it is refused");
    assert_eq!(refusal.status, 400);
}

#[tokio::test]
async fn bodies_that_no_parser_reads_are_screened_or_counted() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let head = |path: &str, kind: &'static str| RequestHead {
        path: path.to_owned(),
        headers: [("content-type", kind)].into_iter().collect(),
        ..head(&[])
    };
    let routed = bench.ask(head("/v1/moderations", "application/json"), NAMED).await;
    assert_eq!(routed.expect("it is routed").body.concat(), HARMLESS.as_bytes());
    let refused = bench.ask(head("/v1/moderations", "application/json"), HANDS_OVER).await;
    assert_eq!(fault(refused.err()), (400, "kv_transfer_params".to_owned()));
    let refused = bench.ask(head("/v1/moderations", "application/json"), "[1]").await;
    assert_eq!(refused.err().map(|refusal| refusal.status), Some(400));
    let routed =
        bench.ask(head("/v1/moderations", "audio/wav"), "RIFF").await.expect("it is routed");
    assert_eq!(routed.body.concat(), b"RIFF");
    let unseen =
        RequestHead { body: RequestBody::Unseen, ..head("/v1/moderations", "application/json") };
    bench.ask(unseen, "").await.expect("it is routed");
    for body in ["unread", "unseen"] {
        let series = format!("stator_epp_bodies_unscreened_total{{body=\"{body}\"}}");
        assert_eq!(counted(&bench, &series), Some(1.0), "{body}");
    }
}

#[tokio::test]
async fn an_operator_may_refuse_what_is_not_screened() {
    let mut bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let settings =
        DirectorSettings { refuse_unscreened: true, ..(*bench.director.settings).clone() };
    bench.director.settings = Arc::new(settings);
    let head = |kind: &'static str, body: RequestBody| RequestHead {
        path: "/v1/moderations".to_owned(),
        headers: [("content-type", kind)].into_iter().collect(),
        body,
        ..head(&[])
    };
    let status = async |head: RequestHead, body: &str| {
        bench.ask(head, body).await.err().map(|refusal| refusal.status)
    };
    let json = "application/json";
    assert_eq!(status(head(json, RequestBody::Whole), "{}").await, None);
    assert_eq!(status(head(json, RequestBody::Late), "").await, None);
    assert_eq!(status(head(json, RequestBody::Unseen), "").await, Some(403));
    assert_eq!(status(head("audio/wav", RequestBody::Whole), "RIFF").await, Some(415));
}

#[tokio::test]
async fn forms_lose_the_fields_that_change_nothing_and_may_not_steer() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let kind = "multipart/form-data; boundary=b";
    let part =
        |name: &str| format!("--b\r\nContent-Disposition: form-data; name={name}\r\n\r\n1\r\n");
    let form = part("rid") + &part("model") + "--b--\r\n";
    let steers = part("model") + &part("bootstrap_room") + "--b--\r\n";
    let left = part("model") + "--b--\r\n";
    for body in [RequestBody::Whole, RequestBody::Late] {
        let head = RequestHead {
            path: "/v1/audio/transcriptions".to_owned(),
            headers: [("content-type", kind)].into_iter().collect(),
            answer: AnswerBody::Hidden,
            body,
            ..head(&[])
        };
        let whole = if body == RequestBody::Whole { &*form } else { "" };
        if body == RequestBody::Whole {
            let refused = bench.ask(head.clone(), &steers).await;
            assert_eq!(fault(refused.err()), (400, "bootstrap_room".to_owned()));
        }
        let mut routed = bench.ask(head, whole).await.expect("it is routed");
        let sent = match body {
            RequestBody::Whole => routed.body,
            _ => routed.watch.amend(vec![form.clone().into()]).expect("it is sound"),
        };
        assert_eq!(String::from_utf8_lossy(&sent.concat()), left);
    }
}

#[test]
fn a_session_is_named_by_a_header_or_by_the_body() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let source = RewriteSource { view: &bench.pool.view(), chance: 0 };
    let session = |headers: &[(&'static str, &'static str)], members: &str| {
        let body = format!(r#"{{"model":"m","prompt":"p"{members}}}"#);
        let head = head(headers);
        let request = ParsedRequest::read(&head, body.into(), &bench.director.settings, source);
        request.expect("it is sound").session
    };
    let by_header = session(&[("x-session-id", "a")], "");
    assert!(by_header.is_some());
    assert_eq!(session(&[], r#","prompt_cache_key":"a""#), by_header);
    assert_eq!(session(&[], r#","previous_response_id":"a""#), by_header);
    assert_eq!(session(&[("x-session-id", "a")], r#","prompt_cache_key":"b""#), by_header);
    assert_ne!(session(&[("x-tenant-id", "t")], r#","prompt_cache_key":"a""#), by_header);
    assert_eq!(session(&[], ""), None);
}
