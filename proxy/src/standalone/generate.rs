//! Runs the prompts of one request on the fleet, and goes on elsewhere when a worker is lost.

use super::metrics::Metrics;
use super::placing::{self, RETRY_AFTER};
use super::plan::Plan;
use super::trace;
use super::{Place, Pool};
use http::StatusCode;
use stator_api::openai::ApiError;
use stator_fleet::{StreamError, TokenStream};
use stator_protos::WorkerRank;
use stator_protos::worker::{ErrorKind, Finish, FinishReason, Output, Submit};
use stator_runtime::trace::Stages;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::JoinSet;

/// The running prompts of one request. Dropping it cancels what still runs.
pub(crate) struct Generation {
    placer: Arc<Placer>,
    legs: Vec<Leg>,
    /// Legs that lost their workers and wait for others; those that run do not wait for them.
    placing: JoinSet<Result<Leg, ApiError>>,
    outputs: Vec<Output>,
}

/// Prompts of one request that run on the fleet.
pub(crate) struct PlacedWork<'a> {
    pub pool: &'a Arc<Pool>,
    pub plan: &'a Plan,
    pub prompts: &'a [Arc<[u32]>],
}

/// Places the prompts of one request.
struct Placer {
    pool: Arc<Pool>,
    metrics: Metrics,
    plan: Plan,
    /// The request's spans.
    trace: Stages,
}

/// The first event of a request's legs.
enum News {
    /// The leg of this number has something, which is in the outputs, or has ended or failed.
    Taken(usize, Result<bool, StreamError>),
    /// A leg goes on at another worker, or cannot.
    Placed(Result<Box<Leg>, ApiError>),
}

/// One prompt, or a choice of one, on one worker.
struct Leg {
    prompt: Arc<[u32]>,
    /// Number of this prompt's first choice in the response.
    base: u32,
    /// Number of the leg's first choice among those of its prompt.
    first_choice: u32,
    choices: Vec<Progress>,
    attempts: u32,
    place: Place,
    stream: TokenStream,
    prefilled: bool,
    /// Spans of its work on this worker.
    trace: Stages,
    /// Blocks of the answer that were counted as load.
    blocks: usize,
}

/// Output of a choice so far: enough to go on with it elsewhere.
#[derive(Default)]
struct Progress {
    generated: Vec<u32>,
    ended: bool,
}

impl Generation {
    /// Places and submits all prompts.
    ///
    /// # Errors
    ///
    /// 503 when no worker can take one of them, now or within the longest wait, and 429 when it may
    /// not wait; those already submitted are cancelled then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up everything.
    pub(crate) async fn start(
        metrics: Metrics,
        work: PlacedWork<'_>,
        trace: &Stages,
    ) -> Result<Self, ApiError> {
        let (pool, plan) = (work.pool.clone(), work.plan.clone());
        let choices = plan.choices;
        let mut generation = Self {
            placer: Arc::new(Placer { pool, metrics, plan, trace: trace.clone() }),
            legs: Vec::with_capacity(work.prompts.len()),
            placing: JoinSet::new(),
            outputs: Vec::new(),
        };
        for (prompt, base) in work.prompts.iter().zip((0..).step_by(choices as usize)) {
            let progress = (0..choices).map(|_| Progress::default()).collect();
            let start = Start {
                prompt: prompt.clone(),
                base,
                first_choice: 0,
                choices: progress,
                attempts: 0,
            };
            // One after the other: where one cannot be placed, those before it are cancelled.
            let leg = generation.placer.submit(start, Vec::new()).await?;
            generation.legs.push(leg);
        }
        Ok(generation)
    }

    /// The worker that runs the first prompt.
    pub(crate) fn worker(&self) -> Option<WorkerRank> {
        self.legs.first().map(|leg| leg.place.worker())
    }

