use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// An engine that says what is in these tokens, whatever it is asked, and then stops.
struct Model {
    tokens: Vec<String>,
    /// Tokens that it has room for, those so far with them.
    room: usize,
}

impl Model {
    /// Answers a request for a chunk.
    fn answer(&self, request: &Value) -> Value {
        assert_eq!((&request["stream"], request.get("stream_options")), (&json!(false), None));
        assert_eq!(request["max_tokens"], request["max_completion_tokens"]);
        let messages = request["messages"].as_array().expect("a list");
        let so_far = match messages.len() {
            1 => "",
            2 => {
                assert_eq!(request["continue_final_message"], true);
                assert_eq!(request["add_generation_prompt"], false);
                assert_eq!(messages[1]["role"], "assistant");
                assert_eq!(request["cache_hit_threshold"], 0);
                messages[1]["content"].as_str().expect("text")
            }
            _ => panic!("one message is added: {messages:?}"),
        };
        let from = (0..=self.tokens.len()).find(|at| self.tokens[..*at].concat() == so_far);
        let from = from.expect("the text so far is what was said");
        let asked = request["max_tokens"].as_u64().expect("a budget") as usize;
        let to = (from + asked).min(self.room.max(from)).min(self.tokens.len());
        let said = &self.tokens[from..to];
        let stopped = to == self.tokens.len() && to - from < asked;
        let logprobs: Vec<_> = said.iter().map(|token| json!({ "token": token })).collect();
        json!({
            "id": format!("chatcmpl-{from}"), "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{
                "index": 0,
                "message": { "role": "assistant", "content": said.concat(), "tool_calls": [] },
                "logprobs": request.get("logprobs").map(|_| json!({ "content": logprobs })),
                "finish_reason": if stopped { "stop" } else { "length" },
                "stop_reason": stopped.then_some(2),
            }],
            "usage": { "prompt_tokens": 5 + from, "completion_tokens": to - from,
                       "total_tokens": 5 + to, "prompt_tokens_details": { "cached_tokens": 4 } },
        })
    }
}

/// All that the client gets, and how often the engine was asked.
fn converse(request: &Value, size: u32, model: &Model) -> Result<(String, usize), Unjoinable> {
    let body = request.to_string();
    let size = NonZeroU32::new(size).expect("not 0");
    let mut chunks = Chunks::new(body.as_bytes(), size).expect("it bears it");
    let mut got = Vec::new();
    for asked in 1.. {
        let ask: Value = serde_json::from_slice(&chunks.ask()).expect("it is sound");
        assert!(ask["max_tokens"].as_u64() <= Some(size.get().into()));
        let part = chunks.take(model.answer(&ask).to_string().into())?;
        got.extend_from_slice(&part.bytes);
        if part.last {
            return Ok((String::from_utf8(got).expect("it is text"), asked));
        }
    }
    unreachable!("it ends")
}

fn chat(more: Value) -> Value {
    let mut request = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    let more = more.as_object().expect("an object").clone();
    request.as_object_mut().expect("an object").extend(more);
    request
}

/// The data of all events but the last, which says that it is.
fn events(text: &str) -> Vec<Value> {
    let events = text.strip_suffix("data: [DONE]\n\n").expect("it ends");
    let data = events.split_terminator("\n\n").map(|event| event.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data.expect("data")).expect("JSON")).collect()
}

fn why_whole(request: &Value) -> Option<OnePieceReason> {
    let size = NonZeroU32::new(8).expect("not 0");
    Chunks::new(request.to_string().as_bytes(), size).err()
}

#[test]
fn only_what_bears_it_is_decoded_in_chunks() {
    for more in [
        json!({}),
        json!({ "max_tokens": 9, "temperature": 0.5, "logprobs": true, "n": 1 }),
        json!({ "max_tokens": 1, "max_completion_tokens": 9 }),
        json!({ "tools": [], "stop": null, "suffix": "", "presence_penalty": 0.0, "frequency_penalty": 0 }),
    ] {
        assert_eq!(why_whole(&chat(more.clone())), None, "{more}");
    }
    for (more, why) in [
        (json!({ "max_tokens": 8 }), OnePieceReason::Short),
        (json!({ "max_tokens": 9, "max_completion_tokens": 3 }), OnePieceReason::Short),
        (json!({ "max_tokens": 0 }), OnePieceReason::Limit),
        (json!({ "max_tokens": "9" }), OnePieceReason::Limit),
        (json!({ "n": 2 }), OnePieceReason::Several),
        (json!({ "use_beam_search": true }), OnePieceReason::Several),
        (json!({ "messages": [] }), OnePieceReason::Messages),
        (json!({ "messages": "hi" }), OnePieceReason::Messages),
        (
            json!({ "messages": [{ "role": "assistant", "content": "a" }] }),
            OnePieceReason::Messages,
        ),
        (
            json!({ "stream_options": { "continuous_usage_stats": true } }),
            OnePieceReason::Parameter,
        ),
        (json!({ "tools": [{}] }), OnePieceReason::Parameter),
        (json!({ "stop": "x" }), OnePieceReason::Parameter),
        (json!({ "seed": 0 }), OnePieceReason::Parameter),
        (json!({ "presence_penalty": 0.1 }), OnePieceReason::Parameter),
        (json!({ "response_format": { "type": "json_object" } }), OnePieceReason::Parameter),
        (json!({ "anything": 1 }), OnePieceReason::Parameter),
    ] {
        assert_eq!(why_whole(&chat(more.clone())), Some(why), "{more}");
    }
    assert_eq!(why_whole(&json!([])), Some(OnePieceReason::Messages));
}

