//! From an [`Ask`] to a completion that the server's strict schema takes.

use super::api::Api;
use super::pairing::{self, Context};
use crate::guide;
use crate::json::{Entries, Object};
use crate::request::UNSALTED;
use crate::sampling::{refuse_thought_limit, seed, token_lists};
use crate::{Ask, Fault, Hand};
use serde_json::value::RawValue;
use stator_protos::sampling::Number;
use stator_protos::worker::Sampling;
use stator_protos::worker::guide::Form;

/// Writes the body of a request.
///
/// # Errors
///
/// [`Fault::Invalid`] for anything that a completion cannot express: an omission would change the
/// answer, or share prefixes that should be separate.
pub(super) fn body(ask: &Ask, model: &str, api: Api, stream: bool) -> Result<Vec<u8>, Fault> {
    refuse_the_unsayable(ask, api)?;
    refuse_thought_limit(&ask.sampling)?;
    let mut body = Object::with_room_for(ask.tokens.len());
    body.field("model", model);
    body.ids("prompt", &ask.tokens);
    sampling(&mut body, &ask.sampling);
    if let Some(guide) = ask.sampling.form() {
        form(&mut body, guide);
    }
    body.optional("cache_salt", ask.cache_salt.as_deref());
    if api.priority && ask.priority != 0 {
        body.field("priority", priority(ask.priority));
    }
    // With text there would be no ids.
    body.field("detokenize", false);
    match &ask.hand {
        Hand::Whole | Hand::Canary => {}
        Hand::Prefill(told) => {
            let told = told.as_deref().map(Context::read).transpose()?;
            body.object("disaggregated_params", |params| {
                params.field("request_type", "context_only");
                let id = told.as_ref().map(|told| told.disagg_request_id);
                params.field("disagg_request_id", id.unwrap_or_else(|| shared_id(&ask.id)));
                params.optional("schedule_style", told.map(|told| told.schedule_style));
            });
        }
        Hand::Decode(told) => body.raw("disaggregated_params", &generation_only(told)?),
    }
    body.field("stream", stream);
    if stream {
        body.object("stream_options", |options| options.field("include_usage", true));
    }
    Ok(body.finish())
}

fn sampling(body: &mut Object, given: &Sampling) {
    body.field("max_tokens", given.max_tokens);
    for number in Number::ALL {
        let value = number.of(given);
        // These two have defaults of the model's own, the others the API's.
        if matches!(number, Number::Temperature | Number::TopP) || value != number.default() {
            body.field(number.name(), value);
        }
    }
    body.unless("top_k", given.top_k, 0);
    body.unless("min_tokens", given.min_tokens, 0);
    body.unless("ignore_eos", given.ignore_eos, false);
    body.optional("seed", seed(given));
    token_lists(body, given);
    // 0 would mean none.
    body.optional("logprobs", given.logprobs.map(|_| 1));
}

/// Priority on the engine's scale: 0 to 1, with 0.5 as usual. Servers without the field never see
/// it.
fn priority(given: i32) -> f64 {
    (0.5 + f64::from(given) / 2e6).clamp(0.0, 1.0)
}

/// Writes the form of the answer; only servers with a back-end for guided decoding accept it.
fn form(body: &mut Object, form: &Form) {
    let of = |body: &mut Object, kind: &str, fill: &dyn Fn(&mut Object)| {
        body.object("response_format", |body| {
            body.field("type", kind);
            fill(body);
        });
    };
    match form {
        Form::JsonSchema(schema) => of(body, "json", &|body| body.raw("schema", schema)),
        Form::JsonObject(_) => of(body, "json_object", &|_| {}),
        Form::Regex(regex) => of(body, "regex", &|body| body.field("regex", regex)),
        Form::Choices(choices) => {
            of(body, "regex", &|body| body.field("regex", guide::one_of(&choices.texts)));
        }
        Form::Grammar(grammar) => of(body, "ebnf", &|body| body.field("ebnf", grammar)),
        Form::StructuralTag(tag) => body.raw("response_format", tag),
    }
}

fn refuse_the_unsayable(ask: &Ask, api: Api) -> Result<(), Fault> {
    let unsayable = [
        (ask.cache_salt.is_some() && !api.cache_salt, UNSALTED),
        (ask.lora.is_some(), "lora: adapters are not served by name here"),
        (ask.rank.is_some_and(|rank| rank > 0), "rank: the engine chooses it here"),
        (ask.sampling.logprobs.is_some_and(|n| n > 0), "logprobs: alternatives have no ids here"),
        (ask.sampling.prompt_logprobs.is_some(), "prompt_logprobs: there are none here"),
    ];
    match unsayable.iter().find(|(asked, _)| *asked) {
        Some((_, why)) => Err(Fault::Invalid((*why).into())),
        None => Ok(()),
    }
}

