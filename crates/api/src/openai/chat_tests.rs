use super::*;
use crate::conversation::{Content, Role};
use crate::request::{GenerateOptions, Prompt};
use http::StatusCode;
use stator_protos::hash::CACHE_SALT_MAX_BYTES;
use stator_protos::sampling::{Number, Numbers, OpenSampling};
use stator_protos::worker::guide::Form;
use stator_protos::worker::{LogitBias, Sampling};

const MESSAGES: &str = r#""model":"m","messages":[{"role":"user","content":"hi"}]"#;

/// Parses the smallest chat with `extra` members.
fn chat(extra: &str) -> Result<GenerateOptions, ApiError> {
    let body = format!("{{{MESSAGES}{extra}}}");
    read(body.as_bytes()).map(|request| request.options)
}

#[track_caller]
fn check_refused(extra: &str, status: u16, param: &str, message: &str) {
    let error = chat(extra).expect_err(extra);
    assert_eq!(error.status.as_u16(), status, "{extra}: {error}");
    assert_eq!(error.param.as_deref(), Some(param), "{extra}: {error}");
    assert!(error.message.contains(message), "{extra}: {error}");
}

#[test]
fn the_smallest_chat_asks_for_nothing() {
    let body = format!("{{{MESSAGES}}}");
    let request = read(body.as_bytes()).unwrap();
    assert_eq!(request.model, "m");
    assert!(matches!(request.model, Cow::Borrowed(_)));
    let conversation = request.input.conversation().unwrap();
    assert_eq!(conversation.messages[0].role, Role::User);
    assert_eq!(conversation.messages[0].content, Content::Text("hi".into()));
    assert!(conversation.add_generation_prompt && !conversation.add_special_tokens);
    let options = request.options;
    assert_eq!((options.open, options.n), (OpenSampling::default(), 1));
    assert_eq!(
        (options.sampling.logprobs, options.stream, options.skip_special_tokens),
        (None, false, true)
    );
}

#[test]
fn every_option_is_read() {
    let options = chat(
        r#","max_tokens":9,"max_completion_tokens":7,"min_tokens":2,"n":3,"temperature":0.5,"top_p":0.9,
        "top_k":-1,"min_p":0.1,"repetition_penalty":1.5,"presence_penalty":-1,"frequency_penalty":2,"seed":-1,
        "stop":["a","b"],"stop_token_ids":[5],"logit_bias":{"7":-100,"8":1.5},"logprobs":true,"top_logprobs":2,
        "ignore_eos":true,"skip_special_tokens":false,"response_format":{"type":"json_object"},"include_stop_str_in_output":true,"stream":true,
        "stream_options":{"include_usage":true,"continuous_usage_stats":true},"cache_salt":"s","user":"u",
        "return_token_ids":true,"unknown":{"a":[1]},"store":null,"best_of":3"#,
    )
    .unwrap();
    let mut numbers = Numbers::default();
    let given = [0.5, 0.9, 0.1, 1.5, -1.0, 2.0];
    for (number, value) in Number::ALL.into_iter().zip(given) {
        numbers.set(number, Some(value));
    }
    let bias = |token_id, bias| LogitBias { token_id, bias };
    let expected = GenerateOptions {
        open: OpenSampling { numbers, top_k: Some(0), max_tokens: Some(7) },
        sampling: Sampling {
            min_tokens: 2,
            stop_token_ids: vec![5],
            logit_bias: vec![bias(7, -100.0), bias(8, 1.5)],
            logprobs: Some(2),
            ignore_eos: true,
            guide: Some(Form::any_object().into()),
            ..Sampling::neutral()
        },
        guide_field: Some("response_format"),
        seed: Some(u64::MAX),
        n: 3,
        stop: vec!["a".into(), "b".into()],
        skip_special_tokens: false,
        include_stop_str_in_output: true,
        include_reasoning: true,
        thought_budget: None,
        pin: None,
        return_token_ids: true,
        stream: true,
        include_usage: true,
        continuous_usage_stats: true,
        cache_salt: Some("s".into()),
        extension_salt: None,
    };
    assert_eq!(options, expected);
}

