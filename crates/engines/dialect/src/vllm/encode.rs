//! From an [`Ask`] to vLLM's request bodies.

use super::{Endpoint, Target};
use crate::json::Object;
use crate::sampling::{numbers, seed, token_lists};
use crate::{Ask, Fault, Hand};
use stator_handover::nixl;
use stator_protos::worker::guide::Form;

/// Name of the hint by which the agent's KV tiers know where else KV of the prompt may be. The module
/// that vLLM loads of the agent's passes it on.
const KV_HINT: &str = "stator_hint";

/// Whether the answer can be streamed: a stream has neither the prompt's logprobs nor a prefill's
/// hand-over.
pub(super) fn streams(ask: &Ask) -> bool {
    !matches!(ask.hand, Hand::Prefill(_)) && ask.sampling.prompt_logprobs.is_none()
}

/// Writes the body of a request.
///
/// # Errors
///
/// [`Fault::Invalid`] where two engines together, or this version, cannot serve the request.
pub(super) fn body(ask: &Ask, target: Target, stream: bool) -> Result<Vec<u8>, Fault> {
    if matches!(ask.hand, Hand::Decode(_)) && ask.sampling.prompt_logprobs.is_some() {
        let why = "the prompt is computed by another engine, which does not hand them over";
        return Err(Fault::Invalid(format!("prompt_logprobs: {why}")));
    }
    if target.unguided && ask.sampling.guide.is_some() {
        let why = "vLLM before 0.11 knows it by other names, and would ignore it";
        return Err(Fault::Invalid(format!("guide: {why}")));
    }
    if !target.bounds_thoughts && ask.sampling.thought_limit.is_some() {
        let why = "vLLM needs its --reasoning-parser or --reasoning-config for that";
        return Err(Fault::Invalid(format!("thought_limit: {why}")));
    }
    let mut body = Object::with_room_for(ask.tokens.len());
    match target.endpoint {
        Endpoint::Generate => {
            body.ids("token_ids", &ask.tokens);
            body.object("sampling_params", |body| {
                sampling(body, ask, target);
                // Only ids are asked for, so the engine need not make text.
                body.field("detokenize", false);
            });
            if ask.sampling.guide.is_some() {
                // A form that leaves room for thoughts says so itself, and begins at the first token:
                // an engine with a parser of thoughts would wait for their end.
                body.field("reasoning_ended", true);
            }
        }
        Endpoint::Completions => {
            body.ids("prompt", &ask.tokens);
            sampling(&mut body, ask, target);
            body.field("return_token_ids", true);
            body.field("return_tokens_as_token_ids", true);
        }
    }
    body.optional("model", ask.lora.as_deref());
    body.optional("cache_salt", ask.cache_salt.as_deref());
    // Here smaller is more urgent.
    body.unless("priority", -i64::from(ask.priority), 0);
    match &ask.hand {
        Hand::Whole => {
            if let Some(hint) = ask.kv_hint {
                body.object("kv_transfer_params", |body| body.field(KV_HINT, hint));
            }
        }
        Hand::Canary => {}
        Hand::Prefill(None) => match ask.kv_hint {
            Some(hint) => {
                let mut told = nixl::prefill();
                told[KV_HINT] = hint.into();
                body.raw("kv_transfer_params", &told.to_string());
            }
            None => body.raw("kv_transfer_params", nixl::PREFILL),
        },
        Hand::Prefill(Some(told)) | Hand::Decode(told) => {
            body.raw("kv_transfer_params", told.get());
        }
    }
    body.field("stream", stream);
    if stream {
        body.object("stream_options", |options| options.field("include_usage", true));
    }
    Ok(body.finish())
}

/// Writes every parameter, defaults too: a completion takes an omitted one from the model's own
/// generation configuration.
fn sampling(body: &mut Object, ask: &Ask, target: Target) {
    let given = &*ask.sampling;
    numbers(body, given);
    body.field("top_k", given.top_k);
    // One that nobody asked for slows the whole batch down: requests with a seed are drawn one by
    // one, and none of the batch by the faster kernels.
    body.optional("seed", seed(given).filter(|_| !given.seed_is_drawn));
    token_lists(body, given);
    // A prefill is asked for one token, whatever the answer is to have.
    let most = if matches!(ask.hand, Hand::Prefill(_)) { 1 } else { given.max_tokens };
    body.field("max_tokens", most);
    body.field("min_tokens", given.min_tokens.min(most));
    body.field("ignore_eos", given.ignore_eos);
    body.optional("logprobs", given.logprobs.map(|count| alternatives(count, target)));
    body.optional("prompt_logprobs", given.prompt_logprobs);
    body.optional("thinking_token_budget", given.thought_limit.as_ref().map(|limit| limit.tokens));
    if let Some(form) = given.form() {
        body.object("structured_outputs", |body| match form {
            Form::JsonSchema(schema) => body.field("json", schema),
            Form::JsonObject(_) => body.field("json_object", true),
            Form::Regex(regex) => body.field("regex", regex),
            Form::Choices(choices) => body.field("choice", &choices.texts),
            Form::Grammar(grammar) => body.field("grammar", grammar),
            Form::StructuralTag(tag) => body.field("structural_tag", tag),
        });
    }
}

