use super::*;
use crate::api::Api;
use crate::fields::Field;
use crate::grpc::tests::{bytes, frame, number, packed};
use proptest::prelude::*;

fn all() -> ParserSet {
    let names = ["openai", "anthropic", "vllmhttp", "sglanghttp", "vllmgrpc", "vertexai"];
    let parsers = names.iter().map(|name| parser(&format!("{name}-parser")).expect("it exists"));
    ParserSet::new(parsers.collect())
}

#[track_caller]
fn request(path: &str, body: &[u8]) -> ParsedBody {
    match all().parse(path, body) {
        Ok(ParseOutcome::Request(request)) => request,
        other => panic!("no request on {path}: {other:?}"),
    }
}

#[track_caller]
fn check_api(path: &str, body: &str, api: Api) {
    let request = request(path, body.as_bytes());
    assert_eq!((request.api, &*request.model), (Some(api), "m"));
}

#[track_caller]
fn check_error(path: &str, body: &[u8], text: &str) {
    let error = all().parse(path, body).expect_err("the request is wrong");
    assert_eq!(error.to_string(), text);
}

#[test]
fn paths_lead_to_their_apis() {
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
    let prompt = r#"{"model":"m","prompt":"a"}"#;
    let input = r#"{"model":"m","input":"a"}"#;
    check_api("/v1/chat/completions?x=/v1/messages", chat, Api::ChatCompletions);
    check_api("/v1/projects/p/chat/completions/", chat, Api::ChatCompletions);
    check_api("/v1/chat/completions/render", chat, Api::ChatCompletions);
    check_api("/v1/completions", prompt, Api::Completions);
    check_api("/v1/completions/render", prompt, Api::Completions);
    check_api("", prompt, Api::Completions);
    check_api("/elsewhere", prompt, Api::Completions);
    check_api("/v1/responses", input, Api::Responses);
    check_api("/v1/conversations", r#"{"model":"m","items":[1]}"#, Api::Conversations);
    check_api("/v1/embeddings", input, Api::Embeddings);
    let texts = r#"{"model":"m","query":"q","documents":["a"]}"#;
    for path in ["/v1/rerank", "/rerank", "/v2/rerank", "/gateway/v1/rerank"] {
        check_api(path, texts, Api::Rerank);
    }
    check_api("/score", r#"{"model":"m","text_1":"q","text_2":"a"}"#, Api::Score);
    check_api("/v1/classify", input, Api::Classify);
    check_api("/pooling", chat, Api::Pooling);
    check_api("/v1/images/generations", prompt, Api::Images);
    check_api("/v1/audio/speech", input, Api::Speech);
    check_api("/v1/messages", chat, Api::Messages);
    check_api("/v1/messages/count_tokens", r#"{"model":"m"}"#, Api::CountTokens);
    check_api("/inference/v1/generate", r#"{"model":"m","token_ids":[1]}"#, Api::VllmGenerate);
    check_api("/generate", r#"{"model":"m","text":"a"}"#, Api::SglangGenerate);
}

#[test]
fn the_longest_ending_decides_and_the_first_among_equals() {
    let check = |set: &ParserSet, path: &str, name: &str| {
        assert_eq!(set.select(path).name(), name, "{path}");
    };
    check(&all(), "/inference/v1/generate", "vllmhttp-parser");
    check(&all(), "/v1/chat/completions", "openai-parser");
    check(&ParserSet::default(), "/v1/completions?a=b", "openai-parser");
    check(&ParserSet::default(), "/v1/messages", "anthropic-parser");
    check(&ParserSet::default(), "/v1/rerank", "openai-parser");
    check(&ParserSet::default(), "/v1/moderations", "passthrough-parser");
    let vllm = ParserSet::new(vec![parser("vllmhttp-parser").expect("it exists")]);
    check(&vllm, "/v1/moderations", "vllmhttp-parser");
    let unknown = parser("x").err().expect("there is no such parser");
    assert_eq!(unknown.to_string(), "unknown parser \"x\"");
}

#[test]
fn errors_have_the_texts_that_clients_know() {
    let model_first = br#"{"prompt":"hello world"}"#;
    check_error("/v1/completions", model_first, "model not found in request body");
    check_error("", br#"{"prompt":"a","model":""}"#, "model not found in request body");
    check_error("", br#"{"prompt":"a","model":5}"#, "model not found in request body");
    check_error(
        "",
        b"no healthy upstream",
        "error unmarshaling request bodyMap: invalid JSON at byte 0: expected an object",
    );
    let chat = "invalid chat completions request: must have valid messages field";
    check_error("/v1/chat/completions", br#"{"model":"m"}"#, chat);
    check_error("/v1/chat/completions", br#"{"model":"m","messages":[ ]}"#, chat);
    check_error("/v1/chat/completions", br#"{"model":"m","messages":["a"]}"#, chat);
    let prompt = "invalid completions request: must have prompt field";
    for body in [&b"{}"[..], br#"{"prompt":""}"#, br#"{"prompt":[]}"#, br#"{"prompt":1}"#] {
        check_error("/v1/completions", body, prompt);
    }
    let messages = "invalid messages request: must have at least one message";
    check_error("/v1/messages", br#"{"model":"m","messages":[]}"#, messages);
    let responses = "invalid responses request: must have input field";
    check_error("/v1/responses", br#"{"input":null}"#, responses);
    let generate = "invalid generate request: must have non-empty token_ids field";
    check_error("/inference/v1/generate", br#"{"token_ids":[]}"#, generate);
    check_error("/generate", b"{}", "invalid generate request: must have input_ids or text field");
}

#[test]
fn limits_and_salts_are_read_where_each_api_has_them() {
    let check = |path: &str, body: &str, limit: Option<u32>, salt: Option<&str>| {
        let request = request(path, body.as_bytes());
        assert_eq!(request.max_output_tokens, limit, "{body}");
        assert_eq!(request.cache_salt.as_deref(), salt, "{body}");
    };
    let chat = "/v1/chat/completions";
    check(
        chat,
        r#"{"messages":[{}],"model":"m","max_tokens":5,"max_completion_tokens":7,"cache_salt":"s"}"#,
        Some(7),
        Some("s"),
    );
    check(
        chat,
        r#"{"messages":[{}],"model":"m","max_tokens":5.5,"nvext":{"cache_salt":"n"},"cache_salt":"s"}"#,
        None,
        Some("n"),
    );
    check(
        "/generate",
        r#"{"input_ids":[1],"sampling_params":{"max_new_tokens":9},"extra_key":"k","cache_salt":""}"#,
        Some(9),
        Some("k"),
    );
    check(
        "/inference/v1/generate",
        r#"{"token_ids":[1],"model":"m","sampling_params":{"max_tokens":3}}"#,
        Some(3),
        None,
    );
}

#[test]
fn json_requests_can_be_edited_and_read() {
    let body = br#"{"model":"m\u0041","prompt":[1,2],"stream":true}"#;
    let request = request("/v1/completions", body);
    assert_eq!((&*request.model, request.stream), ("mA", true));
    assert_eq!(request.token_ids(body), Some(vec![1, 2]));
    assert_eq!(request.prompt_bytes(body).collect::<Vec<_>>().concat(), b"[1,2");
    assert!(request.editor(body).is_some());
    let (text, fields) = request.json(body).expect("the body is JSON");
    assert_eq!(fields.raw(text, Field::Stream), Some(&b"true"[..]));
}

#[test]
fn token_data_beside_a_chat_are_its_tokens() {
    let body = br#"{"model":"m","messages":[{}],"nvext":{"token_data":[3, 4]}}"#;
    let request = request("/v1/chat/completions", body);
    assert_eq!(request.token_ids(body), Some(vec![3, 4]));
    let body = br#"{"model":"m","prompt":"text"}"#;
    assert_eq!(self::request("/v1/completions", body).token_ids(body), None);
}

#[test]
fn an_unread_body_has_nothing_to_know() {
    let passthrough = parser("passthrough-parser").expect("it exists");
    let Ok(ParseOutcome::Request(request)) = passthrough.parse("/any", b"passthrough-parser")
    else {
        panic!("every body is taken")
    };
    assert_eq!((request.api, &*request.model, request.stream), (None, "", false));
    assert!(request.editor(b"passthrough-parser").is_none());
    assert_eq!(request.prompt_bytes(b"passthrough-parser").count(), 0);
}

const GENERATE: &str = "/vllm.grpc.engine.VllmEngine/Generate";

#[test]
fn vllm_requests_are_read_from_protobuf() {
    let tokenized = [bytes(1, b"hello"), packed(2, &[7, 300]), number(2, 9)].concat();
    let params = [number(3, 1), number(8, 64)].concat();
    let message = [bytes(1, b"id"), bytes(2, &tokenized), bytes(4, &params), number(5, 1)].concat();
    let body = frame(&message);
    let request = request(GENERATE, &body);
    assert_eq!((request.api, request.stream), (Some(Api::GrpcGenerate), true));
    assert_eq!(request.max_output_tokens, Some(64));
    assert_eq!(request.token_ids(&body), Some(vec![7, 300, 9]));
    assert!(request.editor(&body).is_none());
}

#[test]
fn vllm_texts_and_embeddings_are_read_from_protobuf() {
    let body = frame(&bytes(3, b"hello"));
    let text = request(GENERATE, &body);
    assert_eq!(text.prompt_bytes(&body).collect::<Vec<_>>(), [b"hello"]);
    assert_eq!(text.token_ids(&body), None);

    let embed = "/vllm.grpc.engine.VllmEngine/Embed";
    let body = frame(&bytes(2, &packed(2, &[1, 2])));
    assert_eq!(request(embed, &body).token_ids(&body), Some(vec![1, 2]));

    check_error(GENERATE, &frame(b""), "invalid generate request: must have tokenized or text");
    check_error(embed, &frame(b""), "invalid embed request: must have tokenized");
    check_error(
        GENERATE,
        &frame(b"\x12\x09"),
        "invalid or unsupported gRPC payload: invalid protobuf at byte 5",
    );
    let vllm = ParserSet::new(vec![parser("vllmgrpc-parser").expect("it exists")]);
    let health = vllm.parse("/vllm.grpc.engine.VllmEngine/HealthCheck", b"");
    assert!(matches!(health, Ok(ParseOutcome::Skip)));
}

#[test]
fn vertex_requests_carry_json_in_protobuf() {
    let json = br#"{"messages":[{"role":"user","content":"a"}],"stream":true}"#;
    let http_body = [bytes(1, b"application/json"), bytes(2, json)].concat();
    let body = frame(&[bytes(1, b"endpoint"), bytes(2, &http_body)].concat());
    let path = "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions";
    let request = request(path, &body);
    assert_eq!((request.api, request.stream), (Some(Api::ChatCompletions), true));
    assert_eq!(request.json(&body).map(|(text, _)| text), Some(&json[..]));
    assert_eq!(request.prompt_bytes(&body).collect::<Vec<_>>().concat(), b"\"user\"\"a\"");
    assert!(request.editor(&body).is_none());
    check_error(path, &frame(b""), "invalid predict request: must have http_body");
}

proptest! {
    /// Whatever the path and the bytes, there is an answer.
    #[test]
    fn any_bytes_are_answered(
        body in prop::collection::vec(any::<u8>(), 0..80),
        path in prop::sample::select(vec![GENERATE, "/v1/messages", "/generate", "x",
            "/google.cloud.aiplatform.v1.PredictionService/RawPredict"]),
    ) {
        for body in [body.clone(), frame(&body)] {
            if let Ok(ParseOutcome::Request(request)) = all().parse(path, &body) {
                let _ = (request.token_ids(&body), request.prompt_bytes(&body).count());
            }
        }
    }
}

#[test]
fn a_body_names_a_session_by_its_cache_key_or_by_the_response_before() {
    let check = |body: &str, expected: Option<&str>| {
        let fields = crate::scan(body.as_bytes()).expect("a sound body");
        assert_eq!(session_name(body.as_bytes(), &fields).as_deref(), expected, "{body}");
    };
    let both = r#"{"previous_response_id":"resp_1","prompt_cache_key":"k\u00e9y"}"#;
    check(both, Some("k\u{e9}y"));
    check(r#"{"previous_response_id":"resp_1","prompt_cache_key":""}"#, Some("resp_1"));
    check(r#"{"previous_response_id":null,"prompt_cache_key":7}"#, None);
    check(r#"{"metadata":{"prompt_cache_key":"k"}}"#, None);
}