    /// Waits for the next outputs, each with the number of its choice in the response. `None` when
    /// all choices have ended.
    ///
    /// # Errors
    ///
    /// When a prompt cannot go on anywhere.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<&mut Vec<Output>>, ApiError> {
        while !self.legs.is_empty() || !self.placing.is_empty() {
            // The caller may have left what it got last time.
            self.outputs.clear();
            match poll_fn(|context| self.poll_news(context)).await {
                News::Placed(leg) => self.legs.push(*leg?),
                News::Taken(at, taken) => self.take(at, taken)?,
            }
            if !self.outputs.is_empty() {
                return Ok(Some(&mut self.outputs));
            }
        }
        Ok(None)
    }

    fn poll_news(&mut self, context: &mut Context<'_>) -> Poll<News> {
        for (at, leg) in self.legs.iter_mut().enumerate() {
            if let Poll::Ready(taken) = leg.stream.poll_next(context, &mut self.outputs) {
                return Poll::Ready(News::Taken(at, taken));
            }
        }
        let Poll::Ready(Some(placed)) = self.placing.poll_join_next(context) else {
            return Poll::Pending;
        };
        let placed = placed.unwrap_or_else(|error| {
            tracing::error!(%error, "placing a request failed");
            Err(ApiError::internal())
        });
        Poll::Ready(News::Placed(placed.map(Box::new)))
    }

    /// Takes in what a leg has, or goes on without its worker.
    fn take(&mut self, at: usize, taken: Result<bool, StreamError>) -> Result<(), ApiError> {
        let lost = match taken {
            Ok(true) => return self.progress(at),
            Ok(false) => {
                self.legs.swap_remove(at);
                return Ok(());
            }
            Err(StreamError::Disconnected) => ("its connection was lost", true),
            Err(StreamError::Unsent) => ("there is no connection to it", false),
            Err(StreamError::Overloaded { limit }) => {
                let why = format!("the connection to the worker has {limit} requests, the limit");
                return Err(ApiError::unavailable(why, RETRY_AFTER));
            }
            Err(StreamError::Unread { limit }) => {
                let why = format!(
                    "the client reads too slowly: more than {limit} bytes of the answer are \
                     unread, the limit"
                );
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "server_error", why)
                    .with_code("slow_reader"));
            }
        };
        let (worker, (why, had_taken)) = (self.legs[at].place.worker(), lost);
        self.migrate(at, Loss { worker, why, had_taken })
    }

    /// Notes what a leg generated; outputs that report the worker's failure become a migration.
    fn progress(&mut self, at: usize) -> Result<(), ApiError> {
        let leg = &mut self.legs[at];
        let took = self.outputs.iter().map(|output| output.transfer_us).find(|us| *us > 0);
        let took = took.map(|us| Duration::from_micros(us.into()));
        if !std::mem::replace(&mut leg.prefilled, true) {
            leg.trace.enter("decode");
            // The first token is the proof: a prefill worker that failed computed nothing.
            match self.outputs.iter().any(|output| output.prefill_failed) {
                false => leg.place.prefill_done(took),
                true => leg.place.prefill_failed(),
            }
        }
        if let Some(way) = took.and_then(|took| leg.place.handed_over(took)) {
            self.placer.metrics.kv_transfer_duration.observe(way.as_secs_f64());
        }
        let mut failure = None;
        for output in &mut self.outputs {
            let Some(choice) = output
                .choice
                .checked_sub(leg.first_choice)
                .and_then(|choice| leg.choices.get_mut(choice as usize))
            else {
                tracing::error!(
                    choice = output.choice,
                    "a worker answered for a choice nobody asked for"
                );
                return Err(ApiError::internal());
            };
            choice.generated.extend_from_slice(&output.token_ids);
            output.choice += leg.base;
            if let Some(finish) = &output.finish {
                match failed(finish) {
                    false => choice.ended = true,
                    true => failure = Some((finish.error_kind(), finish.error_message.clone())),
                }
            }
        }
        let blocks = leg.new_blocks(self.placer.pool.block_size().get() as usize);
        for _ in 0..blocks {
            leg.place.output_block();
        }
        let Some((kind, message)) = failure else { return Ok(()) };
        take_failures(&mut self.outputs);
        match kind {
            ErrorKind::Invalid => Err(invalid(&message, self.placer.plan.guided)),
            ErrorKind::Overloaded | ErrorKind::Unprefilled
                if self.legs[at].attempts >= self.placer.plan.migration_limit =>
            {
                Err(ApiError::unavailable(message, RETRY_AFTER))
            }
            kind => {
                let worker = self.legs[at].lost(kind);
                let had_taken = !matches!(kind, ErrorKind::Draining | ErrorKind::UnknownWorker);
                self.migrate(at, Loss { worker, why: &message, had_taken })
            }
        }
    }

    /// Continues the unfinished choices of a leg without the worker that was lost, each as a leg of
    /// its own.
    fn migrate(&mut self, at: usize, loss: Loss<'_>) -> Result<(), ApiError> {
        let leg = self.legs.swap_remove(at);
        let Loss { worker: lost, why, had_taken } = loss;
        let Placer { pool, metrics, plan, .. } = &*self.placer;
        leg.trace.fail(why);
        pool.suspect(lost);
        // The limit keeps a request that kills workers from killing all. One that was never taken
        // kills none, and tries as often as the timeouts of tokens allow: a suspect worker gets
        // nothing for a while.
        let attempts = leg.attempts + u32::from(had_taken);
        if attempts > plan.migration_limit {
            tracing::warn!(request_id = plan.request_id, worker = %lost, why, attempts, "giving up");
            return Err(ApiError::bad_gateway(format!(
                "the worker failed and {attempts} attempts were made"
            )));
        }
        let begun = leg.choices.iter().any(|choice| !choice.ended && !choice.generated.is_empty());
        if let Some(field) = plan.guided.filter(|_| begun) {
            // An engine would begin the form anew behind the half that the client has.
            tracing::warn!(request_id = plan.request_id, worker = %lost, why, field, "giving up");
            return Err(ApiError::bad_gateway(format!(
                "the worker failed, and an answer with {field} cannot go on elsewhere"
            )));
        }
        tracing::info!(request_id = plan.request_id, worker = %lost, why, "continuing elsewhere");
        metrics.migrations.inc();
        let Leg { prompt, base, first_choice, choices, stream, place, .. } = leg;
        drop((stream, place));
        for (choice, progress) in (first_choice..).zip(choices) {
            if progress.ended {
                continue;
            }
            let start = Start {
                prompt: prompt.clone(),
                base,
                first_choice: choice,
                choices: vec![progress],
                attempts,
            };
            let placer = self.placer.clone();
            self.placing.spawn(async move { placer.submit(start, vec![lost]).await });
        }
        Ok(())
    }
}

