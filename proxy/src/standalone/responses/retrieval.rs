//! The query of a retrieved response.

use super::record::ResponseRecord;
use crate::standalone::query::Query;
use serde_json::Value;
use stator_api::openai::ApiError;
use stator_api::responses::ThoughtSeal;
use stator_api::responses::request::{LOGPROBS, REASONING};

/// A client's wish for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retrieval {
    /// The response as it is now.
    Object(Includes),
    /// Its events from a number on.
    Events {
        /// Number of the first event.
        from: u64,
        /// Parts that the events must have.
        includes: Includes,
    },
}

/// Parts of items that a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Includes {
    logprobs: bool,
    sealed_thoughts: bool,
}

/// Reads the query of a retrieval.
///
/// # Errors
///
/// 400 for a value that is none, or that means nothing beside the others.
pub(super) fn read(query: &Query) -> Result<Retrieval, ApiError> {
    let includes = includes(query)?;
    if query.flag("stream")? {
        query.flag("include_obfuscation")?;
        return Ok(Retrieval::Events { from: starting_after(query)?, includes });
    }
    for name in ["starting_after", "include_obfuscation"] {
        if query.value(name).is_some() {
            return Err(ApiError::invalid(name, format!("{name} needs stream to be true")));
        }
    }
    Ok(Retrieval::Object(includes))
}

fn includes(query: &Query) -> Result<Includes, ApiError> {
    let mut includes = Includes::default();
    for what in query.values("include") {
        match what {
            LOGPROBS => includes.logprobs = true,
            REASONING => includes.sealed_thoughts = true,
            other => {
                let other: String = other.chars().take(80).collect();
                let message = format!("include {other:?} is not supported: no item here has it");
                return Err(ApiError::unsupported("include", message));
            }
        }
    }
    Ok(includes)
}

/// Number of the first event that a client wants.
fn starting_after(query: &Query) -> Result<u64, ApiError> {
    let Some(after) = query.value("starting_after") else { return Ok(0) };
    let after: Option<u64> = after.parse().ok();
    after.and_then(|after| after.checked_add(1)).ok_or_else(|| {
        ApiError::invalid("starting_after", "starting_after must be the number of an event")
    })
}

impl Includes {
    /// The response's object with these parts.
    ///
    /// # Errors
    ///
    /// 400 for logprobs that were not kept, because nobody asked for them in time.
    pub(super) fn object(
        self,
        record: &ResponseRecord,
        seal: &ThoughtSeal,
    ) -> Result<Vec<u8>, ApiError> {
        let object = record.object();
        if self.logprobs && lacks_logprobs(&object) {
            return Err(absent(LOGPROBS));
        }
        match self.sealed_thoughts {
            true => seal.seal_object(&object).ok_or_else(ApiError::internal),
            false => Ok(object),
        }
    }

    /// Checks that the logged events, which are sent as they are, have these parts.
    ///
    /// # Errors
    ///
    /// 400 for a part that they lack.
    pub(super) fn check_events(self, record: &ResponseRecord) -> Result<(), ApiError> {
        let object = record.object();
        if self.logprobs && lacks_logprobs(&object) {
            return Err(absent(LOGPROBS));
        }
        if self.sealed_thoughts && lacks_sealed_thoughts(&object) {
            return Err(absent(REASONING));
        }
        Ok(())
    }
}

fn absent(what: &str) -> ApiError {
    let message = format!(
        "include {what:?}: the response has it only if the request that made it included it"
    );
    ApiError::invalid("include", message)
}

/// Whether a response has text without logprobs.
fn lacks_logprobs(object: &[u8]) -> bool {
    any_item(object, |item| {
        let parts = item["content"].as_array().into_iter().flatten();
        let mut texts = parts.filter(|part| part["type"] == "output_text" && part["text"] != "");
        texts.any(|part| part["logprobs"].as_array().is_none_or(Vec::is_empty))
    })
}

/// Whether a response has thoughts that are not sealed.
fn lacks_sealed_thoughts(object: &[u8]) -> bool {
    any_item(object, |item| item["type"] == "reasoning" && item["encrypted_content"].is_null())
}

fn any_item(object: &[u8], is_it: impl Fn(&Value) -> bool) -> bool {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    object["output"].as_array().is_some_and(|items| items.iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standalone::responses::tenant_space;
    use serde_json::json;
    use stator_api::Delta;

    fn check(query: &str) -> Result<Retrieval, String> {
        read(&Query::of_tests(query)).map_err(|error| error.message)
    }

    #[test]
    fn a_query_is_obeyed_or_refused_by_name() {
        assert_eq!(check(""), Ok(Retrieval::Object(Includes::default())));
        let includes = Includes { logprobs: true, sealed_thoughts: true };
        let query = "stream=true&starting_after=4&include=message.output_text.logprobs&include=reasoning.encrypted_content";
        assert_eq!(check(query), Ok(Retrieval::Events { from: 5, includes }));
        for (query, fault) in [
            ("stream=1", "stream must be true or false"),
            ("stream=true&starting_after=-1", "starting_after must be the number of an event"),
            ("starting_after=3", "starting_after needs stream to be true"),
            ("include_obfuscation=false", "include_obfuscation needs stream to be true"),
            (
                "include=file_search_call.results",
                "include \"file_search_call.results\" is not supported: no item here has it",
            ),
        ] {
            assert_eq!(check(query).unwrap_err(), fault, "{query}");
        }
    }

    #[test]
    fn a_response_is_read_with_what_is_included() {
        let record = ResponseRecord::of_tests(tenant_space(1));
        let seal = ThoughtSeal::new(&[1; 32]);
        let delta = Delta { reasoning: "so", text: "yes", ..Delta::default() };
        record.advance(|events, out| events.begin(out));
        record.advance(|events, out| events.delta(out, &delta));
        let sealed = Includes { sealed_thoughts: true, ..Includes::default() };
        let object: Value =
            serde_json::from_slice(&sealed.object(&record, &seal).unwrap()).unwrap();
        let content = object["output"][0]["encrypted_content"].as_str().unwrap();
        assert_eq!(seal.open(content).as_deref(), Some("so"));
        assert_eq!(object["output"][0]["content"][0]["text"], json!("so"));
        let plain = Includes::default().object(&record, &seal).unwrap();
        let plain: Value = serde_json::from_slice(&plain).unwrap();
        assert_eq!(plain["output"][0]["encrypted_content"], Value::Null);
        sealed.check_events(&record).expect_err("the events have none");
        let logprobs = Includes { logprobs: true, ..Includes::default() };
        assert!(logprobs.object(&record, &seal).unwrap_err().message.contains("logprobs"));
    }
}
