//! One completion on its way to the client: as an event stream, or whole.

use super::answer::Answer;
use super::config::ProxySettings;
use super::generate::Generation;
use super::job::Job;
use super::metrics::Metrics;
use crate::exchange::Exchange;
use crate::failure::Failure;
use http::StatusCode;
use stator_api::delta::{Identity, Usage};
use stator_api::openai::ApiError;
use stator_api::stream::{AnswerEvents, push_answer};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// A completion that runs.
pub(crate) struct Run<'a> {
    metrics: &'a Metrics,
    first_token_timeout: Duration,
    idle_timeout: Duration,
    job: Job,
    generation: Generation,
    answer: Answer,
    started: Instant,
    first_token: Option<Instant>,
    /// The worker that the first prompt was placed on, for the response's header.
    worker: String,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        settings: &ProxySettings,
        metrics: &'a Metrics,
        job: Job,
        generation: Generation,
        started: Instant,
    ) -> Self {
        let answer = Answer::new(&job);
        let worker = generation.worker().map(|rank| rank.worker.to_string()).unwrap_or_default();
        Self {
            metrics,
            first_token_timeout: settings.first_token_timeout,
            idle_timeout: settings.idle_timeout,
            job,
            generation,
            answer,
            started,
            first_token: None,
            worker,
        }
    }

    /// Whether the client wants an event stream.
    pub(crate) fn streams(&self) -> bool {
        self.job.options.stream
    }

    /// Writes events as tokens come. Errors before the first token are the caller's to answer;
    /// later ones end the stream as an error event.
    pub(crate) async fn stream(&mut self, exchange: &mut Exchange) -> Result<(), Failure> {
        let created = created();
        let id = exchange.request_id().to_owned();
        let identity = Identity { id: &id, created, model: &self.job.model_name };
        let mut writer = AnswerEvents::new(self.job.form, &identity);
        let mut events = Vec::new();
        let mut begun = false;
        loop {
            let open = match self.advance(exchange).await {
                Ok(open) => open,
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
            if !begun {
                self.answer.begin(&writer, &mut events);
            }
            self.answer.write(&mut writer, &mut events);
            if !open {
                writer.end(&mut events, self.answer.usage());
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
        while self.advance(exchange).await? {}
        let id = exchange.request_id().to_owned();
        let identity = Identity { id: &id, created: created(), model: &self.job.model_name };
        let mut body = Vec::new();
        let calls = self.answer.calls();
        let choices = self.answer.deltas(&calls);
        push_answer(&mut body, self.job.form, &identity, &choices, self.answer.usage());
        exchange.respond(StatusCode::OK, "application/json", body.into(), &[]).await;
        Ok(())
    }

    /// Takes in what has come. False when the answer is complete.
    async fn advance(&mut self, exchange: &mut Exchange) -> Result<bool, Failure> {
        let limit = match self.first_token {
            None => self.first_token_timeout.saturating_sub(self.started.elapsed()),
            Some(_) => self.idle_timeout,
        };
        let next = tokio::select! {
            // What has come goes first: a client that leaves with its answer complete is not gone.
            biased;
            next = timeout(limit, self.generation.next()) => next,
            gone = exchange.gone() => return Err(gone.into()),
        };
        match next {
            Ok(outputs) => match outputs? {
                Some(outputs) => self.answer.take(outputs),
                None if self.answer.open() => {
                    tracing::error!("the workers ended an answer without a reason");
                    return Err(ApiError::internal().into());
                }
                None => {}
            },
            Err(_) => {
                let what = if self.first_token.is_none() { "first" } else { "next" };
                let message =
                    format!("the {what} token did not come within {} ms", limit.as_millis());
                return Err(ApiError::gateway_timeout(message).into());
            }
        }
        if self.first_token.is_none() {
            let now = Instant::now();
            self.first_token = Some(now);
            self.metrics.time_to_first_token.observe((now - self.started).as_secs_f64());
        }
        Ok(self.answer.open())
    }

    /// Tokens of the request so far.
    pub(crate) fn usage(&self) -> Usage {
        self.answer.usage()
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

/// Seconds since 1970.
fn created() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