#[test]
fn one_chunk_that_ends_by_itself_goes_on_as_it_came() {
    let model = Model { tokens: vec!["a".into()], room: 9 };
    let (got, asked) = converse(&chat(json!({})), 4, &model).expect("it is text");
    let came = model.answer(&json!({ "stream": false, "max_tokens": 4, "max_completion_tokens": 4,
                                     "messages": [{}] }));
    assert_eq!((got, asked), (came.to_string(), 1));
}

/// What comes of a first chunk like this, for a client that streams or not.
fn take(message: Value, finish: &str, streams: bool) -> Result<Part, Unjoinable> {
    let body = chat(json!({ "stream": streams })).to_string();
    let mut chunks =
        Chunks::new(body.as_bytes(), NonZeroU32::new(2).expect("not 0")).expect("it bears it");
    let choice = json!({ "message": message, "finish_reason": finish });
    let answer = json!({ "choices": [choice], "usage": { "completion_tokens": 2 } });
    chunks.take(answer.to_string().into())
}

#[test]
fn answers_that_have_more_than_text_are_not_gone_on_from() {
    for message in [
        json!({ "content": null, "reasoning": "hm" }),
        json!({ "content": "a", "tool_calls": [{}] }),
    ] {
        let cut = take(message.clone(), "length", false);
        assert!(matches!(cut, Err(Unjoinable::NotText(_))), "{cut:?}");
        assert!(take(message, "stop", false).expect("it came as it is").last);
    }
    for content in [json!(null), json!(""), json!("\u{FFFD}")] {
        let cut = take(json!({ "content": content }), "length", true);
        assert!(matches!(cut, Err(Unjoinable::NoText)), "{content}: {cut:?}");
    }
    let half = take(json!({ "content": "a\u{FFFD}" }), "length", true).expect("there is text");
    let text = String::from_utf8(half.bytes.to_vec()).expect("text");
    assert!(text.contains(r#""content":"a"}"#), "{text}");
}

#[test]
fn what_is_no_answer_is_refused_and_ends_nothing() {
    let body = chat(json!({})).to_string();
    let mut chunks =
        Chunks::new(body.as_bytes(), NonZeroU32::new(2).expect("not 0")).expect("it bears it");
    let message = json!({ "content": "a" });
    for answer in [
        json!(1),
        json!({}),
        json!({ "choices": [] }),
        json!({ "choices": [{ "message": message }, { "message": message }] }),
        json!({ "choices": [{ "message": message }] }),
        json!({ "choices": [{ "message": { "content": 1 } }], "usage": {} }),
    ] {
        let taken = chunks.take(answer.to_string().into());
        assert!(matches!(taken, Err(Unjoinable::Malformed(_))), "{answer}: {taken:?}");
    }
    assert_eq!(chunks.tokens, 0);
}

proptest! {
    /// However an answer is decoded, the client gets what it would have got in one piece.
    #[test]
    fn chunks_join_to_one_answer(
        tokens in vec("[a-c\"\n\u{e9}]{1,3}", 0..24),
        size in 1..9_u32,
        limit in proptest::option::of(1..30_usize),
        room in 1..30_usize,
        logprobs: bool,
        says_usage: bool,
    ) {
        let model = Model { room, tokens };
        let mut more = json!({ "max_tokens": limit, "cache_hit_threshold": 0.5 });
        if logprobs {
            more["logprobs"] = json!(true);
        }
        let mut request = chat(more);
        if why_whole(&request) == Some(OnePieceReason::Limit) || limit.is_some_and(|it| it <= size as usize) {
            return Ok(());
        }
        let all = model.tokens.len().min(limit.unwrap_or(usize::MAX)).min(model.room);
        let whole = model.tokens[..all].concat();
        let ended = all == model.tokens.len() && all < limit.unwrap_or(usize::MAX);

        let (got, asked) = converse(&request, size, &model).expect("it is text");
        let got: Value = serde_json::from_str(&got).expect("JSON");
        let choice = &got["choices"][0];
        prop_assert_eq!(&choice["message"]["content"], &json!(whole));
        prop_assert_eq!(&got["usage"]["completion_tokens"], &json!(all));
        prop_assert_eq!(&got["usage"]["prompt_tokens"], &json!(5));
        prop_assert_eq!(&got["usage"]["total_tokens"], &json!(5 + all));
        prop_assert_eq!(&got["id"], "chatcmpl-0");
        prop_assert_eq!(choice["finish_reason"] == "stop", ended && choice["stop_reason"] == 2);
        let listed = choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
        prop_assert_eq!(listed, if logprobs { all } else { 0 });
        prop_assert!(asked <= all / size as usize + 1, "{} times", asked);

        request["stream"] = json!(true);
        request["stream_options"] = json!({ "include_usage": says_usage });
        let (streamed, _) = converse(&request, size, &model).expect("it is text");
        let mut events = events(&streamed);
        if says_usage {
            let last = events.pop().expect("one more event");
            prop_assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &got["usage"]));
        }
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
        let texts = deltas.clone().filter_map(|delta| delta["content"].as_str());
        prop_assert_eq!(texts.collect::<String>(), whole);
        prop_assert_eq!(deltas.filter(|delta| delta["role"] == "assistant").count(), 1);
        let reasons: Vec<_> = events.iter().map(|it| &it["choices"][0]["finish_reason"]).collect();
        let (last, others) = reasons.split_last().expect("an event");
        prop_assert_eq!(*last, &choice["finish_reason"]);
        prop_assert!(others.iter().all(|reason| reason.is_null()));
        for event in &events {
            prop_assert_eq!(&event["id"], "chatcmpl-0");
            prop_assert_eq!(&event["object"], "chat.completion.chunk");
            prop_assert_eq!(event.get("usage"), says_usage.then_some(&Value::Null));
        }
    }
}
