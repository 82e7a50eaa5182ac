//! From a request's body to what the workers need: prompts in tokens, and one plan for all.

use crate::catalog::{Catalog, Served};
use crate::config::ProxySettings;
use crate::exchange::Exchange;
use crate::pins::Pins;
use crate::plan::Plan;
use crate::space::{Client, name};
use crate::steering::{Said, Steering};
use stator_model::Model;
use stator_api::openai::body::TOKEN_DATA;
use stator_api::openai::response::Api;
use stator_api::openai::{ApiError, ChatRequest, CompletionRequest, GenerateOptions, Prompt};
use stator_protos::discovery::ModelRecord;
use stator_protos::header::{FAIRNESS_ID, SESSION_ID};
use stator_protos::worker::Sampling;
use stator_queue::FlowId;
use std::sync::Arc;
use std::time::SystemTime;

/// A checked and tokenized request.
pub(crate) struct Job {
    pub served: Arc<Served>,
    /// The model, as the request named it.
    pub model_name: String,
    pub prompts: Vec<Arc<[u32]>>,
    /// The text of each prompt, where it is to be repeated.
    pub echo: Vec<String>,
    pub options: GenerateOptions,
    pub plan: Plan,
}

/// What a request asks for, with its prompts in tokens, not yet checked against the model's limits.
struct Asked {
    served: Arc<Served>,
    model_name: String,
    prompts: Vec<Arc<[u32]>>,
    /// Where the request has its prompts, in the words of error messages.
    prompt_param: &'static str,
    echo: Vec<String>,
    options: GenerateOptions,
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
    let asked = match api {
        Api::Chat => chat(body, catalog)?,
        Api::Completion => completion(body, catalog)?,
    };
    let Asked { served, model_name, prompts, prompt_param, echo, mut options } = asked;
    options.open = options.open.or(served.model.sampling_defaults());
    let record = served.pool.record();
    check_prompts(record, prompt_param, &prompts)?;
    let sampling = sampling(record, &options, &prompts, !echo.is_empty())?;
    let space = client.space(options.cache_salt.as_deref(), options.extension_salt.as_deref())?;
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
        flow: FlowId(payer(exchange).map_or(0, name)),
        session: exchange.header(SESSION_ID).map(|text| space.session(text)),
        steering: Steering {
            pins: Pins::of(exchange, settings.pins)?,
            ..Steering::read(body, Said::of(exchange), settings.priority_max)?
        },
    };
    Ok(Job { served, model_name, prompts, echo, options, plan })
}

/// Whose turn a request takes: its client's, by API key or else by the name it gives itself.
pub(crate) fn payer(exchange: &Exchange) -> Option<&str> {
    exchange.header("authorization").or_else(|| exchange.header(FAIRNESS_ID))
}

fn chat(body: &[u8], catalog: &Catalog) -> Result<Asked, ApiError> {
    let mut request = ChatRequest::parse(body)?;
    let served = catalog.find(&request.model)?;
    let (prompt, prompt_param) = chat_prompt(&served.model, &mut request)?;
    Ok(Asked {
        served,
        model_name: request.model.into_owned(),
        prompts: vec![prompt.into()],
        prompt_param,
        echo: Vec::new(),
        options: request.options,
    })
}

/// The tokens of a chat and where they come from: the request itself, or else its messages.
fn chat_prompt(
    model: &Model,
    request: &mut ChatRequest<'_>,
) -> Result<(Vec<u32>, &'static str), ApiError> {
    match request.token_data.take() {
        Some(ids) => Ok((ids, TOKEN_DATA)),
        None => Ok((model.encode_chat(request, SystemTime::now())?, "prompt")),
    }
}

fn completion(body: &[u8], catalog: &Catalog) -> Result<Asked, ApiError> {
    let mut request = CompletionRequest::parse(body)?;
    let served = catalog.find(&request.model)?;
    let prompt_param = take_token_data(&mut request);
    let prompts = completion_prompts(&served.model, &request)?;
    let echo = match request.echo {
        true => echoes(&served.model, &request.prompts),
        false => Vec::new(),
    };
    Ok(Asked {
        served,
        model_name: request.model.into_owned(),
        prompts,
        prompt_param,
        echo,
        options: request.options,
    })
}

/// Puts tokens that came beside the prompt in its place; returns where the prompt comes from.
fn take_token_data(request: &mut CompletionRequest<'_>) -> &'static str {
    match request.token_data.take() {
        Some(ids) => {
            request.prompts = vec![Prompt::Tokens(ids)];
            TOKEN_DATA
        }
        None => "prompt",
    }
}

fn completion_prompts(
    model: &Model,
    request: &CompletionRequest<'_>,
) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let special = request.options.add_special_tokens;
    let encode = |prompt: &Prompt<'_>| match prompt {
        Prompt::Text(text) => Ok(model.encode_prompt(text, special)?.into()),
        Prompt::Tokens(ids) => Ok(ids.as_slice().into()),
    };
    request.prompts.iter().map(encode).collect()
}

fn echoes(model: &Model, prompts: &[Prompt<'_>]) -> Vec<String> {
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
