//! From a request's body to what the workers need: prompts in tokens, and one plan for all.

use super::catalog::{Catalog, ServedModel};
use super::client::Client;
use super::config::ProxySettings;
use super::plan::Plan;
use super::reading::AnswerReading;
use crate::exchange::Exchange;
use stator_api::anthropic::events::AnswerLimit;
use stator_api::openai::ApiError;
use stator_api::openai::response::UsageMode;
use stator_api::steering::{Pins, Steering, SteeringHeaders};
use stator_api::stream::AnswerForm;
use stator_api::{Api, FieldNotes, GenerateOptions, GenerateRequest, Input, Prompt};
use stator_model::{Model, PromptError};
use stator_protos::discovery::ModelRecord;
use stator_protos::hash::name_hash;
use stator_protos::header::{API_KEY, AZURE_KEY, FAIRNESS_ID};
use stator_protos::worker::Sampling;
use stator_queue::FlowId;
use std::sync::Arc;
use std::time::SystemTime;

/// A checked and tokenized request.
pub(crate) struct Job {
    pub served: Arc<ServedModel>,
    /// The model, as the request named it.
    pub model_name: String,
    pub prompts: Vec<Arc<[u32]>>,
    /// The text of each prompt, where it is to be repeated.
    pub echo: Vec<String>,
    pub options: GenerateOptions,
    /// How answers are read for markup; none where they are text.
    pub reading: Option<AnswerReading>,
    pub form: AnswerForm,
    /// Names of the request's fields that change nothing.
    pub ignored: Option<String>,
    pub plan: Plan,
}

/// Parses a body, applies the chat template, tokenizes, and checks against the model's limits.
///
/// # Errors
///
/// 4xx, with the field at fault.
pub(crate) fn prepare(
    body: &[u8],
    api: Api,
    catalog: &Catalog,
    client: Client<'_>,
    settings: &ProxySettings,
) -> Result<Job, ApiError> {
    let exchange = client.exchange;
    let trace = exchange.trace();
    let notes = FieldNotes::new(settings.unknown_fields);
    let GenerateRequest { model, input, prompt_field, affinity, tools, mut options } =
        stator_api::read(api, body, &notes)?;
    let served = catalog.find(&model)?;
    trace.enter("tokenize");
    let prompts = tokens(&served.model, &input)?;
    trace.leave();
    let echo = echoes(&served.model, &input);
    let model_name = model.into_owned();
    trace.set("gen_ai.request.model", model_name.clone());
    options.open = options.open.or(served.model.sampling_defaults());
    let record = served.pool.record();
    check_prompts(record, prompt_field, &prompts)?;
    if api == Api::Messages {
        clamp_max_tokens(record, &mut options, &prompts);
    }
    // Completions are text, whatever it says. A form of the answer must be known before sampling.
    let reading = match prompts.first() {
        Some(prompt) if api != Api::Completions => {
            AnswerReading::new(&served.model, tools, &mut options, prompt)?
        }
        _ => None,
    };
    let sampling = sampling(record, &options, &prompts, !echo.is_empty())?;
    let space = client.space(options.cache_salt.as_deref(), options.extension_salt.as_deref())?;
    let said = SteeringHeaders::of(|name| exchange.header(name));
    let plan = Plan {
        choices: options.n,
        sampling,
        cache_salt: space.salt(),
        // A model is found by its own name, or by that of one of its adapters.
        adapter: (model_name != record.name).then(|| model_name.clone()),
        request_id: exchange.request_id().to_owned(),
        traceparent: exchange.traceparent().map(str::to_owned),
        tracestate: exchange.tracestate().map(str::to_owned),
        guided: options.guide_field,
        migration_limit: settings.migration_limit,
        flow: FlowId(payer(exchange).map_or(0, name_hash)),
        session: said.session().or(affinity.as_deref()).map(|text| space.session(text)),
        steering: Steering {
            pins: Pins::of(|name| exchange.header_bytes(name), settings.pins)?,
            ..Steering::read(body, said, settings.priority_max)?
        },
    };
    let usage = UsageMode::new(options.include_usage, options.continuous_usage_stats);
    let ignored = notes.ignored();
    let form = AnswerForm { api, usage, limit: AnswerLimit(record.context_length) };
    Ok(Job { served, model_name, prompts, echo, options, reading, form, ignored, plan })
}

/// Tokens of the prompt that a body asks for.
///
/// # Errors
///
/// 4xx, with the field at fault.
pub(crate) fn count(
    body: &[u8],
    api: Api,
    catalog: &Catalog,
    notes: &FieldNotes,
) -> Result<usize, ApiError> {
    let GenerateRequest { model, input, .. } = stator_api::read(api, body, notes)?;
    let served = catalog.find(&model)?;
    let prompts = tokens(&served.model, &input)?;
    Ok(prompts.iter().map(|prompt| prompt.len()).sum())
}

