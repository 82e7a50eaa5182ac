//! Requests for vectors: each input is a prompt of its own, which is placed like any other, and what is
//! asked for is made of the vectors that workers send.

use super::catalog::{Catalog, ServedModel};
use super::client::Client;
use super::config::ProxySettings;
use super::encode::tokens;
use super::generate::{Generation, PlacedWork};
use super::job::{AskedWork, check_prompts, plan};
use super::metrics::Metrics;
use super::plan::Plan;
use stator_api::delta::{Identity, Usage};
use stator_api::openai::ApiError;
use stator_api::pooled::{
    PooledForm, PooledInput, PooledRequest, PoolingTask, VectorForm, answer as written, read,
};
use stator_api::{Api, FieldNotes, Input};
use stator_placement::profile::{CLASSIFIES, EMBEDS};
use stator_protos::worker::Sampling;
use stator_runtime::trace::Stages;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Inputs of one request that are placed at once. The others wait here, where they hold no place in a
/// queue that other clients stand in.
const PLACED_MAX: usize = 32;

/// A checked and tokenized request for vectors.
pub(crate) struct PooledJob {
    served: Arc<ServedModel>,
    /// The model, as the request named it.
    pub model_name: String,
    prompts: Vec<Arc<[u32]>>,
    pub form: PooledForm,
    /// Names of the request's fields that change nothing.
    pub ignored: Option<String>,
    plan: Plan,
}

/// Parses a body that came on `path`, tokenizes, and checks against the model's limits.
///
/// # Errors
///
/// 4xx, with the field at fault; 501 for a model whose engines do not do what is asked for.
pub(crate) fn prepare(
    body: &[u8],
    api: Api,
    path: &str,
    catalog: &Catalog,
    client: Client<'_>,
    settings: &ProxySettings,
) -> Result<PooledJob, ApiError> {
    let notes = FieldNotes::new(settings.unknown_fields);
    let request = read(api, path, body, &notes)?;
    let PooledRequest { model, inputs, input_field, add_special_tokens, form, .. } = request;
    let served = catalog.find_or_only(model.as_deref())?;
    let record = served.pool.record();
    let model_name = model.map_or_else(|| record.name.clone(), |model| model.into_owned());
    let form = settled(form, &served, &model_name)?;
    let prompts = prompts(&served, inputs, add_special_tokens)?;
    check_prompts(record, input_field, &prompts)?;
    let (longest, context) =
        (prompts.iter().map(|prompt| prompt.len()).max(), record.context_length);
    if let Some(longest) = longest.filter(|longest| *longest > context as usize) {
        let message = format!(
            "the model's context is {context} tokens; {input_field} has {longest} in one input"
        );
        return Err(ApiError::invalid(input_field, message).with_code("context_length_exceeded"));
    }
    let asked = AskedWork {
        model_name: &model_name,
        choices: 1,
        guided: None,
        salts: [request.cache_salt.as_deref(), request.extension_salt.as_deref()],
        sampling: Sampling { pooled: true, max_tokens: 1, ..Sampling::neutral() },
        affinity: None,
        pin: None,
    };
    let mut plan = plan(body, client, settings, record, asked)?;
    plan.require(if form.is_of_classes() { CLASSIFIES } else { EMBEDS });
    Ok(PooledJob { model_name, prompts, form, ignored: notes.ignored(), plan, served })
}

/// The form of the answer, as far as the model decides it.
///
/// # Errors
///
/// 501 where no engine of the model makes what the form needs.
fn settled(
    mut form: PooledForm,
    served: &ServedModel,
    model_name: &str,
) -> Result<PooledForm, ApiError> {
    let (embeds, classifies) = (served.pool.embeds(), served.pool.classifies());
    match &mut form {
        PooledForm::Vectors(VectorForm { task: task @ None, .. }) => {
            let classes = classifies && !embeds;
            *task = Some(if classes { PoolingTask::Classify } else { PoolingTask::Embed });
        }
        PooledForm::Classes { labels } => *labels = served.model.class_labels().to_vec(),
        _ => {}
    }
    if let PooledForm::Vectors(VectorForm {
        task: Some(PoolingTask::Classify),
        dimensions: Some(_),
        ..
    }) = &form
    {
        return Err(ApiError::unsupported("dimensions", "dimensions: classes are not cut short"));
    }
    match form.is_of_classes() {
        true if !classifies => Err(ApiError::not_served(model_name, "has no head for classes")),
        false if !embeds => {
            Err(ApiError::not_served(model_name, "has no engine that makes vectors"))
        }
        _ => Ok(form),
    }
}