/// Number of alternatives to request, to get `count`. [`Endpoint::Generate`] counts the chosen
/// token among them even where it is none of the best: one more makes up for it, where the engine
/// is known to allow one more.
fn alternatives(count: u32, target: Target) -> u32 {
    let room = target.max_logprobs.is_some_and(|max| count < max);
    let short = target.endpoint == Endpoint::Generate && count > 0;
    count + u32::from(short && room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{ask, raw};
    use serde_json::{Value, json};
    use stator_protos::worker::{LogitBias, Sampling, ThoughtLimit};
    use std::sync::Arc;

    const GENERATE: Target = Target {
        endpoint: Endpoint::Generate,
        max_logprobs: None,
        unguided: false,
        bounds_thoughts: true,
    };

    fn check(ask: &Ask, endpoint: Endpoint) -> Value {
        let target = Target { endpoint, ..GENERATE };
        serde_json::from_slice(&body(ask, target, streams(ask)).unwrap()).unwrap()
    }

    fn everything() -> Ask {
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.25,
            repetition_penalty: 1.5,
            presence_penalty: -0.5,
            frequency_penalty: 2.0,
            seed: u64::MAX,
            seed_is_drawn: false,
            logit_bias: vec![LogitBias { token_id: 7, bias: -100.0 }],
            pooled: false,
            logprobs: Some(3),
            prompt_logprobs: None,
            min_tokens: 2,
            max_tokens: 9,
            stop_token_ids: vec![3, 4],
            ignore_eos: true,
            guide: Some(Form::any_object().into()),
            thought_limit: Some(ThoughtLimit { tokens: 7, ..ThoughtLimit::default() }),
        };
        Ask {
            sampling: Arc::new(sampling),
            cache_salt: Some("tenant-a".into()),
            lora: Some("style-a".into()),
            priority: 5,
            ..ask(&[1, 2, 3])
        }
    }

    #[test]
    fn all_of_the_sampling_is_said() {
        let params = json!({
            "temperature": 0.5, "top_p": f64::from(0.9_f32), "top_k": 40, "min_p": 0.25,
            "repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 2.0,
            "seed": i64::MAX, "logit_bias": {"7": -100.0}, "max_tokens": 9, "min_tokens": 2,
            "ignore_eos": true, "stop_token_ids": [3, 4], "logprobs": 3, "detokenize": false,
            "structured_outputs": {"json_object": true}, "thinking_token_budget": 7,
        });
        let mut got = check(&everything(), Endpoint::Generate);
        // The shortest digits of a float are not those of the double it converts to.
        got["sampling_params"]["top_p"] = json!(f64::from(0.9_f32));
        assert_eq!(got["sampling_params"], params);
        got["sampling_params"].take();
        assert_eq!(
            got,
            json!({
                "token_ids": [1, 2, 3], "sampling_params": null, "model": "style-a",
                "cache_salt": "tenant-a", "priority": -5, "stream": true, "reasoning_ended": true,
                "stream_options": {"include_usage": true},
            }),
        );
    }

    #[test]
    fn what_a_client_says_of_a_hand_over_has_no_way_to_an_engine() {
        let steering = ["kv_transfer_params", "bootstrap", "data_parallel_rank", "request_id"];
        for endpoint in [Endpoint::Generate, Endpoint::Completions] {
            let got = check(&Ask { rank: Some(1), ..everything() }, endpoint).to_string();
            for name in steering {
                assert!(!got.contains(name), "{name} in {got}");
            }
        }
    }

    #[test]
    fn a_hint_for_the_tiers_is_told_to_who_does_all_of_a_request() {
        let hinted = Ask { kv_hint: Some(7), ..ask(&[1]) };
        for endpoint in [Endpoint::Generate, Endpoint::Completions] {
            assert_eq!(check(&hinted, endpoint)["kv_transfer_params"], json!({"stator_hint": 7}));
        }
        let prefill = Ask { hand: Hand::Prefill(None), ..hinted.clone() };
        let told = &check(&prefill, Endpoint::Generate)["kv_transfer_params"];
        assert_eq!((&told["stator_hint"], &told["do_remote_decode"]), (&json!(7), &json!(true)));
        let canary = Ask { hand: Hand::Canary, ..hinted };
        assert_eq!(check(&canary, Endpoint::Generate).get("kv_transfer_params"), None);
    }

    #[test]
    fn completions_carry_the_same_beside_the_prompt() {
        let got = check(&everything(), Endpoint::Completions);
        assert_eq!(got["prompt"], json!([1, 2, 3]));
        assert_eq!(got["seed"], json!(i64::MAX));
        assert_eq!(got["return_token_ids"], json!(true));
        assert_eq!(got["min_tokens"], json!(2));
        assert_eq!(got["structured_outputs"], json!({"json_object": true}));
        assert_eq!(got.get("sampling_params"), None);
    }

    #[test]
    fn one_more_alternative_is_asked_for_where_the_engine_would_leave_one_out() {
        let target = |endpoint, max_logprobs| Target { endpoint, max_logprobs, ..GENERATE };
        assert_eq!(alternatives(3, target(Endpoint::Generate, Some(20))), 4);
        assert_eq!(alternatives(20, target(Endpoint::Generate, Some(20))), 20);
        assert_eq!(alternatives(0, target(Endpoint::Generate, Some(20))), 0);
        assert_eq!(alternatives(3, target(Endpoint::Generate, None)), 3);
        assert_eq!(alternatives(3, target(Endpoint::Completions, Some(20))), 3);
    }

    #[test]
    fn greedy_requests_have_no_seed_and_a_seed_that_was_drawn_is_not_said() {
        let mut drawn = everything();
        Arc::make_mut(&mut drawn.sampling).seed_is_drawn = true;
        for asked in [ask(&[1]), drawn] {
            assert_eq!(check(&asked, Endpoint::Generate)["sampling_params"].get("seed"), None);
        }
    }

    #[test]
    fn a_prefill_is_one_token_chosen_as_asked_and_is_not_streamed() {
        let prefill = Ask { hand: Hand::Prefill(None), ..everything() };
        let got = check(&prefill, Endpoint::Generate);
        let params = &got["sampling_params"];
        assert_eq!(params["max_tokens"], json!(1));
        assert_eq!(params["min_tokens"], json!(1));
        assert_eq!(params["ignore_eos"], json!(true));
        assert_eq!(params["stop_token_ids"], json!([3, 4]));
        assert_eq!(params["logprobs"], json!(3));
        assert_eq!(got["stream"], json!(false));
        assert_eq!(
            got["kv_transfer_params"],
            json!({
                "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                "remote_block_ids": null, "remote_host": null, "remote_port": null,
            }),
        );
    }

    #[test]
    fn every_form_of_an_answer_has_its_word() {
        let text = || "x\"y".to_owned();
        let forms = [
            (Form::JsonSchema(text()), json!({"json": "x\"y"})),
            (Form::any_object(), json!({"json_object": true})),
            (Form::Regex(text()), json!({"regex": "x\"y"})),
            (Form::one_of(vec![text(), "b".into()]), json!({"choice": ["x\"y", "b"]})),
            (Form::Grammar(text()), json!({"grammar": "x\"y"})),
            (Form::StructuralTag(text()), json!({"structural_tag": "x\"y"})),
        ];
        for (guide, expected) in forms {
            let sampling = Sampling { guide: Some(guide.into()), ..Sampling::neutral() };
            let asked = Ask { sampling: Arc::new(sampling), ..ask(&[1]) };
            let got = check(&asked, Endpoint::Generate);
            assert_eq!(got["sampling_params"]["structured_outputs"], expected);
            let old = Target { unguided: true, ..GENERATE };
            assert!(matches!(body(&asked, old, true), Err(Fault::Invalid(_))));
        }
        assert!(body(&ask(&[1]), Target { unguided: true, ..GENERATE }, true).is_ok());
    }

    #[test]
    fn thoughts_are_bounded_where_the_engine_knows_their_markers() {
        let unknown = Target { bounds_thoughts: false, ..GENERATE };
        let refused = body(&everything(), unknown, true);
        assert!(matches!(refused, Err(Fault::Invalid(why)) if why.starts_with("thought_limit: ")));
        assert_eq!(check(&ask(&[1]), Endpoint::Generate).get("reasoning_ended"), None);
    }

    #[test]
    fn what_decode_is_told_is_passed_on_byte_for_byte() {
        let told = r#"{ "do_remote_prefill": true,"remote_block_ids":[[1, 2]] }"#;
        let decode = Ask { hand: Hand::Decode(raw(told)), ..ask(&[1]) };
        let bytes = body(&decode, GENERATE, true).unwrap();
        assert!(String::from_utf8(bytes).unwrap().contains(told));
    }

    #[test]
    fn prompt_logprobs_are_not_streamed_and_not_shared() {
        let sampling = Sampling { prompt_logprobs: Some(2), ..Sampling::neutral() };
        let mut asked = Ask { sampling: Arc::new(sampling), ..ask(&[1, 2]) };
        assert_eq!(check(&asked, Endpoint::Generate)["stream"], json!(false));
        asked.hand = Hand::Decode(raw("{}"));
        assert!(matches!(body(&asked, GENERATE, true), Err(Fault::Invalid(_))));
    }
}
