//! One completion on its way to the client: as an event stream, or whole.

use super::answer::Answer;
use super::clock::created;
use super::generate::Generation;
use super::job::Job;
use super::late_timer::LateTimer;
use super::metrics::Metrics;
use crate::exchange::{Exchange, HangUp};
use crate::failure::Failure;
use http::StatusCode;
use stator_api::Delta;
use stator_api::delta::{Identity, Usage};
use stator_api::openai::ApiError;
use stator_api::responses::ResponseEvents;
use stator_api::stream::{AnswerEvents, push_answer};
use std::time::{Duration, Instant};

/// Longest waits for tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    /// Until the first.
    pub first_token: Duration,
    /// From one to the next.
    pub idle: Duration,
    /// Until a stream gets a comment.
    pub comment_pause: Option<Duration>,
}

/// News of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunProgress {
    /// Some of it has come, and more is to come.
    Open,
    /// Nothing has come for a while.
    Silent,
    /// All of it has come.
    Over,
}

/// A completion that runs.
pub(crate) struct Run<'a> {
    metrics: &'a Metrics,
    limits: RunLimits,
    job: Box<Job>,
    generation: Generation,
    answer: Answer,
    started: Instant,
    first_token: Option<Instant>,
    /// Time of the last output.
    heard: Instant,
    timer: LateTimer,
    /// The worker that the first prompt was placed on, for the response's header.
    worker: String,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        limits: RunLimits,
        metrics: &'a Metrics,
        job: Box<Job>,
        generation: Generation,
        started: Instant,
    ) -> Self {
        let answer = Answer::new(&job);
        if let Some(rate) = &job.rate {
            rate.take_tokens(answer.usage().prompt_tokens, started);
        }
        let worker = generation.worker().map(|rank| rank.worker.to_string()).unwrap_or_default();
        Self {
            metrics,
            limits,
            job,
            generation,
            answer,
            started,
            first_token: None,
            heard: started,
            timer: LateTimer::new(started + limits.first_token),
            worker,
        }
    }

    /// Names of the request's fields that change nothing, with commas between them.
    pub(crate) fn ignored(&self) -> Option<&str> {
        self.job.ignored.as_deref()
    }

    /// Whether the client wants an event stream.
    pub(crate) fn streams(&self) -> bool {
        self.job.options.stream
    }

    /// Writes events as tokens come. Errors before the first token are the caller's to answer;
    /// later ones end the stream as an error event.
    pub(crate) async fn stream(&mut self, exchange: &mut Exchange) -> Result<(), Failure> {
        let created = created();
        let id = self.id(exchange);
        let identity = Identity { id: &id, created, model: &self.job.model_name };
        let mut writer = AnswerEvents::new(&self.job.form, &identity);
        let mut events = Vec::new();
        let (mut begun, mut introduced) = (false, false);
        loop {
            let open = match self.advance(exchange.gone()).await {
                Ok(RunProgress::Silent) => {
                    writer.comment(&mut events);
                    let comment = std::mem::take(&mut events).into();
                    match std::mem::replace(&mut begun, true) {
                        // From here on an error is an event.
                        false => exchange.begin_stream(&self.worker, comment, false).await?,
                        true => exchange.stream(comment, false).await?,
                    }
                    continue;
                }
                Ok(progress) => progress == RunProgress::Open,
                Err(Failure::Error(error)) if begun => {
                    exchange.trace().fail(&error.message);
                    writer.error(&mut events, &error);
                    exchange.stream(events.into(), true).await?;
                    tracing::warn!(request_id = id, %error, "a stream ended with an error");
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            };
            // Only now, so that an error before the first token still gets a status of its own.
            if !std::mem::replace(&mut introduced, true) {
                self.answer.begin(&mut writer, &mut events);
            }
            self.answer.write(|delta, so_far| {
                writer.delta(&mut events, delta, so_far);
                if let Some(turn) = &mut self.job.next_turn {
                    turn.take(delta);
                }
            });
            if !open {
                writer.end(&mut events, self.answer.usage());
                // Before the client has its end, and may come back to it.
                self.keep(writer.response()).await;
            }
            let events = std::mem::take(&mut events).into();
            match std::mem::replace(&mut begun, true) {
                false => exchange.begin_stream(&self.worker, events, !open).await?,
                true => exchange.stream(events, !open).await?,
            }
            if !open {
                return Ok(());
            }
        }
    }

    /// Collects the answer and writes it at once.
    pub(crate) async fn whole(&mut self, exchange: &mut Exchange) -> Result<(), Failure> {
        while self.advance(exchange.gone()).await? != RunProgress::Over {}
        let id = self.id(exchange);
        let identity = Identity { id: &id, created: created(), model: &self.job.model_name };
        let mut body = Vec::new();
        let calls = self.answer.calls();
        let choices = self.answer.deltas(&calls);
        if let Some(turn) = &mut self.job.next_turn {
            choices.iter().for_each(|delta| turn.take(delta));
        }
        let usage = self.answer.usage();
        let response = push_answer(&mut body, &self.job.form, &identity, &choices, usage);
        self.keep(response.as_ref()).await;
        exchange.respond(StatusCode::OK, "application/json", body.into(), &[]).await;
        Ok(())
    }

    /// The answer's identity: a response's own, or that of its request.
    fn id(&self, exchange: &Exchange) -> String {
        self.job.response_id.clone().unwrap_or_else(|| exchange.request_id().to_owned())
    }

    /// Keeps a response, if its request wants that.
    fn keep(&self, response: Option<&ResponseEvents>) -> impl Future<Output = ()> + Send + use<> {
        let kept = self.job.keeper.as_ref().zip(response).map(|(keeper, response)| {
            keeper.keep(response.clone());
            let (keeper, id) = (keeper.clone(), self.job.response_id.clone().unwrap_or_default());
            // Boxed: every stream would keep room for it.
            Box::pin(async move { keeper.settle(&id).await })
        });
        async move {
            if let Some(kept) = kept {
                kept.await;
            }
        }
    }

    /// Hands on what is new of the answer.
    pub(crate) fn write(&mut self, mut each: impl FnMut(&Delta<'_>, Usage)) {
        self.answer.write(|delta, so_far| {
            each(delta, so_far);
            if let Some(turn) = &mut self.job.next_turn {
                turn.take(delta);
            }
        });
    }

    /// Takes in what has come, if anything comes before a comment is due. `gone` ends where nobody wants
    /// the answer any more.
    ///
    /// # Errors
    ///
    /// When the answer cannot go on, or nobody wants it.
    pub(crate) async fn advance(
        &mut self,
        gone: impl Future<Output = HangUp>,
    ) -> Result<RunProgress, Failure> {
        let deadline = match self.first_token {
            None => self.started + self.limits.first_token,
            Some(_) => self.heard + self.limits.idle,
        };
        let comment = self.limits.comment_pause.map(|pause| Instant::now() + pause);
        // One wait for both.
        let due = comment.map_or(deadline, |comment| comment.min(deadline));
        let next = tokio::select! {
            // What has come goes first: a client that leaves with its answer complete is not gone.
            biased;
            next = self.generation.next() => Some(next),
            () = self.timer.wait_until(due) => None,
            gone = gone => return Err(gone.into()),
        };
        match next {
            Some(outputs) => match outputs? {
                Some(outputs) => {
                    let before = self.answer.usage().completion_tokens;
                    self.answer.take(outputs);
                    if let Some(rate) = &self.job.rate {
                        let tokens = self.answer.usage().completion_tokens - before;
                        rate.take_tokens(tokens, Instant::now());
                    }
                }
                None if self.answer.open() => {
                    tracing::error!("the workers ended an answer without a reason");
                    return Err(ApiError::internal().into());
                }
                None => {}
            },
            None if due < deadline => return Ok(RunProgress::Silent),
            None => {
                let (what, whole) = match self.first_token {
                    None => ("first", self.limits.first_token),
                    Some(_) => ("next", self.limits.idle),
                };
                let message =
                    format!("the {what} token did not come within {} ms", whole.as_millis());
                return Err(ApiError::gateway_timeout(message).into());
            }
        }
        let now = Instant::now();
        self.heard = now;
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.metrics.time_to_first_token.observe((now - self.started).as_secs_f64());
        }
        Ok(if self.answer.open() { RunProgress::Open } else { RunProgress::Over })
    }

    /// Tokens of the request so far.
    pub(crate) fn usage(&self) -> Usage {
        self.answer.usage()
    }

    /// Has the turn after the answer computed, if the request asks for that.
    pub(crate) fn begin_next_turn(&mut self, priority: i32) {
        if let Some(turn) = self.job.next_turn.take() {
            turn.begin(self.job.served.clone(), &self.job.plan, self.metrics, priority);
        }
    }

    /// Counts the request's tokens and times.
    pub(crate) fn record(&self) {
        let usage = self.answer.usage();
        self.metrics.prompt_tokens.inc_by(usage.prompt_tokens.into());
        self.metrics.cached_tokens.inc_by(usage.cached_tokens.into());
        self.metrics.completion_tokens.inc_by(usage.completion_tokens.into());
        self.metrics.request_duration.observe(self.started.elapsed().as_secs_f64());
        let gaps = self.answer.longest().saturating_sub(1);
        if let (Some(first), 1..) = (self.first_token, gaps) {
            let mean = first.elapsed().as_secs_f64() / f64::from(gaps);
            self.metrics.inter_token_latency.observe(mean);
        }
    }
}
