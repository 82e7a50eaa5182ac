use super::*;
use crate::delta::{TokenLogprob, TokenText};
use serde_json::{Value, json};

const IDENTITY: Identity<'static> = Identity { id: "7", created: 1_700_000_000, model: "a\"b" };
const USAGE: Usage = Usage {
    prompt_tokens: 5,
    completion_tokens: 2,
    reasoning_tokens: 0,
    cached_tokens: 4,
    pinned_tokens: 0,
};

/// The JSON of one event.
#[track_caller]
fn event(bytes: &[u8]) -> Value {
    let text = std::str::from_utf8(bytes).unwrap();
    let data = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).expect(text);
    assert!(!data.contains('\n'), "an event is one line: {data}");
    serde_json::from_str(data).expect(data)
}

fn write(api: Api, mode: UsageMode, piece: &Delta<'_>) -> Value {
    let mut out = Vec::new();
    EventWriter::new(api, &IDENTITY, mode).delta(&mut out, piece, USAGE);
    event(&out)
}

fn usage_json() -> Value {
    json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}})
}

fn logprobs() -> Vec<TokenLogprob> {
    let text = |token: &str, logprob| TokenText {
        token: token.into(),
        bytes: token.as_bytes().to_vec(),
        logprob,
    };
    let first = TokenLogprob { chosen: text("h", 0.0), known: false, top: vec![], text_offset: 0 };
    let top = vec![text("é", -0.5), text("i", -1.25), text("i", -2.5)];
    vec![first, TokenLogprob { chosen: text("é", -0.5), known: true, top, text_offset: 1 }]
}

#[test]
fn a_chat_streams_role_content_finish_and_usage() {
    let writer = EventWriter::new(Api::ChatCompletions, &IDENTITY, UsageMode::Last);
    let mut out = Vec::new();
    writer.role(&mut out, 1, USAGE);
    let head = |choices: Value, usage: Value| {
        json!({"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1_700_000_000u64, "model": "a\"b",
            "choices": choices, "usage": usage})
    };
    let choice = |delta: Value, finish: Value| json!([{"index": 1, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    let role = json!({"role": "assistant", "content": ""});
    assert_eq!(event(&out), head(choice(role, Value::Null), Value::Null));

    let piece = |text, finish| {
        write(
            Api::ChatCompletions,
            UsageMode::Last,
            &Delta { choice: 1, text, finish, ..Delta::default() },
        )
    };
    assert_eq!(
        piece("a\n\"", None),
        head(choice(json!({"content": "a\n\""}), Value::Null), Value::Null)
    );
    assert_eq!(
        piece("", Some(FinishReason::Stop)),
        head(choice(json!({}), json!("stop")), Value::Null)
    );
    for (finish, name) in
        [(FinishReason::ToolCalls, "tool_calls"), (FinishReason::ContentFilter, "content_filter")]
    {
        assert_eq!(piece("", Some(finish)), head(choice(json!({}), json!(name)), Value::Null));
    }
    let last = head(choice(json!({"content": "z"}), json!("length")), Value::Null);
    assert_eq!(piece("z", Some(FinishReason::Length)), last);

    out.clear();
    writer.usage(&mut out, USAGE);
    assert_eq!(event(&out), head(json!([]), usage_json()));
}

#[test]
fn usage_is_absent_last_or_continuous() {
    let usage = |mode| write(Api::ChatCompletions, mode, &Delta::default()).get("usage").cloned();
    assert_eq!(usage(UsageMode::new(false, true)), None);
    assert_eq!(usage(UsageMode::new(true, false)), Some(Value::Null));
    assert_eq!(usage(UsageMode::new(true, true)), Some(usage_json()));
}

#[test]
fn a_completion_streams_text_and_no_role() {
    let writer = EventWriter::new(Api::Completions, &IDENTITY, UsageMode::Off);
    let mut out = Vec::new();
    writer.role(&mut out, 0, USAGE);
    assert!(out.is_empty());
    let piece = Delta { text: "x", token_ids: Some(&[3, 4]), ..Delta::default() };
    assert_eq!(
        write(Api::Completions, UsageMode::Off, &piece),
        json!({"id": "cmpl-7", "object": "text_completion", "created": 1_700_000_000u64, "model": "a\"b", "choices":
            [{"index": 0, "text": "x", "logprobs": null, "token_ids": [3, 4], "finish_reason": null}]})
    );
}

#[test]
fn whole_responses_hold_all_choices_in_order() {
    let choices = [
        Delta { text: "x", finish: Some(FinishReason::Stop), ..Delta::default() },
        Delta { choice: 1, finish: Some(FinishReason::Length), ..Delta::default() },
    ];
    let whole = |api| {
        let mut out = Vec::new();
        push_response(&mut out, api, &IDENTITY, &choices, USAGE);
        serde_json::from_slice::<Value>(&out).unwrap()
    };
    let message = |text| json!({"role": "assistant", "content": text, "refusal": null});
    assert_eq!(
        whole(Api::ChatCompletions),
        json!({"id": "chatcmpl-7", "object": "chat.completion", "created": 1_700_000_000u64, "model": "a\"b",
        "choices": [
            {"index": 0, "message": message("x"), "logprobs": null, "finish_reason": "stop"},
            {"index": 1, "message": message(""), "logprobs": null, "finish_reason": "length"},
        ], "usage": usage_json()})
    );
    assert_eq!(
        whole(Api::Completions)["choices"][1],
        json!({"index": 1, "text": "", "logprobs": null, "finish_reason": "length"})
    );
}

#[test]
fn chat_logprobs_list_tokens_with_bytes() {
    let tokens = logprobs();
    let piece = Delta { logprobs: Some(&tokens[1..]), ..Delta::default() };
    let token = |token: &str, logprob: f32| json!({"token": token, "logprob": logprob, "bytes": token.as_bytes()});
    let mut chosen = token("é", -0.5);
    chosen["top_logprobs"] = json!([token("é", -0.5), token("i", -1.25), token("i", -2.5)]);
    assert_eq!(
        write(Api::ChatCompletions, UsageMode::Off, &piece)["choices"][0]["logprobs"],
        json!({"content": [chosen], "refusal": null})
    );
}

#[test]
fn completion_logprobs_are_columns() {
    let tokens = logprobs();
    let piece = Delta { logprobs: Some(&tokens), ..Delta::default() };
    assert_eq!(
        write(Api::Completions, UsageMode::Off, &piece)["choices"][0]["logprobs"],
        json!({"tokens": ["h", "é"], "token_logprobs": [null, -0.5],
            "top_logprobs": [null, {"é": -0.5, "i": -1.25}], "text_offset": [0, 1]})
    );
}

#[test]
fn an_error_in_a_stream_is_an_event() {
    let mut out = Vec::new();
    push_error_event(&mut out, &ApiError::internal());
    assert_eq!(event(&out)["error"]["code"], "internal_error");
}