/// Bounds an answer by the context where its client's bound would go beyond: clients of the Messages
/// API send a bound always, and learn from the end which of the two it was.
fn clamp_max_tokens(model: &ModelRecord, options: &mut GenerateOptions, prompts: &[Arc<[u32]>]) {
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let left = (model.context_length as usize).saturating_sub(longest) as u32;
    options.open.max_tokens = options.open.max_tokens.map(|max| max.min(left.max(1)));
}

/// Whose turn a request takes: its client's, by API key or else by the name it gives itself.
pub(crate) fn payer(exchange: &Exchange) -> Option<&str> {
    let keys = ["authorization", API_KEY, AZURE_KEY];
    keys.into_iter().find_map(|name| exchange.header(name)).or_else(|| exchange.header(FAIRNESS_ID))
}

/// The tokens of each prompt.
fn tokens(model: &Model, input: &Input<'_>) -> Result<Vec<Arc<[u32]>>, ApiError> {
    match input {
        Input::Conversation(conversation) => {
            let ids = model.encode_chat(conversation, SystemTime::now());
            Ok(vec![ids.map_err(|error| refusal("messages", &error))?.into()])
        }
        Input::Prompts { prompts, add_special_tokens, .. } => {
            let encode = |prompt: &Prompt<'_>| match prompt {
                Prompt::Text(text) => {
                    let ids = model.encode_prompt(text, *add_special_tokens);
                    Ok(ids.map_err(|error| refusal("prompt", &error))?.into())
                }
                Prompt::Tokens(ids) => Ok(ids.as_slice().into()),
            };
            prompts.iter().map(encode).collect()
        }
    }
}

/// The client's error for an input that does not become tokens. `param` has the text.
fn refusal(param: &str, error: &PromptError) -> ApiError {
    let message = error.to_string();
    match error {
        PromptError::NoTemplate { .. } => ApiError::invalid("model", message),
        PromptError::Template(_) => ApiError::invalid("messages", message),
        PromptError::NothingToContinue => ApiError::impossible("continue_final_message", message),
        PromptError::LastMessageLeftOut => ApiError::invalid("continue_final_message", message),
        PromptError::TooLong { .. } => {
            ApiError::bad_request(message).with_code("context_length_exceeded").with_param(param)
        }
        PromptError::Tokenizer(_) => ApiError::invalid(param, message),
    }
}

/// The text of each prompt, where it is to be repeated.
fn echoes(model: &Model, input: &Input<'_>) -> Vec<String> {
    let Input::Prompts { prompts, echo: true, .. } = input else { return Vec::new() };
    let text = |prompt: &Prompt<'_>| match prompt {
        Prompt::Text(text) => text.clone().into_owned(),
        Prompt::Tokens(ids) => {
            let (mut detokenizer, mut text) = (model.detokenizer(true), String::new());
            detokenizer.push(ids, &mut text);
            detokenizer.finish(&mut text);
            text
        }
    };
    prompts.iter().map(text).collect()
}

fn check_prompts(model: &ModelRecord, param: &str, prompts: &[Arc<[u32]>]) -> Result<(), ApiError> {
    for prompt in prompts {
        if prompt.is_empty() {
            return Err(ApiError::invalid(param, "the prompt has no tokens"));
        }
        check_ids(model, param, prompt.iter().copied())?;
    }
    Ok(())
}

/// The sampling that workers are sent, with no value left open.
fn sampling(
    model: &ModelRecord,
    options: &GenerateOptions,
    prompts: &[Arc<[u32]>],
    echo: bool,
) -> Result<Sampling, ApiError> {
    let mut sampling = options.sampling.clone();
    check_ids(model, "stop_token_ids", sampling.stop_token_ids.iter().copied())?;
    check_ids(model, "logit_bias", sampling.logit_bias.iter().map(|entry| entry.token_id))?;
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    options.open.fill(&mut sampling);
    // Also where nobody asked: an answer that goes on elsewhere goes on with the same stream.
    sampling.seed = options.seed.unwrap_or_else(rand::random);
    sampling.seed_is_drawn = options.seed.is_none();
    sampling.prompt_logprobs = sampling.logprobs.filter(|_| echo);
    sampling.max_tokens = max_tokens(model, options.open.max_tokens, longest)?;
    Ok(sampling)
}

/// The tokens that fit: what was asked for, else what the context leaves.
fn max_tokens(model: &ModelRecord, asked: Option<u32>, longest: usize) -> Result<u32, ApiError> {
    let context = model.context_length as usize;
    let left = context.saturating_sub(longest);
    match asked.map_or(1, |max| max as usize) {
        wanted if wanted > left => Err(ApiError::context_length_exceeded(longest, asked, context)),
        _ => Ok(asked.unwrap_or(left as u32)),
    }
}

fn check_ids(
    model: &ModelRecord,
    param: &str,
    mut ids: impl Iterator<Item = u32>,
) -> Result<(), ApiError> {
    let limit = model.vocab_size;
    match ids.find(|id| *id >= limit) {
        None => Ok(()),
        Some(id) => {
            let message =
                format!("{param} has the token id {id}, the vocabulary has {limit} tokens");
            Err(ApiError::invalid(param, message))
        }
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
