use super::*;
use crate::testkit::{ask, decode, fixture, is_fault_of, plainly, recordings};
use proptest::prelude::*;
use serde_json::Value;
use stator_protos::worker::Sampling;

const STREAM: &str = "sglang-0.5.23/main/18-generate-stream.response.sse";
const ANSWER: [u32; 12] = [1072, 542, 3209, 5777, 3662, 5293, 542, 3209, 5600, 7401, 7294, 703];

fn with(sampling: Sampling, prompt: &[u32]) -> Ask {
    Ask { sampling: Arc::new(sampling), ..ask(prompt) }
}

fn whole(asked: &Ask, body: &[u8]) -> Result<Delta, Fault> {
    Decode::new(asked).whole(body)
}

/// The recorded stream as `--incremental-streaming-output` sends it: new tokens alone.
fn incremental() -> Vec<u8> {
    let stream = String::from_utf8(fixture(STREAM)).unwrap();
    let mut events = Vec::new();
    let mut seen = 0;
    for event in stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        let Ok(mut said) = serde_json::from_str::<serde_json::Value>(event) else { continue };
        let ids = said["output_ids"].as_array_mut().unwrap();
        let all = ids.len();
        ids.drain(..seen);
        seen = all;
        events.push(format!("data: {said}\n\n"));
    }
    events.push("data: [DONE]\n\n".into());
    events.concat().into_bytes()
}

#[test]
fn cumulative_and_incremental_streams_are_the_same_answer() {
    for stream in [fixture(STREAM), incremental()] {
        for size in [1, 100, usize::MAX] {
            let delta = decode(Decode::new(&ask(&[1])), &stream, size).unwrap();
            assert_eq!(delta.tokens, ANSWER);
            assert_eq!(delta.cached_tokens, Some(176));
            assert_eq!(delta.finish, Some(Finish::Length));
        }
    }
}

#[test]
fn recorded_answers_come_as_a_whole_too() {
    let body = fixture("sglang-0.5.23/main/17-generate.response.json");
    assert_eq!(whole(&ask(&[1]), &body).unwrap().tokens, ANSWER);
    let body = fixture("sglang-0.5.23/main/21-generate-many-blocks-out.response.json");
    assert_eq!(whole(&ask(&[1]), &body).unwrap().tokens.len(), 100);
    let prefill = Ask { hand: Hand::Prefill(None), ..ask(&[1]) };
    let body = fixture("sglang-0.5.23/pd/02-generate-prefill.response.json");
    let delta = whole(&prefill, &body).unwrap();
    assert_eq!((delta.tokens, delta.finish), (vec![2312], Some(Finish::Length)));
    let body = fixture("sglang-0.5.23/pd/03-generate-decode.response.json");
    assert_eq!(whole(&ask(&[1]), &body).unwrap().tokens[..3], [2312, 1762, 5178]);
    let body = fixture("sglang-0.5.23/dp/01-generate-rank1.response.json");
    assert_eq!(whole(&ask(&[1]), &body).unwrap().tokens, [2076, 4646, 428, 6037]);
}

/// Every recorded answer that has token ids or an error is what a plain reading of it says.
#[test]
fn every_recording_is_read() {
    let (mut answers, mut errors) = (0, 0);
    for (name, body) in recordings("sglang-0.5.23") {
        let Some(said) = plainly(&body) else { continue };
        let last = said.last().unwrap();
        let is_error = !last["error"].is_null() || last["object"] == "error";
        if !is_error && last["output_ids"].is_null() {
            continue;
        }
        let read = if name.ends_with(".sse") {
            decode(Decode::new(&ask(&[1])), &body, usize::MAX)
        } else {
            whole(&ask(&[1]), &body)
        };
        let finish = &last["meta_info"]["finish_reason"];
        match read {
            Ok(delta) => {
                // A stream repeats all that it said.
                let tokens: Vec<u32> = serde_json::from_value(last["output_ids"].clone()).unwrap();
                assert_eq!((delta.tokens, finish["type"].as_str()), (tokens, Some("length")));
                assert_eq!(delta.finish, Some(Finish::Length), "{name}");
                let cached = last["meta_info"]["cached_tokens"].as_u64();
                assert_eq!(delta.cached_tokens.map(u64::from), cached, "{name}");
                answers += 1;
            }
            Err(Fault::Aborted(_)) => assert_eq!(finish["type"], "abort", "{name}"),
            Err(fault) => {
                let code = [&last["code"], &last["error"]["code"], &finish["status_code"]];
                let code = code.into_iter().find_map(Value::as_u64);
                assert!(is_fault_of(&fault, code), "{name}: {fault:?}");
                errors += 1;
            }
        }
    }
    assert_eq!([answers >= 20, errors >= 11], [true; 2], "too few: {answers}, {errors}");
}

#[test]
fn recorded_pairs_stream_the_same_first_token() {
    let read = |name: &str| {
        let stream = fixture(&format!("sglang-0.5.23/pd/{name}.response.sse"));
        decode(Decode::new(&ask(&[1])), &stream, usize::MAX).unwrap()
    };
    let (prefill, decode) = (read("06-generate-stream-prefill"), read("07-generate-stream-decode"));
    assert_eq!(prefill.tokens[..], decode.tokens[..1]);
    assert_eq!((decode.tokens.len(), decode.cached_tokens), (16, Some(80)));
}

