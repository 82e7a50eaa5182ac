//! Writing a chat's message: content, reasoning and calls of tools.
//!
//! Source: OpenAI's chat completions; `reasoning_content` as DeepSeek's API and SGLang have it,
//! `reasoning` as vLLM and OpenRouter do.

use super::escape::{push_int, push_json_str};
use super::logprobs::push_list;
use crate::delta::{Delta, ToolCallDelta, ToolCallStart};

/// Appends the `delta` of an event: an object with the members that have something new.
pub(super) fn push_delta(out: &mut Vec<u8>, delta: &Delta<'_>) {
    let starts_at = out.len() + 1;
    out.push(b'{');
    if !delta.reasoning.is_empty() {
        push_reasoning(out, delta.reasoning);
    }
    // An event without anything new has empty content, as clients expect; the last one has none.
    let is_bare = delta.reasoning.is_empty() && delta.tool_calls.is_empty();
    if !delta.text.is_empty() || is_bare && delta.finish.is_none() {
        separate(out, starts_at);
        out.extend_from_slice(b"\"content\":");
        push_json_str(out, delta.text);
    }
    if !delta.tool_calls.is_empty() {
        separate(out, starts_at);
        out.extend_from_slice(b"\"tool_calls\":");
        push_list(out, delta.tool_calls, |out, call| {
            out.extend_from_slice(b"{\"index\":");
            push_int(out, call.index);
            out.push(b',');
            push_call(out, call);
        });
    }
    out.push(b'}');
}

/// Appends the `message` of a whole choice.
pub(super) fn push_whole(out: &mut Vec<u8>, choice: &Delta<'_>) {
    out.extend_from_slice(b"{\"role\":\"assistant\",\"content\":");
    match choice.text.is_empty() && !choice.tool_calls.is_empty() {
        true => out.extend_from_slice(b"null"),
        false => push_json_str(out, choice.text),
    }
    if !choice.reasoning.is_empty() {
        out.push(b',');
        push_reasoning(out, choice.reasoning);
    }
    if !choice.tool_calls.is_empty() {
        out.extend_from_slice(b",\"tool_calls\":");
        push_list(out, choice.tool_calls, |out, call| {
            out.push(b'{');
            push_call(out, call);
        });
    }
    out.extend_from_slice(b",\"refusal\":null}");
}

/// The thoughts, under both names that clients know.
fn push_reasoning(out: &mut Vec<u8>, reasoning: &str) {
    out.extend_from_slice(b"\"reasoning_content\":");
    let starts_at = out.len();
    push_json_str(out, reasoning);
    let written = starts_at..out.len();
    out.extend_from_slice(b",\"reasoning\":");
    out.extend_from_within(written);
}

/// The members of a call after its number, and its closing brace.
fn push_call(out: &mut Vec<u8>, call: &ToolCallDelta<'_>) {
    let (kind, content) = match call.custom {
        false => ("function", "arguments"),
        true => ("custom", "input"),
    };
    if let Some(ToolCallStart { id, .. }) = call.start {
        out.extend_from_slice(b"\"id\":");
        push_json_str(out, id);
        out.extend_from_slice(b",\"type\":");
        push_json_str(out, kind);
        out.push(b',');
    }
    push_json_str(out, kind);
    out.extend_from_slice(b":{");
    if let Some(ToolCallStart { name, .. }) = call.start {
        out.extend_from_slice(b"\"name\":");
        push_json_str(out, name);
        out.push(b',');
    }
    push_json_str(out, content);
    out.push(b':');
    push_json_str(out, call.arguments);
    out.extend_from_slice(b"}}");
}

/// Appends a comma unless nothing stands between `from` and the end.
fn separate(out: &mut Vec<u8>, from: usize) {
    if out.len() > from {
        out.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::FinishReason;
    use serde_json::{Value, json};

    const START: ToolCallStart<'static> = ToolCallStart { id: "call_1", name: "f" };

    fn check(write: fn(&mut Vec<u8>, &Delta<'_>), delta: &Delta<'_>, expected: &Value) {
        let mut out = Vec::new();
        write(&mut out, delta);
        assert_eq!(serde_json::from_slice::<Value>(&out).expect("JSON"), *expected);
    }

    #[test]
    fn an_event_has_the_members_that_have_something_new() {
        let nothing = Delta::default();
        check(push_delta, &nothing, &json!({"content": ""}));
        check(push_delta, &Delta { finish: Some(FinishReason::Stop), ..nothing }, &json!({}));
        let thought = Delta { reasoning: "a\"", ..nothing };
        check(push_delta, &thought, &json!({"reasoning_content": "a\"", "reasoning": "a\""}));
        let both = Delta { text: "b", ..thought };
        check(
            push_delta,
            &both,
            &json!({"reasoning_content": "a\"", "reasoning": "a\"", "content": "b"}),
        );
    }

    #[test]
    fn a_call_has_its_identity_in_its_first_event() {
        let calls = [
            ToolCallDelta { index: 0, start: None, arguments: "\"x\"}", custom: false },
            ToolCallDelta { index: 1, start: Some(START), arguments: "", custom: false },
        ];
        let first = json!({"index": 0, "function": {"arguments": "\"x\"}"}});
        let second = json!({"index": 1, "id": "call_1", "type": "function",
                            "function": {"name": "f", "arguments": ""}});
        let delta = Delta { tool_calls: &calls, ..Delta::default() };
        check(push_delta, &delta, &json!({"tool_calls": [first, second]}));
        let said = Delta { text: "t", tool_calls: &calls[..1], ..Delta::default() };
        check(push_delta, &said, &json!({"content": "t", "tool_calls": [first]}));
    }

    #[test]
    fn a_custom_tool_gets_its_input() {
        let mut calls =
            [ToolCallDelta { index: 0, start: Some(START), arguments: "a\n", custom: true }];
        let first = json!({"index": 0, "id": "call_1", "type": "custom",
                           "custom": {"name": "f", "input": "a\n"}});
        let delta = Delta { tool_calls: &calls, ..Delta::default() };
        check(push_delta, &delta, &json!({"tool_calls": [first]}));
        calls[0].start = None;
        let delta = Delta { tool_calls: &calls, ..Delta::default() };
        let later = json!({"index": 0, "custom": {"input": "a\n"}});
        check(push_delta, &delta, &json!({"tool_calls": [later]}));
    }

    #[test]
    fn a_whole_message_that_only_calls_has_no_content() {
        let calls =
            [ToolCallDelta { index: 0, start: Some(START), arguments: "{}", custom: false }];
        let call = json!({"id": "call_1", "type": "function",
                          "function": {"name": "f", "arguments": "{}"}});
        let choice = Delta { reasoning: "r", tool_calls: &calls, ..Delta::default() };
        let message = json!({"role": "assistant", "content": null, "reasoning_content": "r",
                             "reasoning": "r",
                             "tool_calls": [call], "refusal": null});
        check(push_whole, &choice, &message);
        let plain = json!({"role": "assistant", "content": "", "refusal": null});
        check(push_whole, &Delta::default(), &plain);
    }
}
