use super::*;
use crate::grpc::tests::{bytes, frame};
use crate::{ParseOutcome, ParserSet, parser};

/// The body as it goes on; nothing where nobody can read it.
fn screened(path: &str, kind: Option<&str>, body: &[u8]) -> Result<Option<Vec<u8>>, ScreenError> {
    let described = BodyDescription { path, content_type: kind };
    match FieldRules::default().screen_body(described, &Bytes::copy_from_slice(body), None)? {
        ScreenOutcome::Read(screening) => Ok(Some(screening.edits().apply(body))),
        ScreenOutcome::Unread => Ok(None),
    }
}

#[test]
fn a_body_that_no_parser_read_is_screened_all_the_same() {
    let body = br#"{"query":"q","kv_transfer_params":{},"bootstrap_room":1,"documents":["a"]}"#;
    let left = br#"{"query":"q","documents":["a"]}"#;
    for kind in [None, Some("application/json; charset=utf-8"), Some("text/plain"), Some("")] {
        assert_eq!(screened("/rerank", kind, body), Ok(Some(left.to_vec())), "{kind:?}");
    }
    assert_eq!(screened("/rerank", None, b""), Ok(Some(Vec::new())));
}

#[test]
fn what_claims_to_be_json_is_json_or_refused() {
    // Python's reader takes all of these.
    let wide: Vec<u8> = "{\"rid\":{}}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for body in [&b"{\"temperature\":NaN}"[..], b"\xef\xbb\xbf{}", b"[{\"rid\":1}]", &wide] {
        for kind in [None, Some("application/json"), Some("Application/Vnd.Api+JSON")] {
            let error = screened("/rerank", kind, body).expect_err("it is no object");
            assert!(matches!(error, ScreenError::Json(_)), "{error}");
        }
        assert_eq!(screened("/v1/audio", Some("audio/wav"), body), Ok(None));
    }
    assert_eq!(screened("/any", None, b"neither"), Ok(None));
}

#[test]
fn json_within_a_message_keeps_its_length() {
    let json = br#"{"model":"m","rid":"1","messages":[{"role":"user"}],"bootstrap_room":7}"#;
    let body = frame(&bytes(2, &bytes(2, json)));
    let path = "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions";
    let parsers = ParserSet::new(vec![parser("vertexai-parser").expect("there is one")]);
    let parsed = parsers.parse(path, &body).expect("it is a request");
    let ParseOutcome::Request(parsed) = parsed else { panic!("it is read") };
    let described = BodyDescription { path, content_type: Some("application/grpc") };
    let screened =
        FieldRules::default().screen_body(described, &body.clone().into(), Some(&parsed));
    let Ok(ScreenOutcome::Read(screening)) = screened else { panic!("it is screened") };
    let left = screening.edits().apply(&body);
    assert_eq!((screening.steering(), left.len()), (2, body.len()));
    let text = String::from_utf8_lossy(&left).replace(' ', "");
    let kept = r#"{"model":"m","messages":[{"role":"user"}]}"#;
    assert!(text.ends_with(kept), "{text}");
    assert_eq!(left[..10], body[..10], "all lengths stay");
}

#[test]
fn calls_of_unknown_methods_are_unread() {
    let call = frame(b"\xff\xff");
    let path = "/grpc.health.v1.Health/Check";
    assert!(!BodyDescription { path, content_type: Some("application/grpc") }.is_readable());
    assert!(BodyDescription { path: "/v1/completions", content_type: None }.is_readable());
    assert_eq!(screened(path, Some("application/grpc"), &call), Ok(None));
    assert_eq!(screened(path, Some("application/grpc+proto"), &call), Ok(None));
}