#[test]
fn aborts_are_told_from_failures() {
    let body = fixture("sglang-0.5.23/main/32-abort-by-rid-victim.response.json");
    assert_eq!(whole(&ask(&[1]), &body).unwrap_err(), Fault::Aborted("Aborted".into()));
    let stream = fixture("sglang-0.5.23/pd-prefill-died/07-generate-stream-decode.response.sse");
    let fault = decode(Decode::new(&ask(&[1])), &stream, usize::MAX).unwrap_err();
    assert!(matches!(&fault, Fault::Failed(why) if why.contains("handshake")), "{fault:?}");
    let busy = r#"{"output_ids":[],"meta_info":{"completion_tokens":0,"finish_reason":
        {"type":"abort","message":"The request queue is full.","status_code":503}}}"#;
    let fault = whole(&ask(&[1]), busy.as_bytes()).unwrap_err();
    assert_eq!(fault, Fault::Overloaded("The request queue is full.".into()));
}

#[test]
fn a_stream_that_was_cut_is_a_fault() {
    let stream = fixture("sglang-0.5.23/main/31-abort-stream-cut.response.sse");
    let fault = decode(Decode::new(&ask(&[1])), &stream, usize::MAX).unwrap_err();
    assert!(matches!(fault, Fault::Failed(_)));
}

#[test]
fn errors_in_both_shapes_are_faults() {
    let check = |body: &str| whole(&ask(&[1]), body.as_bytes()).unwrap_err();
    let error = r#"{"error":{"message":"no rank","code":400}}"#;
    assert_eq!(check(error), Fault::Invalid("no rank".into()));
    assert_eq!(check(r#"{"error":{"message":"x"}}"#), Fault::Failed("x".into()));
    let error = r#"{"object":"error","message":"full","type":"x","param":null,"code":503}"#;
    assert_eq!(check(error), Fault::Overloaded("full".into()));
}

#[test]
fn a_stop_is_named_where_its_token_is_the_last() {
    let check = |ids: &str, total: usize, matched: &str| {
        let body = format!(
            r#"{{"output_ids":{ids},"meta_info":{{"completion_tokens":{total},
                "finish_reason":{{"type":"stop","matched":{matched}}}}}}}"#
        );
        whole(&ask(&[1]), body.as_bytes()).unwrap().finish
    };
    assert_eq!(check("[5,7]", 2, "7"), Some(Finish::Stop(Some(7))));
    assert_eq!(check("[5]", 1, "7"), Some(Finish::Stop(None)));
    assert_eq!(check("[5]", 1, "\"x\""), Some(Finish::Stop(None)));
    assert_eq!(check("[5]", 1, "null"), Some(Finish::Stop(None)));
}

#[test]
fn counts_that_do_not_fit_are_a_fault() {
    for (ids, total) in [("[1,2]", "3"), ("[1,2]", "1"), ("[]", "1"), ("[1]", "null")] {
        let body = format!(
            r#"{{"output_ids":{ids},"meta_info":{{"completion_tokens":{total},
                "finish_reason":{{"type":"length"}}}}}}"#
        );
        let answer = whole(&ask(&[1]), body.as_bytes());
        assert!(matches!(answer, Err(Fault::Failed(_))), "{body}: {answer:?}");
    }
}

#[test]
fn recorded_logprobs_are_those_of_the_tokens() {
    let body = fixture("sglang-0.5.23/main/19-generate-logprob.response.json");
    let asked = with(Sampling { logprobs: Some(1), ..Sampling::neutral() }, &[1]);
    let entry = |token, logprob| TokenLogprobs { token, logprob, top: vec![(token, logprob)] };
    let expected = [entry(1072, -1.817_177_9), entry(542, -1.982_787_7)];
    assert_eq!(whole(&asked, &body).unwrap().logprobs, expected);
    assert_eq!(whole(&ask(&[1]), &body).unwrap().logprobs, []);
}

#[test]
fn prompt_logprobs_begin_with_the_second_token() {
    let sampling = Sampling { prompt_logprobs: Some(1), ..Sampling::neutral() };
    let body = r#"{"output_ids":[9],"meta_info":{"completion_tokens":1,
        "finish_reason":{"type":"length","length":1},
        "input_token_logprobs":[[null,3,null],[-3.0,4,null],[-0.25,5,null]],
        "input_top_logprobs":[null,[[-0.5,8,null]],[[-0.25,5,null]]]}}"#;
    let expected = [
        TokenLogprobs { token: 4, logprob: -3.0, top: vec![(8, -0.5)] },
        TokenLogprobs { token: 5, logprob: -0.25, top: vec![(5, -0.25)] },
    ];
    let asked = with(sampling.clone(), &[3, 4, 5]);
    assert_eq!(whole(&asked, body.as_bytes()).unwrap().prompt_logprobs, expected);
    for prompt in [&[3, 4, 6][..], &[2, 3, 4, 5]] {
        let other = whole(&with(sampling.clone(), prompt), body.as_bytes());
        assert!(matches!(other, Err(Fault::Failed(_))), "{other:?}");
    }
}

proptest! {
    #[test]
    fn damaged_streams_are_faults_or_answers_and_never_panic(
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20),
        size in 1_usize..200,
    ) {
        let mut stream = fixture(STREAM);
        let len = stream.len();
        for (place, byte) in changes {
            stream[place % len] = byte;
        }
        let sampling = Sampling { logprobs: Some(1), ..Sampling::neutral() };
        for asked in [ask(&[1]), with(sampling, &[1])] {
            if let Ok(delta) = decode(Decode::new(&asked), &stream, size) {
                prop_assert!(delta.finish.is_some());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_answer(bytes: Vec<u8>) {
        prop_assert!(whole(&ask(&[1]), &bytes).is_err());
    }
}
