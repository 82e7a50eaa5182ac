//! The beginning of a conversation's next turn, computed before it is asked for.
//!
//! An agent that will come back says so (`nvext.agent_hints.speculative_prefill`). Once its answer is
//! complete, the conversation is rendered as the next request will have it, and a worker computes that
//! prompt. The KV that the answer itself left may be of no use: templates leave thoughts of earlier
//! turns out, and the worker that answers may not be the one that computes prompts.
//!
//! Source: NVIDIA Dynamo's hint of that name.

use super::catalog::ServedModel;
use super::encode::tokens;
use super::generate::{Generation, PlacedWork};
use super::metrics::Metrics;
use super::plan::Plan;
use bytes::Bytes;
use stator_api::conversation::{Content, Message, Role};
use stator_api::custom_tools::arguments_of;
use stator_api::delta::FinishReason;
use stator_api::json::Json;
use stator_api::{Api, Delta, FieldNotes, Input};
use stator_protos::worker::Sampling;
use stator_runtime::trace::Stages;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Prompts that are computed ahead at once; one beyond is left to its own turn.
const AHEAD_MAX: usize = 32;
/// Longest wait for a worker: by then the turn itself may be asked for.
const TTL: Duration = Duration::from_secs(2);

/// A request whose next turn is to be computed, and its answer as far as it has come.
pub(crate) struct NextTurn {
    body: Bytes,
    api: Api,
    text: String,
    calls: Vec<AnsweredCall>,
    is_whole: bool,
}

/// A call of a tool in an answer.
#[derive(Default)]
struct AnsweredCall {
    id: String,
    name: String,
    arguments: String,
    custom: bool,
}

impl NextTurn {
    /// The turn after the answer to a body.
    pub(super) fn new(body: Bytes, api: Api) -> Self {
        Self { body, api, text: String::new(), calls: Vec::new(), is_whole: false }
    }

    /// Takes in a part of the answer. Only the first choice goes on.
    pub(super) fn take(&mut self, delta: &Delta<'_>) {
        if delta.choice > 0 {
            return;
        }
        self.text.push_str(delta.text);
        for call in delta.tool_calls {
            let at = call.index as usize;
            if self.calls.len() <= at {
                self.calls.resize_with(at + 1, AnsweredCall::default);
            }
            let known = &mut self.calls[at];
            if let Some(start) = call.start {
                (known.id, known.name) = (start.id.to_owned(), start.name.to_owned());
            }
            known.arguments.push_str(call.arguments);
            known.custom = call.custom;
        }
        // A cut answer is not what a client goes on with.
        let ends = [FinishReason::Stop, FinishReason::ToolCalls];
        self.is_whole |= delta.finish.is_some_and(|finish| ends.contains(&finish));
    }

    /// Has a worker compute the turn's prompt, unless the answer was cut or enough are computed ahead.
    pub(super) fn begin(
        self,
        served: Arc<ServedModel>,
        plan: &Plan,
        metrics: &Metrics,
        priority: i32,
    ) {
        static TURNS: LazyLock<Arc<Semaphore>> =
            LazyLock::new(|| Arc::new(Semaphore::new(AHEAD_MAX)));
        let Ok(turn) = TURNS.clone().try_acquire_owned() else { return };
        if !self.is_whole {
            return;
        }
        let metrics = metrics.clone();
        let mut plan = Plan {
            choices: 1,
            sampling: Sampling { max_tokens: 1, ..Sampling::neutral() },
            guided: None,
            migration_limit: 0,
            pin_seconds: 0,
            ..plan.clone()
        };
        plan.steering.priority = priority;
        plan.steering.ttl = Some(TTL);
        tokio::spawn(async move {
            let rendering = tokio::task::spawn_blocking({
                let served = served.clone();
                move || self.prompt(&served)
            });
            if let Ok(Some(prompt)) = rendering.await {
                compute(&served, &plan, prompt, &metrics).await;
            }
            drop(turn);
        });
    }

    /// The tokens of the conversation up to the end of the answer; none if they do not fit.
    fn prompt(&self, served: &ServedModel) -> Option<Arc<[u32]>> {
        let request = stator_api::read(self.api, &self.body, &FieldNotes::lenient()).ok()?;
        let Input::Conversation(mut conversation) = request.input else { return None };
        let text = |text: &str| Json::Str(text.to_owned().into());
        let object = |members: Vec<(&'static str, Json<'static>)>| {
            Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
        };
        let calls = self.calls.iter().map(|call| {
            let arguments = match call.custom {
                true => arguments_of(call.arguments.as_str().into()).into(),
                false => call.arguments.clone().into(),
            };
            let arguments = Json::Str(arguments);
            let function = object(vec![("name", text(&call.name)), ("arguments", arguments)]);
            object(vec![("id", text(&call.id)), ("type", text("function")), ("function", function)])
        });
        let calls: Vec<_> = calls.collect();
        conversation.messages.push(Message {
            role: Role::Assistant,
            content: match self.text.is_empty() {
                true => Content::Null,
                false => Content::Text(self.text.clone().into()),
            },
            extra: match calls.is_empty() {
                true => Vec::new(),
                false => vec![("tool_calls".into(), Json::Array(calls))],
            },
        });
        conversation.add_generation_prompt = false;
        conversation.continue_final_message = false;
        let prompt = tokens(&served.model, &Input::Conversation(conversation)).ok()?.pop()?;
        let fits = prompt.len() < served.pool.record().context_length as usize;
        fits.then_some(prompt)
    }
}

/// Has a worker compute a prompt, and throws the token away that comes of it.
async fn compute(served: &ServedModel, plan: &Plan, prompt: Arc<[u32]>, metrics: &Metrics) {
    let work = PlacedWork { pool: &served.pool, plan, prompts: &[prompt] };
    let Ok(mut generation) = Generation::start(metrics.clone(), work, &Stages::default()).await
    else {
        return;
    };
    while let Ok(Some(outputs)) = generation.next().await {
        outputs.clear();
    }
    metrics.turns_computed.inc();
}
