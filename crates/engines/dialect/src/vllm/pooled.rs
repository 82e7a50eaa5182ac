//! Vectors and classes of prompts: `POST /pooling`.
//!
//! Source: vLLM 0.32.0, recorded from a running server and read in its source.

use crate::json::{FirstElement, Object};
use crate::pooled::whole;
use crate::{Ask, Delta, Fault};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::borrow::Cow;

/// Path of the endpoint.
pub(super) const PATH: &str = "/pooling";

/// Writes the body of a request. The engine does the one thing that it was started for.
pub(super) fn body(ask: &Ask) -> Vec<u8> {
    let mut body = Object::with_room_for(ask.tokens.len());
    body.ids("input", &ask.tokens);
    body.field("encoding_format", "base64");
    body.field("embed_dtype", "float32");
    body.field("endianness", "little");
    body.optional("model", ask.lora.as_deref());
    body.optional("cache_salt", ask.cache_salt.as_deref());
    // Here smaller is more urgent.
    body.unless("priority", -i64::from(ask.priority), 0);
    body.finish()
}

#[derive(Deserialize)]
struct PoolingAnswer<'a> {
    #[serde(borrow)]
    data: FirstElement<PooledItem<'a>>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct PooledItem<'a> {
    #[serde(borrow)]
    data: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// Reads the answer.
///
/// # Errors
///
/// [`Fault::Failed`] for one that is not as known.
pub(crate) fn decode(answer: &[u8]) -> Result<Delta, Fault> {
    let unknown = |why: String| Fault::Failed(format!("{PATH}: the answer is not as known: {why}"));
    let answer: PoolingAnswer<'_> =
        serde_json::from_slice(answer).map_err(|error| unknown(error.to_string()))?;
    let encoded = answer.data.0.ok_or_else(|| unknown("data is empty".into()))?;
    let bytes = STANDARD.decode(&*encoded.data).map_err(|error| unknown(error.to_string()))?;
    let (values, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(unknown(format!("{} bytes are no floats", bytes.len())));
    }
    let details = answer.usage.and_then(|usage| usage.prompt_tokens_details);
    whole(
        values.iter().copied().map(f32::from_le_bytes).collect(),
        details.and_then(|details| details.cached_tokens),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{but, dialect, next_seen};
    use super::*;
    use crate::testkit::{Reply, Server, ask, fixture, read, recorded};
    use crate::{Finish, Hand, Pooling};
    use serde_json::{Value, json};
    use stator_protos::worker::Sampling;
    use std::sync::Arc;

    const PLACE: &str = "POST /pooling";

    /// A server that pools, as it answers to questions about its endpoints.
    async fn pooling(endpoint: &'static str) -> Server {
        let refused = || Reply::recorded(405, r#"{"detail":"Method Not Allowed"}"#);
        let absent = Reply::recorded(404, r#"{"detail":"Not Found"}"#);
        Server::start(but(vec![
            ("GET /inference/v1/generate", absent),
            ("GET /pooling", refused()),
            (endpoint, refused()),
            (PLACE, recorded("vllm-0.32.0/pooling/00-pooling.response.json")),
        ]))
        .await
    }

    fn vector() -> Ask {
        let sampling = Sampling { pooled: true, ..Sampling::neutral() };
        Ask { sampling: Arc::new(sampling), cache_salt: Some("s".into()), priority: 3, ..ask(&[5]) }
    }

    #[tokio::test]
    async fn a_server_that_pools_is_asked_for_what_it_does_and_for_nothing_else() {
        for (endpoint, expected) in
            [("GET /v1/embeddings", Pooling::Vector), ("GET /classify", Pooling::Classes)]
        {
            let mut server = pooling(endpoint).await;
            let dialect = dialect(&server, None);
            assert_eq!(dialect.describe().await.unwrap().pooling, Some(expected));
            let (all, deltas) = read(dialect.generate(vector()).await.unwrap()).await.unwrap();
            assert_eq!((all.pooled.len(), deltas), (128, 1));
            assert_eq!((all.tokens.len(), all.finish), (0, Some(Finish::Length)));
            let canary = Ask { hand: Hand::Canary, ..ask(&[1, 1]) };
            let (canary, _) = read(dialect.generate(canary).await.unwrap()).await.unwrap();
            assert_eq!(canary.pooled.len(), 128);
            let answered = dialect.generate(ask(&[1])).await.err();
            assert!(matches!(answered, Some(Fault::Unsupported(_))), "{answered:?}");
            let body = loop {
                let seen = next_seen(&mut server).await;
                if seen.line == PLACE {
                    break serde_json::from_slice::<Value>(&seen.body).unwrap();
                }
            };
            let expected = json!({"input": [5], "encoding_format": "base64", "priority": -3,
                "embed_dtype": "float32", "endianness": "little", "cache_salt": "s"});
            assert_eq!(body, expected);
        }
        let answers = Server::start(but(Vec::new())).await;
        let dialect = dialect(&answers, None);
        assert_eq!(dialect.describe().await.unwrap().pooling, None);
        let refused = dialect.generate(vector()).await.err();
        assert!(matches!(refused, Some(Fault::Unsupported(_))), "{refused:?}");
    }

    #[test]
    fn a_recorded_vector_has_unit_length() {
        let vector = decode(&fixture("vllm-0.32.0/pooling/00-pooling.response.json")).unwrap();
        let square: f32 = vector.pooled.iter().map(|value| value * value).sum();
        assert!((square - 1.0).abs() < 1e-3, "{square}");
    }

    #[test]
    fn what_is_no_vector_is_a_fault() {
        let answer = |data: &str| format!(r#"{{"data":[{{"data":"{data}"}}],"usage":null}}"#);
        let read = |body: &str| decode(body.as_bytes());
        assert_eq!(read(&answer("AACAPwAAAEA=")).unwrap().pooled, [1.0, 2.0]);
        for wrong in ["AAA=", "AACAfw==", "", "?"] {
            assert!(matches!(read(&answer(wrong)), Err(Fault::Failed(_))), "{wrong}");
        }
        for wrong in ["{}", r#"{"data":[]}"#, r#"{"data":[{"data":[1.0]}]}"#] {
            assert!(matches!(read(wrong), Err(Fault::Failed(_))), "{wrong}");
        }
    }
}
