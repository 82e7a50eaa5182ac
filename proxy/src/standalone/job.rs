//! From a request's body to what the workers need: prompts in tokens, and one plan for all.

use super::catalog::{Catalog, ServedModel};
use super::client::{Client, ClientHead};
use super::clock::created;
use super::config::ProxySettings;
use super::encode::tokens;
use super::fitting::fitted;
use super::generate::PlacedWork;
use super::next_turn::{NextTurn, TurnConversation};
use super::pinning;
use super::plan::Plan;
use super::reading::AnswerReading;
use super::responses::{
    OwnResponses, PreviousItems, ResponseKeeper, ResponseKeeping, SharedStore, new_id,
};
use super::state::Answering;
use super::thoughts::bound_thoughts;
use crate::rates::RateAccount;
use bytes::Bytes;
use stator_api::anthropic::events::AnswerLimit;
use stator_api::openai::ApiError;
use stator_api::openai::response::UsageMode;
use stator_api::responses::ThoughtSeal;
use stator_api::responses::request::{CheckedResponse, ResponseForm, ResponsePlace};
use stator_api::steering::{Pins, Steering, SteeringHeaders};
use stator_api::stream::AnswerForm;
use stator_api::{
    Api, FieldNotes, GenerateOptions, GenerateRequest, Input, Prompt, PromptPin, responses,
};
use stator_model::Model;
use stator_placement::profile::{ANSWERS, BOUNDS_THOUGHTS, PINS};
use stator_protos::discovery::ModelRecord;
use stator_protos::hash::name_hash;
use stator_protos::header::{API_KEY, AZURE_KEY, FAIRNESS_ID, KV_HOLDERS};
use stator_protos::holders;
use stator_protos::worker::Sampling;
use stator_queue::FlowId;
use std::sync::Arc;

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
    /// The id of a response, without its prefix.
    pub response_id: Option<String>,
    /// Keeps the response.
    pub keeper: Option<ResponseKeeper>,
    /// The turn after the answer, if it is to be computed ahead.
    pub next_turn: Option<Box<NextTurn>>,
    /// What the client has used of its limits, if it has any.
    pub rate: Option<RateAccount>,
    /// Boxed: every connection keeps room for a job, however idle it is.
    pub plan: Box<Plan>,
}

impl Job {
    /// The prompts that run on the fleet.
    pub(crate) fn work(&self) -> PlacedWork<'_> {
        PlacedWork { pool: &self.served.pool, plan: &self.plan, prompts: &self.prompts }
    }
}

/// Parses a body, applies the chat template, tokenizes, and checks against the model's limits.
///
/// # Errors
///
/// 4xx, with the field at fault.
pub(crate) fn prepare(
    body: &Bytes,
    api: Api,
    catalog: &Catalog,
    client: Client<'_>,
    settings: &ProxySettings,
    store: &SharedStore,
) -> Result<Job, ApiError> {
    let trace = client.head.trace;
    let (notes, mut earlier) = (FieldNotes::new(settings.unknown_fields), Vec::new());
    let ReadRequest { request, response } = match api {
        Api::Responses => read_response(body, &notes, client, store, &mut earlier)?,
        api => ReadRequest { request: stator_api::read(api, body, &notes)?, response: None },
    };
    let conversation = response.as_ref().map(|response| response.session.clone());
    let GenerateRequest { model, input, prompt_field, affinity, tools, mut options } = request;
    let served = catalog.find(&model)?;
    trace.enter("tokenize");
    let echo = echoes(&served.model, &input);
    let prompts = match &response {
        Some(response) if response.form.truncates => fitted(&served, input, &options)?,
        _ => tokens(&served.model, &input)?,
    };
    trace.leave();
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
            AnswerReading::new(api, &served.model, tools, &mut options, prompt)?
        }
        _ => None,
    };
    bound_thoughts(&served, &mut options, &prompts, reading.as_ref(), &notes)?;
    let sampling = sampling(record, &options, &prompts, !echo.is_empty())?;
    let asked = AskedWork {
        model_name: &model_name,
        choices: options.n,
        guided: options.guide_field,
        salts: [options.cache_salt.as_deref(), options.extension_salt.as_deref()],
        sampling,
        affinity: affinity.as_deref().or(conversation.as_deref()),
        pin: pinning::pin(&served, &options, &notes)?,
    };
    let mut plan = plan(body, client, settings, record, asked)?;
    require_answers(&served, &model_name, &mut plan)?;
    let form = answer_form(api, &options, record, response.as_ref());
    let keeper = response.as_ref().and_then(|response| response.keeper.clone());
    Ok(Job {
        served,
        model_name,
        prompts,
        echo,
        options,
        reading,
        form,
        ignored: notes.ignored(),
        next_turn: next_turn(&plan, body, api, response.as_ref(), &earlier),
        response_id: response.map(|response| response.id),
        keeper,
        rate: client.rate.cloned(),
        plan: Box::new(plan),
    })
}

