//! Options of the generation that both text APIs share, checked.

use super::body::{Body, EXTENSION_SALT};
use super::error::ApiError;
use super::guide;
use crate::json::Text;
use crate::request::GenerateOptions;
use stator_protos::hash::CACHE_SALT_MAX_BYTES;
use stator_protos::sampling::{Number, Numbers, OpenSampling};
use stator_protos::worker::{LogitBias, Sampling};
use std::ops::RangeInclusive;

/// Most completions of one request: `n` times the number of prompts.
pub const CHOICES_MAX: i64 = 128;
/// Most stop strings.
pub const STOP_MAX: usize = 32;
/// Most stop token ids.
pub const STOP_TOKEN_IDS_MAX: usize = 1024;
/// Most entries of `logit_bias`.
pub const LOGIT_BIAS_MAX: usize = 1024;

/// Checks the fields that both APIs share. `logprobs` differs, so the API passes it in.
///
/// # Errors
///
/// 400 for a value out of its range, 422 for values that exclude each other.
pub(crate) fn check(body: &Body<'_>, logprobs: Option<u32>) -> Result<GenerateOptions, ApiError> {
    refuse_modalities(body)?;
    let n = integer("n", body.n, 1..=CHOICES_MAX)?.unwrap_or(1);
    if let Some(best_of) = body.best_of.filter(|best_of| *best_of != i64::from(n)) {
        let message = format!("best_of must equal n: best_of is {best_of}, n is {n}");
        return Err(ApiError::unsupported("best_of", message));
    }
    let max_tokens = integer("max_tokens", body.max_tokens, 1..=i64::from(u32::MAX))?;
    let max_completion_tokens =
        integer("max_completion_tokens", body.max_completion_tokens, 1..=i64::from(u32::MAX))?;
    // The newer name goes before the older one, as with OpenAI.
    let max_tokens = max_completion_tokens.or(max_tokens);
    let min_tokens = integer("min_tokens", body.min_tokens, 0..=i64::from(u32::MAX))?.unwrap_or(0);
    if let Some(max) = max_tokens.filter(|max| *max < min_tokens) {
        let message = format!("min_tokens is {min_tokens}, more than max_tokens, which is {max}");
        return Err(ApiError::impossible("min_tokens", message));
    }
    let stream = body.stream.unwrap_or(false);
    let options = body.stream_options.as_ref();
    if body.stream_options.is_some() && !stream {
        return Err(ApiError::impossible(
            "stream_options",
            "stream_options needs stream to be true",
        ));
    }
    let open = OpenSampling { numbers: numbers(body)?, top_k: top_k(body.top_k)?, max_tokens };
    let sampling = Sampling {
        min_tokens,
        stop_token_ids: stop_token_ids(body)?,
        logit_bias: logit_bias(body)?,
        logprobs,
        ignore_eos: body.ignore_eos.unwrap_or(false),
        ..Sampling::neutral()
    };
    let guided = guide::guided(body)?;
    Ok(GenerateOptions {
        open,
        guide_field: guided.as_ref().map(|guided| guided.field),
        sampling: Sampling { guide: guided.map(|guided| guided.form.into()), ..sampling },
        seed: body.seed.map(i64::cast_unsigned),
        n,
        stop: stop(body)?,
        skip_special_tokens: body.skip_special_tokens.unwrap_or(true),
        include_stop_str_in_output: body.include_stop_str_in_output.unwrap_or(false),
        include_reasoning: body.include_reasoning.unwrap_or(true),
        thought_budget: None,
        pin: None,
        return_token_ids: body.return_token_ids.unwrap_or(false),
        stream,
        include_usage: options.and_then(|it| it.include_usage).unwrap_or(false),
        continuous_usage_stats: options.and_then(|it| it.continuous_usage_stats).unwrap_or(false),
        cache_salt: cache_salt(body)?,
        extension_salt: extension_salt(body)?,
    })
}

/// The model's name.
pub(crate) fn model<'a>(body: &mut Body<'a>) -> Result<Text<'a>, ApiError> {
    let model = body.model.take().ok_or_else(|| ApiError::missing("model"))?;
    match model.0.is_empty() {
        true => Err(ApiError::invalid("model", "model must not be empty")),
        false => Ok(model),
    }
}

/// An integer in a range.
pub(crate) fn integer(
    param: &str,
    value: Option<i64>,
    range: RangeInclusive<i64>,
) -> Result<Option<u32>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let (low, high) = (*range.start(), *range.end());
    let checked =
        range.contains(&value).then_some(value).and_then(|value| u32::try_from(value).ok());
    match checked {
        Some(value) => Ok(Some(value)),
        None => Err(ApiError::invalid(
            param,
            format!("{param} is {value}, it must be in {low}..={high}"),
        )),
    }
}

