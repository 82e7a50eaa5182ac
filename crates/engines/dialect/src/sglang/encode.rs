//! From an [`Ask`] to the body of `/generate`.

use super::{EngineFacts, SaltField};
use crate::guide::{self, ANY_OBJECT};
use crate::json::Object;
use crate::request::UNSALTED;
use crate::sampling::{numbers, refuse_thought_limit, seed, token_lists};
use crate::{Ask, Fault};
use stator_handover::sglang::Bootstrap;
use stator_protos::worker::Sampling;
use stator_protos::worker::guide::Form;

/// Whether the answer is streamed. The prompt's logprobs come once, so those answers are not. A
/// prefill's one token is: without a stream the engine looks for a client that has gone only every
/// 4 s, and its half of the pair waits until then.
pub(super) fn streams(ask: &Ask) -> bool {
    ask.sampling.prompt_logprobs.is_none()
}

/// Writes the body of a request.
///
/// # Errors
///
/// [`Fault::Invalid`] where two engines together cannot serve the request, or the engine cannot
/// separate its prefixes.
pub(super) fn body(
    ask: &Ask,
    bootstrap: Option<&Bootstrap>,
    facts: &EngineFacts,
    stream: bool,
) -> Result<Vec<u8>, Fault> {
    let given = &ask.sampling;
    if bootstrap.is_some() && given.prompt_logprobs.is_some() {
        let why = "the prompt is computed by another engine, which does not hand them over";
        return Err(Fault::Invalid(format!("prompt_logprobs: {why}")));
    }
    refuse_thought_limit(given)?;
    let mut body = Object::with_room_for(ask.tokens.len());
    body.ids("input_ids", &ask.tokens);
    body.object("sampling_params", |body| sampling(body, given));
    body.field("rid", &ask.id);
    body.field("stream", stream);
    if given.logprobs.is_some() || given.prompt_logprobs.is_some() {
        body.field("return_logprob", true);
        // One number for both.
        body.unless("top_logprobs_num", given.logprobs.max(given.prompt_logprobs), Some(0));
        // -1 is the answer alone.
        body.field("logprob_start_len", if given.prompt_logprobs.is_some() { 0 } else { -1 });
    }
    body.optional("routed_dp_rank", ask.rank);
    let priority = i64::from(ask.priority);
    body.unless("priority", if facts.low_priority_first { -priority } else { priority }, 0);
    if let Some(salt) = &ask.cache_salt {
        body.field(salt_field(facts.salt)?, salt);
    }
    body.optional("lora_path", ask.lora.as_deref());
    if let Some(bootstrap) = bootstrap {
        body.field("bootstrap_host", &bootstrap.bootstrap_host);
        body.field("bootstrap_port", bootstrap.bootstrap_port);
        body.field("bootstrap_room", bootstrap.bootstrap_room);
        body.optional("disagg_prefill_dp_rank", bootstrap.disagg_prefill_dp_rank);
    }
    Ok(body.finish())
}

/// The name of the field that separates prefixes.
///
/// # Errors
///
/// [`Fault::Invalid`] where there is none.
pub(super) fn salt_field(field: SaltField) -> Result<&'static str, Fault> {
    match field {
        SaltField::CacheSalt => Ok("cache_salt"),
        SaltField::ExtraKey => Ok("extra_key"),
        SaltField::Missing => Err(Fault::Invalid(UNSALTED.into())),
    }
}