/// Wants a worker whose engine answers prompts, where not all of the model's do.
///
/// # Errors
///
/// 501 where none does.
fn require_answers(
    served: &ServedModel,
    model_name: &str,
    plan: &mut Plan,
) -> Result<(), ApiError> {
    match served.pool.answering() {
        Answering::All => {}
        Answering::Some => plan.require(ANSWERS),
        Answering::None => {
            let why = "has no engine that answers prompts: its engines make vectors or classes";
            return Err(ApiError::not_served(model_name, why));
        }
    }
    Ok(())
}

/// Parts of a request that its plan is made of.
pub(super) struct AskedWork<'a> {
    pub model_name: &'a str,
    /// Completions of each prompt.
    pub choices: u32,
    /// The field that gives the answer a form, if one does.
    pub guided: Option<&'static str>,
    /// The request's salt, and that of its extension.
    pub salts: [Option<&'a str>; 2],
    pub sampling: Sampling,
    pub affinity: Option<&'a str>,
    pub pin: Option<PromptPin>,
}

/// The plan for all prompts of a request.
///
/// # Errors
///
/// 400 for a salt, a tenant or a wish that cannot be meant.
pub(super) fn plan(
    body: &[u8],
    client: Client<'_>,
    settings: &ProxySettings,
    record: &ModelRecord,
    asked: AskedWork<'_>,
) -> Result<Plan, ApiError> {
    let AskedWork { model_name, choices, guided, salts: [own, extension], sampling, affinity, pin } =
        asked;
    let head = client.head;
    let [traceparent, tracestate] = head.trace_context();
    let space = client.space(own, extension)?;
    let said = SteeringHeaders::of(|name| head.header(name));
    // Who may choose the worker may say where its agent reads KV.
    let lenders = head.header(KV_HOLDERS).filter(|_| settings.pins);
    let bounds_thoughts = sampling.thought_limit.is_some();
    let mut plan = Plan {
        choices,
        sampling,
        cache_salt: space.salt(),
        // A model is found by its own name, or by that of one of its adapters.
        adapter: (model_name != record.name).then(|| model_name.to_owned()),
        request_id: head.request_id.to_owned(),
        traceparent: traceparent.map(str::to_owned),
        tracestate: tracestate.map(str::to_owned),
        guided,
        migration_limit: settings.migration_limit,
        flow: FlowId(payer(head).map_or(0, name_hash)),
        session: said.session().or(affinity).map(|text| space.session(text)),
        pin_seconds: pin.map_or(0, |pin| pin.seconds),
        steering: Steering {
            pins: Pins::of(|name| head.header_bytes(name), settings.pins)?,
            holders: holders::read(lenders.unwrap_or_default()),
            ..Steering::read(body, said, settings.priority_max)?
        },
    };
    if bounds_thoughts {
        plan.require(BOUNDS_THOUGHTS);
    }
    if pin.is_some_and(|pin| !pin.is_usual) {
        plan.require(PINS);
    }
    Ok(plan)
}

