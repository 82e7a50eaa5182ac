use super::*;
use crate::testkit::{ask, decode, fixture, is_fault_of, plainly, recordings};
use proptest::prelude::*;
use serde_json::Value;
use stator_protos::worker::Sampling;

const STREAM: &str = "vllm-0.32.0/main/31-generate-tokens-stream.response.sse";

fn with(sampling: Sampling, prompt: &[u32]) -> Ask {
    Ask { sampling: Arc::new(sampling), ..ask(prompt) }
}

fn check(asked: &Ask, events: &[&str]) -> Result<Delta, Fault> {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    decode(Decode::new(asked), body.as_bytes(), usize::MAX)
}

fn whole(asked: &Ask, body: &str) -> Result<Delta, Fault> {
    Decode::new(asked).whole(body.as_bytes())
}

#[test]
fn a_recorded_stream_is_read_however_it_is_cut() {
    for size in [1, 7, 100, usize::MAX] {
        let delta = decode(Decode::new(&ask(&[1])), &fixture(STREAM), size).unwrap();
        assert_eq!(delta.tokens, [1495, 3136, 2012, 6420]);
        assert_eq!(delta.cached_tokens, Some(32));
        assert_eq!(delta.finish, Some(Finish::Length));
    }
}

#[test]
fn recorded_completions_have_the_same_answers() {
    let stream = fixture("vllm-0.32.0/main/24-completion-stream-token-ids.response.sse");
    let delta = decode(Decode::new(&ask(&[1])), &stream, usize::MAX).unwrap();
    let again = fixture("vllm-0.32.0/main/22-completion-token-ids-in-again.response.json");
    let again = Decode::new(&ask(&[1])).whole(&again).unwrap();
    assert_eq!(delta.tokens.len(), 12);
    assert_eq!(delta.tokens, again.tokens);
    assert_eq!((delta.finish, delta.cached_tokens), (again.finish, again.cached_tokens));
}

#[test]
fn an_aborted_answer_is_a_fault_on_both_endpoints() {
    for name in ["46-abort-generate-victim", "49-abort-completion-victim"] {
        let body = fixture(&format!("vllm-0.32.0/main/{name}.response.json"));
        let mut body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        // The completion was recorded without ids, which the dialect always asks for.
        body["choices"][0]["token_ids"] = serde_json::json!([1]);
        let answer = Decode::new(&ask(&[1])).whole(body.to_string().as_bytes());
        assert!(matches!(answer, Err(Fault::Aborted(_))), "{name}: {answer:?}");
    }
}

