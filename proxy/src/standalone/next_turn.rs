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
use super::responses::PreviousItems;
use bytes::Bytes;
use stator_api::conversation::{Content, Message, Role};
use stator_api::custom_tools::arguments_of;
use stator_api::delta::FinishReason;
use stator_api::json::Json;
use stator_api::responses::request::ResponsePlace;
use stator_api::responses::{self, ThoughtSeal};
use stator_api::{Api, Delta, FieldNotes, GenerateRequest, Input};
use stator_protos::worker::Sampling;
use stator_runtime::trace::Stages;
use std::borrow::Cow;
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
    /// The conversation of a response.
    conversation: Option<TurnConversation>,
    text: String,
    thoughts: String,
    calls: Vec<AnsweredCall>,
    is_whole: bool,
}

/// The conversation of a response, up to the answer.
pub(super) struct TurnConversation {
    /// Items, oldest first.
    pub items: PreviousItems,
    /// Opens thoughts that were sealed for the client.
    pub seal: ThoughtSeal,
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
    /// The turn after the answer to a body; a response has a `conversation`.
    pub(super) fn new(body: Bytes, api: Api, conversation: Option<TurnConversation>) -> Self {
        let (text, thoughts) = (String::new(), String::new());
        Self { body, api, conversation, text, thoughts, calls: Vec::new(), is_whole: false }
    }

    /// Takes in a part of the answer. Only the first choice goes on.
    pub(super) fn take(&mut self, delta: &Delta<'_>) {
        if delta.choice > 0 {
            return;
        }
        self.text.push_str(delta.text);
        if self.api == Api::Responses {
            self.thoughts.push_str(delta.reasoning);
        }
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
        let Input::Conversation(mut conversation) = self.request()?.input else { return None };
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
                false => self.thoughts_of_calls().chain([called(calls)]).collect(),
            },
        });
        conversation.add_generation_prompt = false;
        conversation.continue_final_message = false;
        let prompt = tokens(&served.model, &Input::Conversation(conversation)).ok()?.pop()?;
        let fits = prompt.len() < served.pool.record().context_length as usize;
        fits.then_some(prompt)
    }

    /// The request, read again.
    fn request(&self) -> Option<GenerateRequest<'_>> {
        let notes = FieldNotes::lenient();
        let Some(TurnConversation { items, seal }) = &self.conversation else {
            return stator_api::read(self.api, &self.body, &notes).ok();
        };
        let mut body = responses::parse(&self.body, &notes).ok()?;
        // The body's items are among those of the conversation.
        body.input = None;
        let place = ResponsePlace { id: "", keeps: true, seal: Some(seal) };
        Some(responses::check(body, items, place, &notes).ok()?.request)
    }

    /// The thoughts before calls, which clients of responses send back with the results.
    fn thoughts_of_calls(&self) -> impl Iterator<Item = Member> {
        let thoughts = (!self.thoughts.is_empty()).then(|| self.thoughts.clone().into());
        thoughts.map(|text| ("reasoning_content".into(), Json::Str(text))).into_iter()
    }
}

/// A member of a message.
type Member = (Cow<'static, str>, Json<'static>);

fn called(calls: Vec<Json<'static>>) -> Member {
    ("tool_calls".into(), Json::Array(calls))
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