fn sampling(body: &mut Object, given: &Sampling) {
    body.field("max_new_tokens", given.max_tokens);
    body.field("min_new_tokens", given.min_tokens);
    numbers(body, given);
    body.field("top_k", if given.top_k == 0 { -1 } else { i64::from(given.top_k) });
    body.field("ignore_eos", given.ignore_eos);
    body.optional("sampling_seed", seed(given));
    token_lists(body, given);
    match given.form() {
        None => {}
        Some(Form::JsonSchema(schema)) => body.field("json_schema", schema),
        Some(Form::JsonObject(_)) => body.field("json_schema", ANY_OBJECT),
        Some(Form::Regex(regex)) => body.field("regex", regex),
        Some(Form::Choices(choices)) => body.field("regex", guide::one_of(&choices.texts)),
        Some(Form::Grammar(grammar)) => body.field("ebnf", grammar),
        Some(Form::StructuralTag(tag)) => body.field("structural_tag", tag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ask;
    use serde_json::{Value, json};
    use stator_protos::worker::LogitBias;
    use std::sync::Arc;

    fn check(ask: &Ask, bootstrap: Option<&Bootstrap>, low_priority_first: bool) -> Value {
        let facts = EngineFacts { low_priority_first, ..EngineFacts::default() };
        let body = body(ask, bootstrap, &facts, streams(ask)).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    fn everything() -> Ask {
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.25,
            min_p: 0.125,
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
            guide: Some(Form::Regex("a|b".into()).into()),
            thought_limit: None,
        };
        Ask {
            sampling: Arc::new(sampling),
            cache_salt: Some("tenant-a".into()),
            lora: Some("style-a".into()),
            priority: 5,
            rank: Some(1),
            ..ask(&[1, 2, 3])
        }
    }

    #[test]
    fn all_of_the_request_is_said() {
        let expected = json!({
            "input_ids": [1, 2, 3], "rid": "request-1", "stream": true, "return_logprob": true,
            "top_logprobs_num": 3, "logprob_start_len": -1, "routed_dp_rank": 1, "priority": 5,
            "cache_salt": "tenant-a", "lora_path": "style-a",
            "sampling_params": {
                "temperature": 0.5, "top_p": 0.25, "top_k": 40, "min_p": 0.125,
                "repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 2.0,
                "sampling_seed": i64::MAX, "logit_bias": {"7": -100.0}, "max_new_tokens": 9,
                "min_new_tokens": 2, "ignore_eos": true, "stop_token_ids": [3, 4], "regex": "a|b",
            },
        });
        assert_eq!(check(&everything(), None, false), expected);
        assert_eq!(check(&everything(), None, true)["priority"], json!(-5));
    }

    #[test]
    fn a_salt_has_the_name_that_the_version_knows() {
        let asked = Ask { cache_salt: Some("s".into()), ..ask(&[1]) };
        let body = |salt| {
            let body = body(&asked, None, &EngineFacts { salt, ..EngineFacts::default() }, true)?;
            Ok::<Value, Fault>(serde_json::from_slice(&body).unwrap())
        };
        let salted = body(SaltField::CacheSalt).unwrap();
        assert_eq!((&salted["cache_salt"], salted.get("extra_key")), (&json!("s"), None));
        let older = body(SaltField::ExtraKey).unwrap();
        assert_eq!((&older["extra_key"], older.get("cache_salt")), (&json!("s"), None));
        assert!(matches!(body(SaltField::Missing), Err(Fault::Invalid(_))));
    }

    #[test]
    fn every_form_of_an_answer_has_its_word() {
        let text = || "x\"y".to_owned();
        let forms = [
            (Form::JsonSchema(text()), ("json_schema", "x\"y")),
            (Form::any_object(), ("json_schema", "{\"type\":\"object\"}")),
            (Form::one_of(vec!["a.".into(), "b".into()]), ("regex", "(a\\.|b)")),
            (Form::Grammar(text()), ("ebnf", "x\"y")),
            (Form::StructuralTag(text()), ("structural_tag", "x\"y")),
        ];
        for (guide, (field, value)) in forms {
            let sampling = Sampling { guide: Some(guide.into()), ..Sampling::neutral() };
            let got = check(&Ask { sampling: Arc::new(sampling), ..ask(&[1]) }, None, false);
            assert_eq!(got["sampling_params"][field], json!(value));
        }
    }

    #[test]
    fn defaults_are_said_and_what_was_not_asked_for_is_not() {
        let got = check(&ask(&[1]), None, false);
        assert_eq!(got["sampling_params"]["top_k"], json!(-1));
        for absent in ["return_logprob", "priority", "cache_salt", "bootstrap_room"] {
            assert_eq!(got.get(absent), None, "{absent}");
        }
        assert_eq!(got["sampling_params"].get("sampling_seed"), None);
    }

    #[test]
    fn the_triple_of_a_pair_is_sent_and_the_rank_of_its_prompt() {
        let bootstrap = Bootstrap {
            bootstrap_host: "h".into(),
            bootstrap_port: 8998,
            bootstrap_room: 7,
            disagg_prefill_dp_rank: None,
        };
        let got = check(&ask(&[1]), Some(&bootstrap), false);
        let triple = (&got["bootstrap_host"], &got["bootstrap_port"], &got["bootstrap_room"]);
        assert_eq!(triple, (&json!("h"), &json!(8998), &json!(7)));
        assert_eq!(got.get("disagg_prefill_dp_rank"), None);
        let ranked = Bootstrap { disagg_prefill_dp_rank: Some(1), ..bootstrap };
        let got = check(&ask(&[1]), Some(&ranked), false);
        assert_eq!(got["disagg_prefill_dp_rank"], json!(1));
        let sampling = Sampling { prompt_logprobs: Some(0), ..Sampling::neutral() };
        let asked = Ask { sampling: Arc::new(sampling), ..ask(&[1]) };
        let refused = body(&asked, Some(&ranked), &EngineFacts::default(), false);
        assert!(matches!(refused, Err(Fault::Invalid(_))));
        let alone = check(&asked, None, false);
        assert_eq!((&alone["logprob_start_len"], &alone["stream"]), (&json!(0), &json!(false)));
    }
}