fn numbers(body: &Body<'_>) -> Result<Numbers, ApiError> {
    let mut numbers = Numbers::default();
    for number in Number::ALL {
        let Some(value) = body.number(number) else { continue };
        let (param, range) = (number.name(), number.range());
        if !range.contains(value) {
            let message = format!("{param} is {value}, it must be {range}");
            return Err(ApiError::invalid(param, message));
        }
        numbers.set(number, Some(value as f32));
    }
    Ok(numbers)
}

/// -1 is how vLLM and its clients say "no limit".
fn top_k(value: Option<i64>) -> Result<Option<u32>, ApiError> {
    match value {
        Some(-1) => Ok(Some(0)),
        value => integer("top_k", value, 0..=i64::from(u32::MAX)),
    }
}

fn stop(body: &Body<'_>) -> Result<Vec<String>, ApiError> {
    let stop = body.stop.as_ref().map_or(&[][..], |stop| &stop.0);
    if stop.len() > STOP_MAX {
        return Err(ApiError::invalid(
            "stop",
            format!("stop has {} strings, the limit is {STOP_MAX}", stop.len()),
        ));
    }
    if let Some(at) = stop.iter().position(|text| text.0.is_empty()) {
        return Err(ApiError::invalid("stop", format!("stop[{at}] is empty")));
    }
    Ok(stop.iter().map(|text| text.0.clone().into_owned()).collect())
}

fn stop_token_ids(body: &Body<'_>) -> Result<Vec<u32>, ApiError> {
    let ids = body.stop_token_ids.as_deref().unwrap_or_default();
    if ids.len() > STOP_TOKEN_IDS_MAX {
        let message =
            format!("stop_token_ids has {} ids, the limit is {STOP_TOKEN_IDS_MAX}", ids.len());
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    Ok(ids.to_vec())
}

fn logit_bias(body: &Body<'_>) -> Result<Vec<LogitBias>, ApiError> {
    let entries = body.logit_bias.as_ref().map_or(&[][..], |bias| &bias.0);
    if entries.len() > LOGIT_BIAS_MAX {
        let message =
            format!("logit_bias has {} entries, the limit is {LOGIT_BIAS_MAX}", entries.len());
        return Err(ApiError::invalid("logit_bias", message));
    }
    let parse = |(key, bias): &(Text<'_>, f64)| {
        let Ok(token_id) = key.0.parse::<u32>() else {
            let message = format!("logit_bias has the key {:?}, keys must be token ids", &*key.0);
            return Err(ApiError::invalid("logit_bias", message));
        };
        match (-100.0..=100.0).contains(bias) {
            true => Ok(LogitBias { token_id, bias: *bias as f32 }),
            false => {
                let message =
                    format!("logit_bias of token {token_id} is {bias}, it must be in -100..=100");
                Err(ApiError::invalid("logit_bias", message))
            }
        }
    };
    entries.iter().map(parse).collect()
}

fn cache_salt(body: &Body<'_>) -> Result<Option<String>, ApiError> {
    let Some(Text(salt)) = &body.cache_salt else { return Ok(None) };
    check_cache_salt("cache_salt", salt)?;
    Ok(Some(salt.clone().into_owned()))
}

/// An empty one counts as none, as in Dynamo.
fn extension_salt(body: &Body<'_>) -> Result<Option<String>, ApiError> {
    let salt = body.nvext.as_ref().and_then(|extensions| extensions.cache_salt.as_ref());
    let Some(Text(salt)) = salt.filter(|salt| !salt.0.is_empty()) else { return Ok(None) };
    check_cache_salt(EXTENSION_SALT, salt)?;
    Ok(Some(salt.clone().into_owned()))
}

/// Checks the length of a cache salt that a client sent as `param`.
///
/// # Errors
///
/// 400 for an empty salt, and for one that agents would refuse.
pub fn check_cache_salt(param: &str, salt: &str) -> Result<(), ApiError> {
    let bytes = salt.len();
    if (1..=CACHE_SALT_MAX_BYTES).contains(&bytes) {
        return Ok(());
    }
    let message = format!("{param} has {bytes} bytes, it must have 1 to {CACHE_SALT_MAX_BYTES}");
    Err(ApiError::invalid(param, message))
}

/// An answer is text, and nothing else.
fn refuse_modalities(body: &Body<'_>) -> Result<(), ApiError> {
    let modalities = body.modalities.as_deref().unwrap_or_default();
    match modalities.iter().find(|modality| modality.0 != "text") {
        Some(Text(other)) => {
            let message = format!("the modality {other:?} is not supported, only text");
            Err(ApiError::unsupported("modalities", message))
        }
        None => Ok(()),
    }
}