/// The turn after the answer, where the request has it computed ahead. A response has the items of its
/// conversation, which its body may name only.
fn next_turn(
    plan: &Plan,
    body: &Bytes,
    api: Api,
    response: Option<&NewResponse>,
    earlier: &PreviousItems,
) -> Option<Box<NextTurn>> {
    let conversation = response.map(|response| TurnConversation {
        items: earlier.iter().chain(&response.form.input).cloned().collect(),
        seal: response.seal.clone(),
    });
    let turn = || Box::new(NextTurn::new(body.clone(), api, conversation));
    plan.steering.speculates.then(turn)
}

/// The form in which the client gets the answer.
fn answer_form(
    api: Api,
    options: &GenerateOptions,
    record: &ModelRecord,
    response: Option<&NewResponse>,
) -> AnswerForm {
    AnswerForm {
        api,
        usage: UsageMode::new(options.include_usage, options.continuous_usage_stats),
        limit: AnswerLimit(record.context_length),
        echo: response.map(|response| response.form.echo.clone()),
        now: created,
    }
}

/// A request, and what only the Responses API says.
struct ReadRequest<'a> {
    request: GenerateRequest<'a>,
    response: Option<NewResponse>,
}

/// A response that is asked for.
struct NewResponse {
    id: String,
    /// The first response of its conversation, whose prefixes the others share.
    session: Arc<str>,
    form: ResponseForm,
    keeper: Option<ResponseKeeper>,
    /// Opens thoughts that were sealed for the client.
    seal: ThoughtSeal,
}

/// Reads a request for a response; `earlier` gets the items of the responses that it continues.
fn read_response<'a>(
    body: &'a [u8],
    notes: &FieldNotes,
    client: Client<'_>,
    store: &SharedStore,
    earlier: &'a mut PreviousItems,
) -> Result<ReadRequest<'a>, ApiError> {
    let mut body = responses::parse(body, notes)?;
    // The tenant's, whatever prefixes the request shares: a client that reads a response again
    // has no body to say so.
    let space = client.space(None, None)?;
    let id = new_id();
    let seal = client.account.thought_seal(client.head.headers)?;
    let own = OwnResponses { store, space, seal: &seal };
    let session = own.resolve(&mut body, notes, earlier)?.unwrap_or_else(|| id.as_str().into());
    let place = ResponsePlace { id: &id, keeps: store.keeps(), seal: Some(&seal) };
    let CheckedResponse { request, form } = responses::check(body, earlier, place, notes)?;
    let keeping = ResponseKeeping {
        space,
        session: session.clone(),
        earlier: earlier.clone(),
        input: form.input.clone(),
        background: form.background,
    };
    let keeper = form.store.then(|| ResponseKeeper::new(store.clone(), keeping));
    Ok(ReadRequest { request, response: Some(NewResponse { id, session, form, keeper, seal }) })
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
    own: OwnResponses<'_>,
) -> Result<usize, ApiError> {
    let mut items = PreviousItems::new();
    let GenerateRequest { model, input, .. } = match api {
        Api::Responses => {
            let mut body = responses::parse(body, notes)?;
            own.resolve(&mut body, notes, &mut items)?;
            let place = ResponsePlace { id: "", keeps: true, seal: Some(own.seal) };
            responses::check(body, &items, place, notes)?.request
        }
        api => stator_api::read(api, body, notes)?,
    };
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

/// Client whose turn a request takes: named by its API key, or else by the name it gives itself.
pub(crate) fn payer<'a>(head: ClientHead<'a>) -> Option<&'a str> {
    let keys = ["authorization", API_KEY, AZURE_KEY];
    keys.into_iter().find_map(|name| head.header(name)).or_else(|| head.header(FAIRNESS_ID))
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

/// Refuses prompts without tokens, or with some that the model has not.
pub(super) fn check_prompts(
    model: &ModelRecord,
    param: &str,
    prompts: &[Arc<[u32]>],
) -> Result<(), ApiError> {
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