impl Placer {
    /// Chooses a worker and sends it the tokens. All choices of a start have generated the same
    /// tokens: none, or there is one choice.
    async fn submit(&self, start: Start, excluded: Vec<WorkerRank>) -> Result<Leg, ApiError> {
        let Start { prompt, base, first_choice, choices, attempts } = start;
        let resumed = choices.first().map_or(&[][..], |choice| &choice.generated);
        let tokens: Vec<u32> = prompt.iter().chain(resumed).copied().collect();
        let mut entry = placing::entry(&self.plan, &tokens, self.pool.block_size(), choices.len());
        entry.deadline = self.plan.steering.ttl.map(|ttl| self.pool.deadline(ttl));
        let trace = trace::work(&self.trace, excluded.first().copied());
        trace.enter("queue");
        entry.payload.explain = trace.is_sampled();
        entry.payload.excluded = excluded;
        let admitted = self.pool.admit(entry).await;
        let Plan { steering, adapter, .. } = &self.plan;
        let unplaced = |error| {
            self.metrics.unplaced(&error);
            placing::unplaced(steering, adapter.as_deref(), error)
        };
        let admitted = admitted.map_err(unplaced)?;
        self.metrics.queue_duration.observe(admitted.waited.as_secs_f64());
        let place = admitted.place;
        trace::picked(&trace, place.decision(), tokens.len() as u32, self.pool.block_size());
        placing::count(&self.metrics, &self.plan, &place, choices.len());
        let mut submit = placing::submission(&self.plan, &place);
        if let Some((traceparent, tracestate)) = trace.headers() {
            (submit.traceparent, submit.tracestate) = (traceparent, tracestate.unwrap_or_default());
        }
        let stream = place.client().submit(Submit {
            token_ids: tokens,
            resumed_tokens: resumed.len() as u32,
            choices: choices.len() as u32,
            first_choice,
            ..submit
        });
        trace.enter("prefill");
        // What was resumed is part of the prompt that was booked.
        let blocks = resumed.len() / self.pool.block_size().get() as usize;
        Ok(Leg {
            prompt,
            base,
            first_choice,
            choices,
            attempts,
            place,
            stream,
            prefilled: false,
            trace,
            blocks,
        })
    }
}