/// Number by which both engines know the request, derived from its id.
fn shared_id(id: &str) -> u64 {
    // FNV-1a: ids are few at a time, and none is an attacker's.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    pairing::number(hash)
}

/// Hand-over parameters for the generation server: those of the context server, byte for byte, with
/// another request type.
fn generation_only(told: &RawValue) -> Result<String, Fault> {
    let invalid = |why: String| Fault::Invalid(format!("handover: {why}"));
    let told: Entries<'_, &RawValue> =
        serde_json::from_str(told.get()).map_err(|error| invalid(error.to_string()))?;
    let names_request = told.0.iter().any(|(key, value)| {
        matches!(&**key, "ctx_request_id" | "disagg_request_id") && value.get() != "null"
    });
    if !names_request {
        return Err(invalid("ctx_request_id is missing".into()));
    }
    let mut params = String::from(r#"{"request_type":"generation_only""#);
    for (key, value) in told.0.iter().filter(|(key, _)| key != "request_type") {
        let key = serde_json::to_string(key).expect("a string serialises");
        params.extend([",", &key, ":", value.get()]);
    }
    params.push('}');
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{ask, raw};
    use serde_json::{Value, json};
    use stator_protos::worker::LogitBias;
    use std::sync::Arc;

    fn check(ask: &Ask) -> Value {
        serde_json::from_slice(&body(ask, "tiny", Api::default(), true).unwrap()).unwrap()
    }

    #[test]
    fn what_is_not_asked_for_is_not_said() {
        assert_eq!(
            check(&ask(&[1, 2])),
            json!({
                "model": "tiny", "prompt": [1, 2], "max_tokens": 16, "temperature": 0.0,
                "top_p": 1.0, "detokenize": false, "stream": true,
                "stream_options": {"include_usage": true},
            }),
        );
    }

    #[test]
    fn all_that_can_be_said_is() {
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
            logprobs: Some(0),
            prompt_logprobs: None,
            min_tokens: 2,
            max_tokens: 9,
            stop_token_ids: vec![3, 4],
            ignore_eos: true,
            guide: Some(Form::any_object().into()),
            thought_limit: None,
        };
        let got = check(&Ask { sampling: Arc::new(sampling), ..ask(&[1]) });
        let expected = json!({
            "model": "tiny", "prompt": [1], "max_tokens": 9, "temperature": 0.5, "top_p": 0.25,
            "top_k": 40, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -0.5,
            "frequency_penalty": 2.0, "min_tokens": 2, "ignore_eos": true, "seed": i64::MAX,
            "logit_bias": {"7": -100.0}, "stop_token_ids": [3, 4], "logprobs": 1,
            "detokenize": false, "stream": true, "stream_options": {"include_usage": true},
            "response_format": {"type": "json_object"},
        });
        assert_eq!(got, expected);
    }

    #[test]
    fn every_form_of_an_answer_has_its_word() {
        let tag = r#"{"type":"structural_tag","format":{"type":"any_text"}}"#;
        let forms = [
            (
                Form::JsonSchema(r#"{"type":"array"}"#.into()),
                json!({"type": "json", "schema": {"type": "array"}}),
            ),
            (Form::any_object(), json!({"type": "json_object"})),
            (Form::Regex("a+".into()), json!({"type": "regex", "regex": "a+"})),
            (
                Form::one_of(vec!["a".into(), "b?".into()]),
                json!({"type": "regex", "regex": "(a|b\\?)"}),
            ),
            (Form::Grammar("root ::= x".into()), json!({"type": "ebnf", "ebnf": "root ::= x"})),
            (Form::StructuralTag(tag.into()), serde_json::from_str(tag).unwrap()),
        ];
        for (guide, expected) in forms {
            let sampling = Sampling { guide: Some(guide.into()), ..Sampling::neutral() };
            let got = check(&Ask { sampling: Arc::new(sampling), ..ask(&[1]) });
            assert_eq!(got["response_format"], expected);
        }
    }

    #[test]
    fn a_priority_is_said_where_there_is_a_word_for_it() {
        let said = |priority, takes| -> Option<f64> {
            let asked = Ask { priority, ..ask(&[1]) };
            let api = Api { priority: takes, ..Api::default() };
            let body = body(&asked, "tiny", api, true).unwrap();
            serde_json::from_slice::<Value>(&body).unwrap()["priority"].as_f64()
        };
        assert_eq!([said(0, true), said(5, false)], [None, None]);
        assert_eq!([said(1_000_000, true), said(-1_000_000, true)], [Some(1.0), Some(0.0)]);
        assert_eq!(said(i32::MAX, true), Some(1.0));
        assert!(said(2, true) > said(1, true) && said(1, true) > Some(0.5));
        assert!(said(-1, true) < Some(0.5));
    }

    #[test]
    fn a_salt_is_said_where_there_is_a_word_for_it() {
        let asked = Ask { cache_salt: Some("s".into()), ..ask(&[1]) };
        let api = Api { cache_salt: true, ..Api::default() };
        let body = body(&asked, "tiny", api, true).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["cache_salt"], json!("s"));
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let sampling = |sampling: Sampling| Ask { sampling: Arc::new(sampling), ..ask(&[1]) };
        let unsayable = [
            Ask { cache_salt: Some("s".into()), ..ask(&[1]) },
            Ask { lora: Some("l".into()), ..ask(&[1]) },
            Ask { rank: Some(1), ..ask(&[1]) },
            sampling(Sampling { logprobs: Some(1), ..Sampling::neutral() }),
            sampling(Sampling { prompt_logprobs: Some(0), ..Sampling::neutral() }),
        ];
        for asked in unsayable {
            assert!(
                matches!(body(&asked, "m", Api::default(), true), Err(Fault::Invalid(_))),
                "{asked:?}"
            );
        }
    }

    #[test]
    fn the_context_servers_words_are_passed_on_but_for_the_type() {
        let told = r#"{"ctx_request_id":9007199254740993,"request_type":"context_only","encoded_opaque_state":"AA==","first_gen_tokens":[5]}"#;
        let decode = Ask { hand: Hand::Decode(raw(told)), ..ask(&[1]) };
        let bytes = body(&decode, "m", Api::default(), true).unwrap();
        let expected = r#""disaggregated_params":{"request_type":"generation_only","ctx_request_id":9007199254740993,"encoded_opaque_state":"AA==","first_gen_tokens":[5]}"#;
        assert!(String::from_utf8(bytes).unwrap().contains(expected));
        for told in ["[]", "{}", r#"{"ctx_request_id":null}"#] {
            let decode = Ask { hand: Hand::Decode(raw(told)), ..ask(&[1]) };
            assert!(
                matches!(body(&decode, "m", Api::default(), true), Err(Fault::Invalid(_))),
                "{told}"
            );
        }
    }

    #[test]
    fn a_prefill_is_named_for_both_sides() {
        let got = check(&Ask { hand: Hand::Prefill(None), ..ask(&[1]) });
        let params = &got["disaggregated_params"];
        assert_eq!(params["request_type"], json!("context_only"));
        assert_eq!(params["disagg_request_id"], json!(shared_id("request-1")));
        assert_eq!(params.as_object().unwrap().len(), 2);
        assert!((1 << 62..1 << 63).contains(&shared_id("request-1")));
        assert_ne!(shared_id("request-1"), shared_id("request-2"));
    }

    #[test]
    fn halves_that_are_asked_at_once_are_told_so() {
        let told = r#"{"disagg_request_id":4611686018427387911,"schedule_style":1}"#;
        let asked = Ask { hand: Hand::Prefill(Some(raw(told))), ..ask(&[1]) };
        let bytes = body(&asked, "m", Api::default(), false).unwrap();
        let expected = r#""disaggregated_params":{"request_type":"context_only","disagg_request_id":4611686018427387911,"schedule_style":1},"stream":false}"#;
        assert!(String::from_utf8(bytes).unwrap().ends_with(expected));
        let told = r#"{"disagg_request_id":4611686018427387911,"ctx_request_id":4611686018427387911,"schedule_style":1,"ctx_info_endpoint":"tcp://10.0.0.1:5000","ctx_dp_rank":0}"#;
        let asked = Ask { hand: Hand::Decode(raw(told)), ..ask(&[1]) };
        let bytes = body(&asked, "m", Api::default(), true).unwrap();
        let expected = r#""disaggregated_params":{"request_type":"generation_only","disagg_request_id":4611686018427387911,"ctx_request_id":4611686018427387911,"schedule_style":1,"ctx_info_endpoint":"tcp://10.0.0.1:5000","ctx_dp_rank":0},"stream":true,"#;
        assert!(String::from_utf8(bytes).unwrap().contains(expected));
        let asked = Ask { hand: Hand::Prefill(Some(raw("{}"))), ..ask(&[1]) };
        assert!(matches!(body(&asked, "m", Api::default(), false), Err(Fault::Invalid(_))));
    }
}