/// The tokens of each input.
fn prompts(
    served: &ServedModel,
    inputs: Vec<PooledInput<'_>>,
    add_special_tokens: bool,
) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let encode = |PooledInput { prompt, tokens_max }: PooledInput<'_>| {
        let input = Input::Prompts { prompts: vec![prompt], add_special_tokens, echo: false };
        let mut prompts = tokens(&served.model, &input)?;
        let prompt = prompts.pop().ok_or_else(ApiError::internal)?;
        Ok(match tokens_max.map(|most| most as usize).filter(|most| *most < prompt.len()) {
            Some(most) => prompt[..most].into(),
            None => prompt,
        })
    };
    inputs.into_iter().map(encode).collect()
}

/// The vectors of a request, in the order of its inputs.
pub(crate) struct PooledVectors {
    vectors: Vec<Vec<f32>>,
    usage: Usage,
}

impl PooledVectors {
    /// Tokens that they took.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// The answer's body, in the form that was asked for.
    ///
    /// # Errors
    ///
    /// 400 for more dimensions than the vectors have.
    pub(crate) fn answer(
        self,
        form: &PooledForm,
        identity: &Identity<'_>,
    ) -> Result<Vec<u8>, ApiError> {
        written::answer(form, identity, self.vectors, self.usage.prompt_tokens)
    }
}

/// Has workers make the vector of each prompt. `limit` is the longest wait for one of them.
///
/// # Errors
///
/// As [`Generation::start`], for the first input that fails; 502 for a worker that sends no vector.
///
/// # Cancel safety
///
/// Dropping the future gives up everything.
pub(crate) async fn vectors(
    job: &PooledJob,
    metrics: &Metrics,
    limit: Duration,
    trace: &Stages,
) -> Result<PooledVectors, ApiError> {
    let prompt_tokens = job.prompts.iter().map(|prompt| prompt.len() as u32).sum();
    let mut made = PooledVectors {
        vectors: vec![Vec::new(); job.prompts.len()],
        usage: Usage { prompt_tokens, ..Usage::default() },
    };
    let mut left = job.prompts.iter().enumerate();
    let mut placed: JoinSet<Result<(usize, PromptVector), ApiError>> = JoinSet::new();
    loop {
        while placed.len() < PLACED_MAX
            && let Some((number, prompt)) = left.next()
        {
            let (pool, plan, prompt) = (job.served.pool.clone(), job.plan.clone(), prompt.clone());
            let (metrics, trace) = (metrics.clone(), trace.clone());
            placed.spawn(async move {
                let work = PlacedWork { pool: &pool, plan: &plan, prompts: &[prompt] };
                let generation = Generation::start(metrics, work, &trace).await?;
                Ok((number, vector(generation, limit).await?))
            });
        }
        let Some(done) = placed.join_next().await else { break };
        let (number, vector) = done.unwrap_or_else(|error| {
            tracing::error!(%error, "making a vector failed");
            Err(ApiError::internal())
        })?;
        made.vectors[number] = vector.values;
        made.usage.cached_tokens += vector.cached_tokens;
    }
    metrics.prompt_tokens.inc_by(made.usage.prompt_tokens.into());
    metrics.cached_tokens.inc_by(made.usage.cached_tokens.into());
    Ok(made)
}

/// A prompt's vector as its worker sent it.
#[derive(Default)]
struct PromptVector {
    values: Vec<f32>,
    cached_tokens: u32,
}

async fn vector(mut generation: Generation, limit: Duration) -> Result<PromptVector, ApiError> {
    let mut vector = PromptVector::default();
    let late = |_| {
        let message = format!("a vector did not come within {} ms", limit.as_millis());
        ApiError::gateway_timeout(message)
    };
    while let Some(outputs) = timeout(limit, generation.next()).await.map_err(late)?? {
        for output in outputs.drain(..) {
            vector.values.extend(output.pooled);
            vector.cached_tokens += output.cached_tokens.unwrap_or(0);
        }
    }
    match vector.values.is_empty() {
        true => Err(ApiError::bad_gateway("the worker sent no vector")),
        false => Ok(vector),
    }
}
