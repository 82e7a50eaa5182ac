use super::*;
use crate::delta::ToolCallStart;
use serde_json::{Value, json};

const IDENTITY: Identity<'static> = Identity { id: "r", created: 7, model: "m" };
const USAGE: Usage = Usage {
    prompt_tokens: 9,
    completion_tokens: 3,
    reasoning_tokens: 2,
    cached_tokens: 4,
    pinned_tokens: 0,
};

fn delta<'a>(text: &'a str, reasoning: &'a str) -> Delta<'a> {
    Delta { text, reasoning, ..Delta::default() }
}

/// Names and data of events; each name is its data's type.
fn events(deltas: &[Delta<'_>], limit: u32) -> Vec<Value> {
    let mut writer = MessageEvents::new(&IDENTITY, AnswerLimit(limit));
    let mut out = Vec::new();
    writer.begin(&mut out, Usage { completion_tokens: 1, ..USAGE });
    deltas.iter().for_each(|delta| writer.delta(&mut out, delta));
    writer.end(&mut out, USAGE);
    let text = String::from_utf8(out).expect("text");
    let records = text.split_terminator("\n\n").map(|record| {
        let (name, data) = record.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(&data["data: ".len()..]).expect("JSON");
        assert_eq!(data["type"], name["event: ".len()..]);
        data
    });
    records.collect()
}

fn kinds(events: &[Value]) -> Vec<String> {
    let kind = |event: &Value| {
        let of = |member: &str| event[member]["type"].as_str().unwrap_or_default().to_owned();
        let kind = event["type"].as_str().expect("a type").trim_start_matches("content_block_");
        format!("{kind} {}{}{}", event["index"], of("content_block"), of("delta"))
    };
    events.iter().map(|event| kind(event).replace("null", "").trim().to_owned()).collect()
}

#[test]
fn blocks_follow_each_other_without_gaps() {
    let start = ToolCallStart { id: "toolu_1", name: "f" };
    let calls = [
        ToolCallDelta { index: 0, start: Some(start), arguments: "", custom: false },
        ToolCallDelta { index: 0, start: None, arguments: "{\"a\":1}", custom: false },
        ToolCallDelta { index: 1, start: Some(start), arguments: "{}", custom: false },
    ];
    let last =
        Delta { tool_calls: &calls, finish: Some(FinishReason::ToolCalls), ..Delta::default() };
    let events = events(&[delta("", "hm"), delta("", "m"), delta("so", ""), last], 0);
    let expected = [
        "message_start",
        "start 0thinking",
        "delta 0thinking_delta",
        "delta 0thinking_delta",
        "stop 0",
        "start 1text",
        "delta 1text_delta",
        "stop 1",
        "start 2tool_use",
        "delta 2input_json_delta",
        "stop 2",
        "start 3tool_use",
        "delta 3input_json_delta",
        "stop 3",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&events), expected);
    let usage = json!({"input_tokens": 5, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4, "output_tokens": 1,
        "output_tokens_details": {"thinking_tokens": 2}});
    assert_eq!(events[0]["message"]["usage"], usage);
    assert_eq!(events[0]["message"]["content"], json!([]));
    let ends = &events[events.len() - 2];
    assert_eq!(ends["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(ends["usage"]["output_tokens"], 3);
}

#[test]
fn an_answer_without_a_word_has_no_block() {
    let end = Delta { finish: Some(FinishReason::Stop), ..Delta::default() };
    assert_eq!(kinds(&events(&[end], 0)), ["message_start", "message_delta", "message_stop"]);
}

#[test]
fn an_end_says_why() {
    let reason = |finish, stop_string, limit| {
        let end = Delta { finish: Some(finish), stop_string, ..Delta::default() };
        let events = events(&[delta("a", ""), end], limit);
        events[events.len() - 2]["delta"].clone()
    };
    let said = |reason: &str| json!({"stop_reason": reason, "stop_sequence": null});
    assert_eq!(reason(FinishReason::Stop, None, 12), said("end_turn"));
    assert_eq!(reason(FinishReason::Length, None, 13), said("max_tokens"));
    assert_eq!(reason(FinishReason::Length, None, 12), said("model_context_window_exceeded"));
    assert_eq!(reason(FinishReason::ContentFilter, None, 0), said("refusal"));
    let stopped = json!({"stop_reason": "stop_sequence", "stop_sequence": "\""});
    assert_eq!(reason(FinishReason::Stop, Some("\""), 0), stopped);
}

#[test]
fn a_whole_message_is_what_its_events_add_up_to() {
    let start = ToolCallStart { id: "toolu_1", name: "f" };
    let calls =
        [ToolCallDelta { index: 0, start: Some(start), arguments: " {\"a\":1.0}", custom: false }];
    let answer = Delta {
        text: "so",
        reasoning: "hm",
        tool_calls: &calls,
        finish: Some(FinishReason::ToolCalls),
        ..Delta::default()
    };
    let mut out = Vec::new();
    push_message(&mut out, &IDENTITY, AnswerLimit(0), &answer, USAGE);
    let message: Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(
        message["content"],
        json!([
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1.0}},
        ])
    );
    assert_eq!((&message["id"], &message["stop_reason"]), (&json!("msg_r"), &json!("tool_use")));
    assert_eq!(message["usage"]["input_tokens"], 5);
}