#[test]
fn values_out_of_range_name_field_value_and_limit() {
    for (extra, param, message) in [
        (r#","temperature":2.5"#, "temperature", "2.5, it must be in 0..=2"),
        (r#","temperature":-0.1"#, "temperature", "-0.1"),
        (r#","top_p":0"#, "top_p", "above 0 and at most 1"),
        (r#","top_p":1.01"#, "top_p", "1.01"),
        (r#","min_p":1.5"#, "min_p", "0..=1"),
        (r#","top_k":-2"#, "top_k", "-2"),
        (r#","repetition_penalty":0"#, "repetition_penalty", "0.01..=2"),
        (r#","presence_penalty":2.1"#, "presence_penalty", "-2..=2"),
        (r#","frequency_penalty":-3"#, "frequency_penalty", "-2..=2"),
        (r#","n":0"#, "n", "1..=128"),
        (r#","n":129"#, "n", "129"),
        (r#","max_tokens":0"#, "max_tokens", "max_tokens is 0"),
        (r#","max_completion_tokens":-1"#, "max_completion_tokens", "-1"),
        (r#","top_logprobs":21,"logprobs":true"#, "top_logprobs", "0..=20"),
        (r#","logprobs":3"#, "logprobs", "must be a boolean"),
        (r#","stop":"""#, "stop", "stop[0] is empty"),
        (r#","logit_bias":{"x":1}"#, "logit_bias", "\"x\""),
        (r#","logit_bias":{"1":101}"#, "logit_bias", "101"),
        (r#","cache_salt":"""#, "cache_salt", "0 bytes"),
        (r#","tool_choice":"maybe""#, "tool_choice", "maybe"),
        (r#","tools":{}"#, "tools", "list"),
        (r#","tools":[{"type":"function","function":{}}]"#, "tools[0].function.name", "string"),
        (r#","tools":[{"type":"web"}]"#, "tools[0].type", "function"),
        (
            r#","chat_template_kwargs":{"chat_template":"x"}"#,
            "chat_template_kwargs",
            "chat_template",
        ),
    ] {
        check_refused(extra, 400, param, message);
    }
    let stop = serde_json::to_string(&vec!["x"; 33]).unwrap();
    check_refused(&format!(",\"stop\":{stop}"), 400, "stop", "33 strings, the limit is 32");
}

#[test]
fn what_would_change_the_answer_is_refused() {
    for (extra, param) in [
        (r#","response_format":{"type":"grammar"}"#, "response_format"),
        (r#","audio":{"voice":"x"}"#, "audio"),
        (r#","modalities":["text","audio"]"#, "modalities"),
        (r#","best_of":2"#, "best_of"),
        (r#","chat_template":"x""#, "chat_template"),
        (r#","functions":[{"name":"f"}]"#, "functions"),
        (r#","prompt":"x""#, "prompt"),
        (r#","echo":true"#, "echo"),
    ] {
        let error = chat(extra).expect_err(extra);
        assert_eq!(
            (error.status, error.code),
            (StatusCode::BAD_REQUEST, Some("unsupported_parameter")),
            "{extra}"
        );
        assert_eq!(error.param.as_deref(), Some(param), "{extra}");
    }
}

#[test]
fn what_asks_for_nothing_is_accepted() {
    chat(
        r#","tool_choice":"none","tools":[],"response_format":{"type":"text"},"audio":null,"modalities":["text"],
        "functions":[],"suffix":"","prompt_logprobs":0,"use_beam_search":false,"guided_json":null"#,
    )
    .unwrap();
}

#[test]
fn impossible_combinations_are_422() {
    check_refused(r#","stream_options":{}"#, 422, "stream_options", "stream");
    check_refused(r#","top_logprobs":1"#, 422, "top_logprobs", "logprobs");
    check_refused(r#","min_tokens":5,"max_tokens":4"#, 422, "min_tokens", "max_tokens, which is 4");
    let both = r#","add_generation_prompt":true,"continue_final_message":true"#;
    check_refused(both, 422, "continue_final_message", "both");
}

#[track_caller]
fn check_body(body: &str, param: Option<&str>, message: &str) {
    let error = read(body.as_bytes()).expect_err(body);
    assert_eq!(error.status, StatusCode::BAD_REQUEST, "{body}");
    assert_eq!(error.param.as_deref(), param, "{body}: {error}");
    assert!(error.message.contains(message), "{body}: {error}");
}

#[test]
fn faults_name_the_place() {
    check_body("", None, "line 1 column 0");
    check_body("{\"model\":\n \"x\",}", None, "line 2 column 6");
    check_body("[]", None, "the body must be an object, not a list");
    check_body("{}", Some("model"), "missing required parameter: model");
    check_body(r#"{"model":""}"#, Some("model"), "empty");
    check_body(r#"{"model":"m"}"#, Some("messages"), "missing");
    check_body(r#"{"model":"m","messages":[]}"#, Some("messages"), "at least one");
    check_body(r#"{"model":7}"#, Some("model"), "must be a string");
    check_body(r#"{"model":"m","temperature":"hot"}"#, Some("temperature"), "hot");
    let message = |message: &str| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}},{message}]}}"#)
    };
    check_body(&message(r#"{"role":"king","content":"x"}"#), Some("messages[1].role"), "king");
    check_body(&message(r#"{"content":"x"}"#), Some("messages[1]"), "role");
    check_body(
        &message(r#"{"role":"user","content":null}"#),
        Some("messages[1]"),
        "content is required",
    );
    check_body(
        &message(r#"{"role":"user","content":4}"#),
        Some("messages[1].content"),
        "text parts",
    );
    let scent = r#"{"role":"user","content":[{"type":"scent","scent":{"url":"x"}}]}"#;
    check_body(&message(scent), Some("messages[1].content[0]"), "scent");
    check_body(
        &format!("{{\"model\":\"m\",\"tools\":{}", "[".repeat(1000)),
        None,
        "recursion limit",
    );
    check_body("{\"model\":\"\u{1}\"}", None, "control character");
    let mut raw = br#"{"model":"a"}"#.to_vec();
    raw[10] = 0xff;
    assert_eq!(read(&raw).unwrap_err().status, StatusCode::BAD_REQUEST);
}

#[test]
fn messages_keep_what_templates_read() {
    let body = r#"{"model":"m","messages":[
        {"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b\n"}],"name":"d"},
        {"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}],"role":"assistant"},
        {"role":"tool","content":"4","tool_call_id":"1"}]}"#;
    let request = read(body.as_bytes()).unwrap();
    let messages = &request.input.conversation().unwrap().messages;
    let [developer, assistant, tool] = &messages[..] else { panic!("three messages") };
    assert_eq!(developer.content, Content::Parts(vec!["a".into(), "b\n".into()]));
    assert_eq!(developer.extra, [("name".into(), Json::Str("d".into()))]);
    assert_eq!((assistant.role, &assistant.content), (Role::Assistant, &Content::Null));
    assert_eq!(assistant.extra[0].0, "tool_calls");
    assert_eq!(tool.extra, [("tool_call_id".into(), Json::Str("1".into()))]);
}

#[test]
fn tokens_beside_the_messages_are_read() {
    let tokens = |nvext: &str| {
        let body = format!("{{{MESSAGES},\"nvext\":{nvext}}}");
        let GenerateRequest { input, prompt_field, .. } = read(body.as_bytes()).expect(nvext);
        let Input::Prompts { prompts, .. } = input else { return None };
        assert_eq!(prompt_field, "nvext.token_data");
        match &prompts[..] {
            [Prompt::Tokens(ids)] => Some(ids.clone()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(tokens(r#"{"token_data":[1,4294967295]}"#), Some(vec![1, u32::MAX]));
    assert_eq!(tokens(r#"{"backend_instance_id":null,"token_data":[2]}"#), Some(vec![2]));
    for nothing in ["null", "{}", r#"{"token_data":null}"#, r#"{"token_data":[]}"#] {
        assert_eq!(tokens(nothing), None, "{nothing}");
    }
}

#[test]
fn both_salts_are_read_and_an_empty_extension_counts_as_none() {
    let salts = |members: &str| {
        let body = format!("{{{MESSAGES}{members}}}");
        let options = read(body.as_bytes()).expect(members).options;
        (options.cache_salt, options.extension_salt)
    };
    let some = |salt: &str| Some(salt.to_owned());
    let both = r#","cache_salt":"s","nvext":{"cache_salt":"n","token_data":[1]}"#;
    assert_eq!(salts(both), (some("s"), some("n")));
    for nothing in ["", r#","nvext":{"cache_salt":""}"#, r#","nvext":{"cache_salt":null}"#] {
        assert_eq!(salts(nothing), (None, None), "{nothing}");
    }
    let longest = "x".repeat(CACHE_SALT_MAX_BYTES);
    let within = format!(r#","cache_salt":"{longest}","nvext":{{"cache_salt":"{longest}"}}"#);
    assert_eq!(salts(&within), (some(&longest), some(&longest)));
}

#[test]
fn a_salt_that_agents_would_refuse_is_refused_with_length_and_limit() {
    let long = "x".repeat(CACHE_SALT_MAX_BYTES + 1);
    let own = format!(r#","cache_salt":"{long}""#);
    check_refused(&own, 400, "cache_salt", "cache_salt has 257 bytes, it must have 1 to 256");
    let extension = format!(r#","nvext":{{"cache_salt":"{long}"}}"#);
    let message = "nvext.cache_salt has 257 bytes, it must have 1 to 256";
    check_refused(&extension, 400, "nvext.cache_salt", message);
    check_refused(r#","nvext":{"cache_salt":7}"#, 400, "nvext.cache_salt", "string");
}

#[test]
fn tokens_of_the_wrong_type_name_the_place() {
    check_refused(r#","nvext":[[1]]"#, 400, "nvext", "must be an object");
    check_refused(r#","nvext":"x""#, 400, "nvext", "must be an object");
    check_refused(r#","nvext":{"token_data":"1,2"}"#, 400, "nvext.token_data", "must be a list");
    check_refused(
        r#","nvext":{"token_data":[1,"2"]}"#,
        400,
        "nvext.token_data[1]",
        "must be an integer",
    );
    check_refused(r#","nvext":{"token_data":[-1]}"#, 400, "nvext.token_data[0]", "-1");
    check_refused(
        r#","nvext":{"token_data":[4294967296]}"#,
        400,
        "nvext.token_data[0]",
        "must be an integer",
    );
}

#[test]
fn fields_that_nobody_reads_are_refused_or_named() {
    let read = |extra: &str, notes: &FieldNotes| {
        let body = format!("{{{MESSAGES}{extra}}}");
        read_noting(body.as_bytes(), notes).map(|_| notes.ignored())
    };
    let strict = |extra: &str| read(extra, &FieldNotes::default());
    let error = strict(r#","temprature":0"#).expect_err("a slip");
    assert_eq!(error.param.as_deref(), Some("temprature"));
    assert_eq!(error.message, "temprature is not a field of this API; did you mean temperature?");
    assert_eq!(error.code, Some("unknown_parameter"));
    let error =
        strict(r#","stream":true,"stream_options":{"includeusage":true}"#).expect_err("a slip");
    assert!(error.message.ends_with("did you mean include_usage?"), "{error}");
    for refused in
        [r#""store":true"#, r#""moderation":{"a":1}"#, r#""nvext":{"greed_sampling":true}"#]
    {
        let error = strict(&format!(",{refused}")).expect_err(refused);
        assert_eq!(error.code, Some("unsupported_parameter"), "{error}");
    }
    let harmless =
        r#","user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","wibble":null"#;
    assert_eq!(strict(harmless), Ok(Some("user, metadata, service_tier".into())));
    assert_eq!(strict(r#","metadata":{},"user":"""#), Ok(None));
    strict(r#","service_tier":"flex""#).expect_err("one tier");
    strict(r#","stream_options":[true],"stream":true"#).expect_err("a list is no object");
    let ignored = read(r#","temprature":0"#, &FieldNotes::lenient());
    assert_eq!(ignored, Ok(Some("temprature".into())));
}

mod arbitrary_bodies {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a client sends, parsing answers and does not panic.
        #[test]
        fn never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }

        /// A legal body with one byte changed is answered too, and a refusal is a 4xx.
        #[test]
        fn one_changed_byte_is_answered(at in 0usize..300, byte in any::<u8>()) {
            let mut body = br#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],
                "stop":["x"],"logit_bias":{"1":2},"tools":[{"type":"function","function":{"name":"f"}}],
                "stream":true,"stream_options":{"include_usage":true},"top_k":5,"seed":1}"#.to_vec();
            let at = at % body.len();
            body[at] = byte;
            if let Err(error) = read(&body) {
                prop_assert!(error.status.is_client_error());
            }
        }
    }
}