impl Leg {
    /// The worker that failed it: the one that answers, unless it only lacks the prompt.
    fn lost(&self, kind: ErrorKind) -> WorkerRank {
        let prefill = self.place.decision().prefill.filter(|_| kind == ErrorKind::Unprefilled);
        prefill.map_or(self.place.worker(), |leg| leg.worker)
    }

    /// Blocks that the longest of its choices has filled since this was last asked: they grow side
    /// by side, and what times are learnt from is one sequence.
    fn new_blocks(&mut self, block_size: usize) -> usize {
        let tokens = self.choices.iter().map(|choice| choice.generated.len()).max().unwrap_or(0);
        let blocks = tokens / block_size;
        blocks - std::mem::replace(&mut self.blocks, blocks)
    }
}

/// Whether a worker ended a choice without an answer.
fn failed(finish: &Finish) -> bool {
    !matches!(finish.reason(), FinishReason::Stop | FinishReason::Length)
}

/// Takes the workers' failures out of outputs. Tokens that came before a failure may be in one output
/// with it: the client gets them, as the worker that goes on takes them for said.
fn take_failures(outputs: &mut Vec<Output>) {
    outputs.retain_mut(|output| {
        let failure = output.finish.take_if(|finish| failed(finish));
        failure.is_none() || !output.token_ids.is_empty()
    });
}

/// A worker's refusal, in the words of the request.
fn invalid(message: &str, guided: Option<&'static str>) -> ApiError {
    match (message.strip_prefix("guide: "), guided) {
        (Some(why), Some(field)) => ApiError::unsupported(field, format!("{field}: {why}")),
        _ => ApiError::bad_request(message),
    }
}

/// The loss of a leg.
struct Loss<'a> {
    /// The worker that failed it.
    worker: WorkerRank,
    /// The cause, for logs and clients.
    why: &'a str,
    /// Whether the worker may have begun with it: only then it counts as an attempt.
    had_taken: bool,
}

/// A leg that is still to be placed.
struct Start {
    prompt: Arc<[u32]>,
    base: u32,
    first_choice: u32,
    choices: Vec<Progress>,
    attempts: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(token_ids: &[u32], reason: Option<FinishReason>) -> Output {
        let finish = reason.map(|reason| Finish { reason: reason.into(), ..Finish::default() });
        Output { token_ids: token_ids.to_vec(), finish, ..Output::default() }
    }

    #[test]
    fn tokens_that_come_with_a_failure_reach_the_client() {
        let mut outputs = vec![
            output(&[1], None),
            output(&[2], Some(FinishReason::Stop)),
            output(&[3, 4], Some(FinishReason::Error)),
            output(&[], Some(FinishReason::Cancelled)),
        ];
        take_failures(&mut outputs);
        let stopped = output(&[2], Some(FinishReason::Stop));
        assert_eq!(outputs, [output(&[1], None), stopped, output(&[3, 4], None)]);
    }
}
