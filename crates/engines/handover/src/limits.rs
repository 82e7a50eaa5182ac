//! Requests that are worth a prefill elsewhere, and how their APIs limit an answer.

use serde_json::value::RawValue;
use stator_body::{Api, Object, ObjectEdit};

/// Whether requests of an API can be prefilled elsewhere.
///
/// Source: the routes that llm-d's sidecar registers.
pub fn is_prefillable(api: Api) -> bool {
    matches!(
        api,
        Api::ChatCompletions
            | Api::Messages
            | Api::Completions
            | Api::Responses
            | Api::VllmGenerate
    )
}

/// Makes the answer whole and one token long: what prefill is asked for. One token is also the
/// least, because an answer that ends by itself leaves no KV behind.
pub fn one_token<'o, 'a>(api: Api, request: &'o Object<'a>) -> ObjectEdit<'o, 'a> {
    let edit = request.edit().remove(|name| name == "stream_options").set("stream", "false");
    match api {
        Api::Responses => edit.set("max_output_tokens", "1"),
        Api::VllmGenerate => edit.set("sampling_params", one_sampled(request)),
        // The same fields limit chats, messages and completions.
        _ => edit.set("max_tokens", "1").set("max_completion_tokens", "1").set("min_tokens", "1"),
    }
}

/// Whether the request asks for one sequence, which is all that one hand-over of KV is good
/// for.
pub fn is_single(api: Api, request: &Object<'_>) -> bool {
    let parameters = match api {
        Api::VllmGenerate => request.get("sampling_params").unwrap_or(b"{}"),
        _ => b"{}",
    };
    let parameters = Object::parse(parameters).ok();
    // Wherever an engine reads it from.
    let one = |name: &str| {
        let inner = parameters.as_ref().and_then(|inner| inner.get(name));
        let mut values = request.get(name).into_iter().chain(inner);
        values.all(|value| [&b"1"[..], b"null"].contains(&value))
    };
    let prompts = request.get("prompt").filter(|_| api == Api::Completions);
    let beam = request.get("use_beam_search") == Some(b"true");
    one("n") && one("best_of") && !beam && prompts.is_none_or(is_one_prompt)
}

/// The parameters of a request to `generate` for an answer of one token.
fn one_sampled(request: &Object<'_>) -> Vec<u8> {
    let own = request.get("sampling_params").and_then(|raw| Object::parse(raw).ok());
    match own {
        Some(own) => own.edit().set("max_tokens", "1").set("min_tokens", "1").finish(),
        None => br#"{"max_tokens":1,"min_tokens":1}"#.to_vec(),
    }
}

/// A text, or a list of tokens; not several of either.
fn is_one_prompt(raw: &[u8]) -> bool {
    if !raw.starts_with(b"[") {
        return true;
    }
    let first = raw[1..].trim_ascii_start().first();
    if !matches!(first, Some(b'"' | b'[')) {
        return true;
    }
    serde_json::from_slice::<Vec<&RawValue>>(raw).is_ok_and(|prompts| prompts.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(api: Api, body: &Value) -> Value {
        let body = body.to_string();
        let object = Object::parse(body.as_bytes()).expect("a sound object");
        serde_json::from_slice(&one_token(api, &object).finish()).expect("it stays sound")
    }

    #[test]
    fn prefill_is_asked_for_one_token_in_one_piece() {
        let stream = json!({"stream": true, "stream_options": {}, "max_tokens": 9, "stop": ["a"]});
        let one = json!({"stream": false, "max_tokens": 1, "max_completion_tokens": 1,
                         "min_tokens": 1, "stop": ["a"]});
        assert_eq!(check(Api::ChatCompletions, &stream), one);
        assert_eq!(check(Api::Completions, &stream), one);
        let response = json!({"input": "a", "max_output_tokens": 100});
        let one = json!({"input": "a", "max_output_tokens": 1, "stream": false});
        assert_eq!(check(Api::Responses, &response), one);
        let generate = json!({"sampling_params": {"max_tokens": 7, "seed": 1}});
        let one = json!({"stream": false,
                         "sampling_params": {"max_tokens": 1, "min_tokens": 1, "seed": 1}});
        assert_eq!(check(Api::VllmGenerate, &generate), one);
        let one = json!({"stream": false, "sampling_params": {"max_tokens": 1, "min_tokens": 1}});
        assert_eq!(check(Api::VllmGenerate, &json!({})), one);
    }

    fn single(api: Api, body: &Value) -> bool {
        let body = body.to_string();
        is_single(api, &Object::parse(body.as_bytes()).expect("a sound object"))
    }

    #[test]
    fn several_sequences_are_told_from_one() {
        for body in [
            json!({"prompt": "a"}),
            json!({"prompt": [1, 2]}),
            json!({"prompt": [[1, 2]], "n": 1}),
            json!({"prompt": ["a"], "n": null, "best_of": 1}),
            json!({"prompt": []}),
        ] {
            assert!(single(Api::Completions, &body), "{body}");
        }
        for body in [
            json!({"prompt": ["a", "b"]}),
            json!({"prompt": [[1], [2]]}),
            json!({"prompt": "a", "n": 2}),
            json!({"prompt": "a", "best_of": 3}),
            json!({"prompt": "a", "use_beam_search": true}),
        ] {
            assert!(!single(Api::Completions, &body), "{body}");
        }
        assert!(!single(Api::VllmGenerate, &json!({"sampling_params": {"n": 2}})));
        assert!(single(Api::VllmGenerate, &json!({"sampling_params": {"n": 1}})));
        // What stands outside does not hide what the engine reads.
        let hidden = json!({"n": null, "best_of": 1, "sampling_params": {"n": 2, "best_of": 2}});
        assert!(!single(Api::VllmGenerate, &hidden));
    }
}
