use super::*;
use proptest::prelude::*;
use serde_json::Value;

/// What a response in chunks of `size` bytes took.
fn usage_of(response: &str, size: usize) -> Option<Usage> {
    let mut tail = UsageTail::new();
    response.as_bytes().chunks(size).for_each(|chunk| tail.push(chunk));
    tail.finish()
}

/// Checks prompt, completion, cached and total tokens, whatever the chunks.
#[track_caller]
fn check(response: &str, expected: (u32, u32, Option<u32>, u32)) {
    let (prompt_tokens, completion_tokens, cached_tokens, total_tokens) = expected;
    let expected = Usage { prompt_tokens, completion_tokens, cached_tokens, total_tokens };
    for size in [1, 7, 1000, 20_000, 1 << 20] {
        assert_eq!(usage_of(response, size), Some(expected), "chunks of {size} bytes");
    }
}

/// Streams of real engines, whole ones and those that broke off, in any pieces.
#[test]
fn recorded_streams_tell_what_their_last_event_does() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/streams");
    let mut counted = 0;
    for file in std::fs::read_dir(folder).expect("recordings").map(|entry| entry.expect("a file")) {
        let stream = std::fs::read_to_string(file.path()).expect("text");
        let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
        let told = events.map(|event| event["usage"].clone()).rfind(Value::is_object);
        let number = |value: &Value| value.as_u64().map(|number| number as u32);
        let expected = told.as_ref().map(|usage| Usage {
            prompt_tokens: number(&usage["prompt_tokens"]).expect("a count"),
            completion_tokens: number(&usage["completion_tokens"]).expect("a count"),
            cached_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]),
            total_tokens: number(&usage["total_tokens"]).expect("a count"),
        });
        counted += u32::from(expected.is_some());
        for size in [1, 7, 1000, 1 << 20] {
            assert_eq!(usage_of(&stream, size), expected, "{:?}", file.path());
        }
    }
    assert_eq!(counted, 11);
}

#[test]
fn openai_answers_and_streams_are_read() {
    check(
        r#"{"id":"x","choices":[],"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10,
            "prompt_tokens_details":{"cached_tokens":4}},"kv_transfer_params":{"a":[1,2]}}"#,
        (7, 10, Some(4), 17),
    );
    check(
        "data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\n\
         data: {\"choices\":[],\"usage\": {\"prompt_tokens\": 7, \"total_tokens\": 17, \
         \"completion_tokens\": 10, \"prompt_tokens_details\": null}}\n\ndata: [DONE]\n\n",
        (7, 10, None, 17),
    );
    check(
        "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":31,\
         \"input_tokens_details\":{\"cached_tokens\":16},\"output_tokens\":5,\"total_tokens\":36}},\
         \"type\":\"response.completed\"}\n\n",
        (31, 5, Some(16), 36),
    );
}

#[test]
fn the_last_of_running_counts_is_taken() {
    let event = |n: u32| {
        format!("data: {{\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":{n}}}}}\n\n")
    };
    check(&format!("{}{}data: [DONE]\n\n", event(1), event(2)), (3, 2, None, 5));
}

#[test]
fn anthropic_counts_come_from_both_ends() {
    let delta = "event: content_block_delta\ndata: {\"delta\":{\"text\":\"word\"}}\n\n".repeat(400);
    check(
        &format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"usage\":\
             {{\"input_tokens\":25,\"cache_read_input_tokens\":8,\
             \"cache_creation_input_tokens\":2,\"output_tokens\":1}}}}}}\n\n{delta}\
             event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{}},\
             \"usage\":{{\"output_tokens\":15}}}}\n\n\
             event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
        ),
        (35, 15, Some(8), 50),
    );
    check(r#"{"type":"message","usage":{"input_tokens":5,"output_tokens":6}}"#, (5, 6, None, 11));
}

#[test]
fn sglang_counts_stand_in_meta_info() {
    check(
        "data: {\"text\":\"a\",\"meta_info\":{\"finish_reason\":{\"type\":\"stop\"},\
         \"prompt_tokens\":9,\"completion_tokens\":2,\"cached_tokens\":8}}\n\ndata: [DONE]\n\n",
        (9, 2, Some(8), 11),
    );
}

#[test]
fn counts_before_long_results_are_read() {
    let result = r#"{"index":1,"document":{"text":"word"},"relevance_score":0.5},"#.repeat(400);
    check(
        &format!(
            r#"{{"id":"rerank-1","usage":{{"prompt_tokens":9,"total_tokens":9}},"results":[{result}]}}"#
        ),
        (9, 0, None, 9),
    );
}

#[test]
fn an_answer_about_usage_is_not_usage() {
    let quoted = r#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":1}"}]}"#;
    for response in ["", quoted, "{\"usage\":null}", "{\"usage\":{}}", "data: [DONE]", "\":"] {
        assert_eq!(usage_of(response, 9), None, "{response}");
    }
}

proptest! {
    /// Whatever goes before, the counts at the end are found and memory stays bounded.
    #[test]
    fn counts_at_the_end_are_found(
        before in prop::collection::vec(("[a-z\\\\\" {}:]{0,12}", 0_usize..400), 0..12),
        usage in (0_u32..9999, 0_u32..9999),
    ) {
        let mut tail = UsageTail::new();
        for (text, times) in &before {
            tail.push(text.repeat(*times).as_bytes());
            prop_assert!(tail.tail.len() <= 2 * TAIL_BYTES && tail.head.len() <= HEAD_BYTES);
        }
        let (prompt, completion) = usage;
        let end = format!(
            "\n\ndata: {{\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion}}}}}\n\n"
        );
        tail.push(end.as_bytes());
        let found = tail.finish().expect("counts stand at the end");
        prop_assert_eq!((found.prompt_tokens, found.completion_tokens), usage);
    }
}
