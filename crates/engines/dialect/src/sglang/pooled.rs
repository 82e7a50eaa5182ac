//! Vectors and classes of prompts: `POST /encode`.
//!
//! Source: SGLang 0.5.23, read in its source.

use super::{EngineFacts, encode};
use crate::http::fault_of_request;
use crate::json::Object;
use crate::pooled::whole;
use crate::{Ask, Delta, Fault, Pooling};
use ::http::StatusCode;
use serde::Deserialize;

/// Path of the endpoint.
pub(super) const PATH: &str = "/encode";

/// Writes the body of a request. The server chooses the rank of several: such a request names none.
///
/// # Errors
///
/// [`Fault::Invalid`] where the server cannot separate the request's prefixes.
pub(super) fn body(ask: &Ask, facts: &EngineFacts) -> Result<Vec<u8>, Fault> {
    let mut body = Object::with_room_for(ask.tokens.len());
    body.ids("input_ids", &ask.tokens);
    body.field("rid", &ask.id);
    let priority = i64::from(ask.priority);
    body.unless("priority", if facts.low_priority_first { -priority } else { priority }, 0);
    if let Some(salt) = &ask.cache_salt {
        body.field(encode::salt_field(facts.salt)?, salt);
    }
    body.optional("lora_path", ask.lora.as_deref());
    Ok(body.finish())
}

#[derive(Deserialize)]
struct EncodeAnswer {
    embedding: Option<Vec<f32>>,
    #[serde(default)]
    meta_info: Meta,
}

#[derive(Default, Deserialize)]
struct Meta {
    cached_tokens: Option<u32>,
}

/// Reads the answer. Classes come as the values of the model's head, as the server's own
/// `/v1/classify` gets them, which makes probabilities of several.
///
/// # Errors
///
/// [`Fault`] for an error with status 200, and for an answer that is not as known.
pub(crate) fn decode(answer: &[u8], pooling: Pooling) -> Result<Delta, Fault> {
    let said: EncodeAnswer = serde_json::from_slice(answer)
        .map_err(|error| Fault::Failed(format!("{PATH}: the answer is not as known: {error}")))?;
    let Some(values) = said.embedding else {
        return Err(fault_of_request(StatusCode::INTERNAL_SERVER_ERROR, answer));
    };
    // Values are judged as they came: of one that is too small for a number a probability of zero
    // would be left.
    let mut whole = whole(values, said.meta_info.cached_tokens)?;
    if pooling == Pooling::Classes && whole.pooled.len() > 1 {
        softmax(&mut whole.pooled);
    }
    Ok(whole)
}

fn softmax(values: &mut [f32]) {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    values.iter_mut().for_each(|value| *value = (*value - most).exp());
    let sum: f32 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ask;
    use serde_json::{Value, json};

    #[test]
    fn a_prompt_is_said_as_ids_and_nothing_steers_its_sampling() {
        let asked = Ask { priority: 3, lora: Some("a".into()), ..ask(&[1, 2]) };
        let body = body(&asked, &EngineFacts::default()).unwrap();
        let expected =
            json!({"input_ids": [1, 2], "rid": "request-1", "priority": 3, "lora_path": "a"});
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
    }

    #[test]
    fn vectors_come_as_they_are_and_classes_as_probabilities() {
        let answer = br#"{"embedding": [0.0, 2.0, 0.0], "meta_info": {"cached_tokens": 2}}"#;
        let vector = decode(answer, Pooling::Vector).unwrap();
        assert_eq!((vector.pooled, vector.cached_tokens), (vec![0.0, 2.0, 0.0], Some(2)));
        let classes = decode(answer, Pooling::Classes).unwrap().pooled;
        let e2 = 2f32.exp();
        let expected = [1.0 / (e2 + 2.0), e2 / (e2 + 2.0), 1.0 / (e2 + 2.0)];
        assert!(classes.iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-6));
        // One class alone is no distribution.
        let single = decode(br#"{"embedding": [-1.5]}"#, Pooling::Classes).unwrap();
        assert_eq!(single.pooled, [-1.5]);
        for wrong in [&b"{}"[..], b"[]", br#"{"embedding": []}"#, br#"{"error": {}}"#] {
            assert!(matches!(decode(wrong, Pooling::Vector), Err(Fault::Failed(_))));
        }
    }

    #[test]
    fn a_value_that_is_too_large_or_too_small_is_no_class() {
        for wrong in [&br#"{"embedding": [1.0, -1e39]}"#[..], br#"{"embedding": [1e39, 1.0]}"#] {
            assert!(matches!(decode(wrong, Pooling::Classes), Err(Fault::Failed(_))));
        }
        let far = decode(br#"{"embedding": [3e38, -3e38]}"#, Pooling::Classes).unwrap();
        assert_eq!(far.pooled, [1.0, 0.0]);
    }
}