#[test]
fn what_a_prefill_hands_over_is_kept_byte_for_byte() {
    let body = fixture("vllm-0.32.0/pd-nixl/19-generate-prefill.response.json");
    let prefill = Ask { hand: Hand::Prefill(None), ..ask(&[1]) };
    let delta = Decode::new(&prefill).whole(&body).unwrap();
    let handover = delta.handover.unwrap();
    assert!(handover.get().starts_with(r#"{"do_remote_prefill":true,"#));
    assert!(String::from_utf8(body).unwrap().contains(handover.get()));
    assert_eq!(delta.tokens, [7015]);
}

#[test]
fn a_prefill_that_its_first_token_ends_is_an_answer() {
    let prefill = Ask { hand: Hand::Prefill(None), ..ask(&[1]) };
    let stopped = br#"{"choices":[{"token_ids":[2],"finish_reason":"stop"}]}"#;
    let delta = Decode::new(&prefill).whole(stopped).unwrap();
    assert_eq!((delta.tokens, delta.finish), (vec![2], Some(Finish::Stop(Some(2)))));
    assert!(delta.handover.is_none());
}

#[test]
fn the_first_token_of_a_prefill_of_several_groups_is_kept() {
    let prefill = Ask { hand: Hand::Prefill(None), ..ask(&[1]) };
    let body = fixture("vllm-0.32.0/pd-nixl/19-generate-prefill.response.json");
    let body = String::from_utf8(body).unwrap();
    let groups = body.replacen("\"remote_block_ids\":[", "\"remote_block_ids\":[[1],", 1);
    assert_ne!(groups, body);
    let delta = Decode::new(&prefill).whole(groups.as_bytes()).unwrap();
    assert!(delta.handover.is_some());
    assert_eq!(delta.tokens, [0; 0]);
}

#[test]
fn a_prefill_that_hands_nothing_over_is_a_fault() {
    // A stream loses it, and an engine without a connector has none.
    let prefill = Ask { hand: Hand::Prefill(None), ..ask(&[1]) };
    let body = fixture("vllm-0.32.0/main/30-generate-tokens.response.json");
    assert!(matches!(Decode::new(&prefill).whole(&body), Err(Fault::Failed(_))));
    assert!(Decode::new(&ask(&[1])).whole(&body).is_ok());
}

#[test]
fn recorded_halves_of_pairs_begin_with_the_same_token() {
    let read = |name: &str, hand: Hand| {
        let body = fixture(&format!("vllm-0.32.0/{name}.response.json"));
        Decode::new(&Ask { hand, ..ask(&[1]) }).whole(&body).unwrap().tokens
    };
    let told = || crate::testkit::raw("{}");
    let prefill = read("pd-mooncake/01-completion-prefill", Hand::Prefill(Some(told())));
    let decode = read("pd-mooncake/02-completion-decode", Hand::Decode(told()));
    assert_eq!((prefill, decode.len()), (vec![2312], 16));
    assert_eq!(decode[..3], [2312, 1762, 5178]);
    // Two connectors, one answer.
    assert_eq!(read("pd-nixl/01-completion-decode", Hand::Decode(told())), decode);
    let again = read("pd-nixl/21-generate-decode-second-use", Hand::Decode(told()));
    assert_eq!(again, [7015, 5555, 3821, 7250, 823, 5314, 3884, 586]);
}

#[test]
fn a_recorded_prefill_that_was_streamed_hands_nothing_over() {
    let prefill = Ask { hand: Hand::Prefill(None), ..ask(&[1]) };
    let stream = fixture("vllm-0.32.0/pd-nixl/22-prefill-streamed.response.sse");
    let delta = decode(Decode::new(&prefill), &stream, usize::MAX).unwrap();
    assert_eq!((delta.tokens, delta.finish), (vec![3933], Some(Finish::Length)));
    assert!(delta.handover.is_none());
}

/// Every recorded answer that has token ids or an error is what a plain reading of it says.
#[test]
fn every_recording_is_read() {
    let (mut answers, mut errors, mut handovers) = (0, 0, 0);
    for (name, body) in recordings("vllm-0.32.0") {
        let Some(said) = plainly(&body) else { continue };
        let last = said.last().unwrap();
        let of_choice = |event: &Value| event["choices"][0]["token_ids"].clone();
        let ids = |event| serde_json::from_value::<Vec<u32>>(of_choice(event)).ok();
        let is_error = !last["error"].is_null();
        if !is_error && !said.iter().any(|event| ids(event).is_some()) {
            continue;
        }
        let handover = last["kv_transfer_params"].as_object();
        let hand = if handover.is_some() { Hand::Prefill(None) } else { Hand::Whole };
        let decoder = Decode::new(&Ask { hand, ..ask(&[1]) });
        let read = if name.ends_with(".sse") {
            decode(decoder, &body, usize::MAX)
        } else {
            decoder.whole(&body)
        };
        let mut latest = said.iter().rev();
        let finish = latest.find_map(|event| event["choices"][0]["finish_reason"].as_str());
        match read {
            Ok(delta) => {
                let tokens: Vec<u32> = said.iter().filter_map(ids).flatten().collect();
                assert_eq!((delta.tokens, finish), (tokens, Some("length")), "{name}");
                assert_eq!(delta.finish, Some(Finish::Length), "{name}");
                let cached = &last["usage"]["prompt_tokens_details"]["cached_tokens"];
                assert_eq!(delta.cached_tokens.map(u64::from), cached.as_u64(), "{name}");
                let told = delta.handover.map(|told| serde_json::from_str(told.get()).unwrap());
                assert_eq!(told.as_ref(), handover, "{name}");
                handovers += usize::from(handover.is_some());
                answers += 1;
            }
            Err(Fault::Aborted(_)) => assert_eq!(finish, Some("abort"), "{name}"),
            Err(fault) => {
                assert!(is_fault_of(&fault, last["error"]["code"].as_u64()), "{name}: {fault:?}");
                errors += 1;
            }
        }
    }
    let all = [answers >= 61, errors >= 11, handovers >= 9];
    assert_eq!(all, [true; 3], "too few: {answers}, {errors}, {handovers}");
}

#[test]
fn what_kills_an_engine_is_its_fault() {
    let report = fixture("vllm-0.32.0/pd-nixl-hazards/report.json");
    let report: Vec<Value> = serde_json::from_slice(&report).unwrap();
    let killed: Vec<_> = report.iter().filter(|case| case["status"] == 500).collect();
    assert_eq!(killed.len(), 2);
    for case in killed {
        let fault = whole(&ask(&[1]), case["body"].as_str().unwrap()).unwrap_err();
        assert!(matches!(&fault, Fault::Failed(why) if why.starts_with("EngineCore")), "{fault:?}");
    }
}

#[test]
fn the_last_token_is_the_one_that_stopped_it() {
    let delta = check(
        &ask(&[1]),
        &[
            r#"{"choices":[{"index":0,"token_ids":[5,6],"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"token_ids":[],"finish_reason":"stop","stop_reason":6}]}"#,
            "[DONE]",
        ],
    );
    let delta = delta.unwrap();
    assert_eq!(delta.tokens, [5, 6]);
    assert_eq!(delta.finish, Some(Finish::Stop(Some(6))));
    assert_eq!(delta.cached_tokens, None);
}

#[test]
fn an_error_in_a_stream_is_the_fault_that_its_code_says() {
    let token = r#"{"choices":[{"index":0,"token_ids":[5]}]}"#;
    let check = |error: &str| check(&ask(&[1]), &[token, error, "[DONE]"]).unwrap_err();
    let failed = Fault::Failed("Internal server error".into());
    let error = r#"{"error":{"message":"Internal server error","type":"x","code":500}}"#;
    assert_eq!(check(error), failed);
    assert_eq!(check(r#"{"error":{"message":"Internal server error"}}"#), failed);
    let error = r#"{"error":{"message":"busy","code":503}}"#;
    assert_eq!(check(error), Fault::Overloaded("busy".into()));
    assert!(matches!(check("{"), Fault::Failed(_)));
    assert!(matches!(check(r#"{"choices":[{"token_ids":[-1]}]}"#), Fault::Failed(_)));
}

#[test]
fn an_engine_that_sends_no_ids_is_not_understood_silently() {
    let text = r#"{"choices":[{"index":0,"text":"gist","token_ids":null}]}"#;
    assert!(matches!(check(&ask(&[1]), &[text]), Err(Fault::Failed(_))));
}

#[test]
fn logprobs_are_read_in_all_their_shapes() {
    let sampling = Sampling { logprobs: Some(2), ..Sampling::neutral() };
    let expected = [
        TokenLogprobs { token: 7, logprob: -0.5, top: vec![(7, -0.5), (9, -1.5)] },
        TokenLogprobs { token: 8, logprob: -4.0, top: vec![(5, -0.25), (6, -2.0)] },
    ];
    let ids = r#"{"content":[
        {"token_id":7,"logprob":-0.5,"rank":1,"top_logprobs":[
            {"token_id":7,"logprob":-0.5,"rank":1},{"token_id":9,"logprob":-1.5,"rank":2}]},
        {"token_id":8,"logprob":-4.0,"rank":4,"top_logprobs":[
            {"token_id":8,"logprob":-4.0,"rank":4},{"token_id":5,"logprob":-0.25,"rank":1},
            {"token_id":6,"logprob":-2.0,"rank":2}]}]}"#;
    let placeholders = r#"{"content":[
        {"token":"token_id:7","logprob":-0.5,"top_logprobs":[
            {"token":"token_id:7","logprob":-0.5},{"token":"token_id:9","logprob":-1.5}]},
        {"token":"token_id:8","logprob":-4.0,"bytes":null,"top_logprobs":[
            {"token":"token_id:8","logprob":-4.0},{"token":"token_id:5","logprob":-0.25},
            {"token":"token_id:6","logprob":-2.0}]}]}"#;
    let completion = r#"{"text_offset":[0,1],"token_logprobs":[-0.5,-4.0],
        "tokens":["token_id:7","token_id:8"],"top_logprobs":[
            {"token_id:7":-0.5,"token_id:9":-1.5},
            {"token_id:8":-4.0,"token_id:5":-0.25,"token_id:6":-2.0}]}"#;
    for logprobs in [ids, placeholders, completion] {
        let chunk = r#"{"choices":[{"token_ids":[7,8],"finish_reason":"length","logprobs":LP}]}"#;
        let asked = with(sampling.clone(), &[1]);
        let delta = whole(&asked, &chunk.replace("LP", logprobs)).unwrap();
        assert_eq!(delta.logprobs, expected, "{logprobs}");
        let short = chunk.replace("[7,8]", "[7,8,9]").replace("LP", logprobs);
        assert!(matches!(whole(&asked, &short), Err(Fault::Failed(_))));
    }
}

#[test]
fn recorded_logprobs_of_both_endpoints_are_alike() {
    let sampling = Sampling { logprobs: Some(2), ..Sampling::neutral() };
    let read = |name: &str| {
        let stream = fixture(&format!("vllm-0.32.0/logprobs/{name}-stream.response.sse"));
        decode(Decode::new(&with(sampling.clone(), &[1])), &stream, usize::MAX).unwrap()
    };
    let (generated, completed) = (read("generate"), read("completion"));
    assert_eq!(generated.tokens, [5683, 916, 2711]);
    assert_eq!(generated.tokens, completed.tokens);
    assert_eq!(generated.logprobs[..2], completed.logprobs[..2]);
    let best = [(7057, -1.654_279_8), (2045, -3.216_779_7)];
    // The third token is the 11th best. A completion has the two best beside it, the other
    // endpoint counts it as one of the two.
    assert_eq!(completed.logprobs[2].top, best);
    assert_eq!(generated.logprobs[2].top, best[..1]);
}

#[test]
fn recorded_prompt_logprobs_of_both_endpoints_are_alike() {
    let sampling = Sampling { prompt_logprobs: Some(2), logprobs: Some(0), ..Sampling::neutral() };
    let read = |name: &str| {
        let body = fixture(&format!("vllm-0.32.0/logprobs/{name}-prompt.response.json"));
        Decode::new(&with(sampling.clone(), &[100, 101, 102])).whole(&body).unwrap()
    };
    let (generated, completed) = (read("generate"), read("completion"));
    assert_eq!(generated.prompt_logprobs, completed.prompt_logprobs);
    assert_eq!(generated.logprobs, completed.logprobs);
    assert_eq!(generated.logprobs[0].top, []);
    let second = &generated.prompt_logprobs[0];
    assert_eq!((second.token, second.top[0].0, second.top[1].0), (101, 1007, 73));
    assert_eq!(generated.prompt_logprobs.len(), 2);
}

#[test]
fn prompt_logprobs_begin_with_the_second_token() {
    let sampling = Sampling { prompt_logprobs: Some(1), ..Sampling::neutral() };
    let asked = with(sampling, &[3, 4, 5]);
    let body = r#"{"choices":[{"token_ids":[9],"finish_reason":"length"}],"prompt_logprobs":[null,
        {"4":{"logprob":-3.0,"rank":2,"decoded_token":"x"},"8":{"logprob":-0.5,"rank":1}},
        {"5":{"logprob":-0.25,"rank":1,"decoded_token":null}}]}"#;
    let expected = [
        TokenLogprobs { token: 4, logprob: -3.0, top: vec![(8, -0.5)] },
        TokenLogprobs { token: 5, logprob: -0.25, top: vec![(5, -0.25)] },
    ];
    assert_eq!(whole(&asked, body).unwrap().prompt_logprobs, expected);
    let missing = body.replace("\"5\":", "\"6\":");
    assert!(matches!(whole(&asked, &missing), Err(Fault::Failed(_))));
    let short = body.replace("[null,", "[");
    assert!(matches!(whole(&asked, &short), Err(Fault::Failed(_))));
}

/// A recorded stream with some bytes of it changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let stream = fixture(STREAM);
    let changes = proptest::collection::vec((0..stream.len(), any::<u8>()), 1..20);
    changes.prop_map(move |changes| {
        let mut stream = stream.clone();
        for (place, byte) in changes {
            stream[place] = byte;
        }
        stream
    })
}

proptest! {
    #[test]
    fn damaged_streams_are_faults_or_answers_and_never_panic(
        stream in damaged(),
        size in 1_usize..200,
    ) {
        let sampling = Sampling { logprobs: Some(1), ..Sampling::neutral() };
        for asked in [ask(&[1]), with(sampling, &[1])] {
            if let Ok(delta) = decode(Decode::new(&asked), &stream, size) {
                prop_assert!(delta.finish.is_some());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_answer(bytes: Vec<u8>) {
        prop_assert!(Decode::new(&ask(&[1])).whole(&bytes).is_err());
        prop_assert!(decode(Decode::new(&ask(&[1])), &bytes, 3).is_err());
    }
}
