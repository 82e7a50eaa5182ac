//! Responses that are generated while nobody waits, and clients that follow them.

use super::keeper::ResponseKeeper;
use super::record::ResponseRecord;
use crate::exchange::{Exchange, HangUp};
use crate::failure::Failure;
use crate::standalone::generate::Generation;
use crate::standalone::job::Job;
use crate::standalone::metrics::Metrics;
use crate::standalone::run::{Run, RunLimits, RunProgress};
use stator_api::openai::ApiError;
use stator_runtime::trace::Stages;
use std::sync::Arc;
use std::time::Instant;

/// Work on one response. Whatever becomes of it, its record says so.
pub(crate) struct BackgroundWork {
    pub record: Arc<ResponseRecord>,
    pub keeper: ResponseKeeper,
    pub metrics: Metrics,
    pub limits: RunLimits,
    /// Priority of the turn after the response, where it is computed ahead.
    pub next_turn_priority: i32,
    pub trace: Stages,
}

impl BackgroundWork {
    /// Generates the response until it is over or nobody wants it.
    pub(crate) async fn run(self, job: Box<Job>, id: String) {
        if let Err(Failure::Error(error)) = self.generate(job).await {
            tracing::warn!(id, %error, "a response in the background failed");
            self.record.advance(|events, out| events.error(out, &error));
        }
        self.keeper.keep_grown(&id, &self.record);
    }

    async fn generate(&self, job: Box<Job>) -> Result<(), Failure> {
        let started = Instant::now();
        let generation = tokio::select! {
            biased;
            generation = Generation::start(self.metrics.clone(), job.work(), &self.trace) => generation?,
            () = self.record.unwanted() => return Err(Failure::Gone),
        };
        self.record.advance(|events, out| events.begin(out));
        let mut run = Run::new(self.limits, &self.metrics, job, generation, started);
        loop {
            let gone = async {
                self.record.unwanted().await;
                HangUp
            };
            let open = match run.advance(gone).await? {
                RunProgress::Silent => continue,
                progress => progress == RunProgress::Open,
            };
            self.record.advance(|events, out| {
                run.write(|delta, _| events.delta(out, delta));
                if !open {
                    events.end(out, run.usage());
                }
            });
            if !open {
                run.record();
                run.begin_next_turn(self.next_turn_priority);
                return Ok(());
            }
        }
    }
}

/// Writes the events of a response from number `from` on, and follows it until it is over.
///
/// # Errors
///
/// 400 for a response that was not generated in the background: its events went to its client.
pub(crate) async fn follow(
    exchange: &mut Exchange,
    record: &ResponseRecord,
    mut from: u64,
) -> Result<(), Failure> {
    if !record.background {
        let message = "only a response with background: true can be streamed again";
        return Err(ApiError::bad_request(message).into());
    }
    // Before the first look, so that no change falls between the two.
    let mut news = record.follow();
    let mut begun = false;
    loop {
        let is_over = record.is_over();
        let (batches, next) = record.events(from);
        from = from.max(next);
        let events = bytes::Bytes::from(batches.concat());
        match begun {
            false => exchange.begin_stream("", events, is_over).await?,
            true if !events.is_empty() || is_over => exchange.stream(events, is_over).await?,
            true => {}
        }
        begun = true;
        if is_over {
            return Ok(());
        }
        tokio::select! {
            // The record lives as long as this borrow.
            _ = news.changed() => {}
            gone = exchange.gone() => return Err(gone.into()),
        }
    }
}
