//! Models whose engines take requests as they came: servers of the OpenAI API that no dialect
//! knows. The request goes straight to the engine's address, which its agent tells; the agent
//! keeps watch and is not on the way.
//!
//! Nobody makes tokens here: prompts are named by blocks of their text, and a worker is taken to
//! hold what it was sent. Only fields and headers on a list reach an engine: other fields are
//! obeyed here, refused, or named to the client. The answer loses what it tells other engines; all
//! else passes as it is. Start reading at [`PassThrough::answer`].

mod kept_responses;
mod origin;
mod passed_request;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;

pub(crate) use passed_request::{PassContext, PassedRequest};

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::standalone::Place;
use crate::standalone::config::ProxySettings;
use crate::standalone::metrics::Metrics;
use crate::standalone::placing::{self, RETRY_AFTER};
use crate::upstream::answer::{Answer, PartWatch};
use crate::upstream::engines::{Engines, Leg, LegError};
use crate::upstream::relay::Relay;
use crate::upstream::settings::{EngineTls, UpstreamSettings};
use http::HeaderName;
use kept_responses::{KeptResponses, ResponseHome, ResponseLearner};
use origin::Origin;
use stator_api::openai::ApiError;
use stator_gate::AdmitError;
use stator_placement::PickError;
use stator_protos::WorkerRank;
use stator_protos::header::{REQUEST_ID, WORKER_ID};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// Passes requests on.
pub(crate) struct PassThrough {
    engines: Engines,
    metrics: Metrics,
    first_token_timeout: Duration,
    migration_limit: u32,
    /// Told once: an engine is not known to keep prefix spaces apart.
    unseparated: Once,
    /// Responses that engines keep.
    kept: Arc<KeptResponses>,
}

/// An answer that has begun, and the place of its request.
struct Begun {
    leg: Leg,
    place: Place,
}

impl PassThrough {
    pub(crate) fn new(settings: &ProxySettings, metrics: Metrics) -> Self {
        let engines = Engines::new(UpstreamSettings {
            head_timeout: settings.first_token_timeout,
            idle_timeout: settings.idle_timeout,
            decoder_tls: EngineTls::Checked,
            prefiller_tls: EngineTls::Checked,
            ca_file: None,
        });
        let ProxySettings { first_token_timeout, migration_limit, .. } = *settings;
        let unseparated = Once::new();
        let kept = Arc::default();
        Self { engines, metrics, first_token_timeout, migration_limit, unseparated, kept }
    }

    /// Responses that engines keep.
    pub(crate) fn kept(&self) -> &KeptResponses {
        &self.kept
    }

    /// Has an engine answer, and passes its answer on as it comes.
    ///
    /// # Errors
    ///
    /// When nothing has come yet that could be passed on, or the client has gone.
    pub(crate) async fn answer(
        &self,
        exchange: &mut Exchange,
        passed: &PassedRequest,
        started: Instant,
    ) -> Result<(), Failure> {
        if passed.stripped {
            self.metrics.passed_stripped.inc();
        }
        exchange.ignores(passed.ignored.as_deref());
        let Begun { leg, place } = tokio::select! {
            biased;
            begun = self.begin(exchange.request_id().to_owned(), passed, started) => begun?,
            // Drops the request, by which the engine knows.
            gone = exchange.gone() => return Err(gone.into()),
        };
        self.metrics.time_to_first_token.observe(started.elapsed().as_secs_f64());
        // The head of an answer in one piece comes with its last token.
        if leg.streams() {
            place.prefill_done(None);
        }
        let worker = place.worker().worker.to_string().try_into();
        let worker = worker.map(|worker| (HeaderName::from_static(WORKER_ID), worker));
        let identity = (HeaderName::from_static(REQUEST_ID), exchange.identity());
        let stamp: Vec<_> = worker.into_iter().chain([identity]).collect();
        let Metrics { passed_bytes, passed_cut, .. } = &self.metrics;
        let relay = Relay {
            engines: &self.engines,
            answer_bytes: passed_bytes,
            cut: passed_cut,
            stamp: &stamp,
            started,
        };
        let learner = passed.tenant.filter(|_| leg.head().status.is_success()).map(|tenant| {
            let model = passed.pool.record().name.as_str().into();
            let home = ResponseHome { model, worker: place.worker(), tenant };
            ResponseLearner::new(self.kept.clone(), home)
        });
        let watch = learner
            .map(|mut learner| -> PartWatch { Box::new(move |part: &[u8]| learner.push(part)) });
        let answer = Answer { watch, ..Answer::plain(leg, "engine") };
        let relayed = relay.pass_on(exchange, answer).await;
        self.metrics.request_duration.observe(started.elapsed().as_secs_f64());
        relayed
    }

    /// Finds an engine that begins to answer. One that cannot be reached, or breaks off before it
    /// has said anything, is left alone for a moment, and another one is asked. An engine that
    /// cannot be reached costs no attempt while there are others: nothing was sent to it.
    async fn begin(
        &self,
        request_id: String,
        passed: &PassedRequest,
        started: Instant,
    ) -> Result<Begun, ApiError> {
        let mut lost: Vec<WorkerRank> = Vec::new();
        let mut attempts = 0;
        loop {
            let placing = Instant::now();
            let admitted = passed.pool.admit(passed.entry(&lost)).await;
            let unplaced = |error| {
                self.metrics.unplaced(&error);
                match (&passed.kept, &error) {
                    (Some(id), AdmitError::Failed(PickError::PinnedUnavailable { .. })) => {
                        let message =
                            format!("the engine that keeps the response {id:?} is not there");
                        ApiError::unavailable(message, RETRY_AFTER)
                    }
                    _ => placing::unplaced(&passed.steering, passed.adapter.as_deref(), error),
                }
            };
            let admitted = admitted.map_err(unplaced)?;
            self.metrics.queue_duration.observe(admitted.waited.as_secs_f64());
            self.metrics.placement_duration.observe(placing.elapsed().as_secs_f64());
            let place = admitted.place;
            let limit = self.first_token_timeout.saturating_sub(started.elapsed());
            let error = match tokio::time::timeout(limit, self.ask(passed, &place)).await {
                Ok(Ok(leg)) => return Ok(Begun { leg, place }),
                Ok(Err(error @ (LegError::Connect { .. } | LegError::Broken { .. }))) => error,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {
                    let limit = self.first_token_timeout.as_millis();
                    let message = format!("the answer did not begin within {limit} ms");
                    return Err(ApiError::gateway_timeout(message));
                }
            };
            let worker = place.worker();
            passed.pool.suspect(worker);
            drop(place);
            // Once for each engine, so that the number of engines bounds the search.
            let unspent = matches!(error, LegError::Connect { .. })
                && !lost.contains(&worker)
                && passed.pool.accepting() > 0;
            lost.push(worker);
            if !unspent {
                attempts += 1;
                if attempts > self.migration_limit {
                    tracing::warn!(request_id, %worker, %error, attempts, "giving up");
                    return Err(error.into());
                }
                self.metrics.migrations.inc();
            }
            tracing::info!(request_id, %worker, %error, "asking another engine");
        }
    }

    /// Asks the engine of a place, and waits until some of its answer is there.
    async fn ask(&self, passed: &PassedRequest, place: &Place) -> Result<Leg, LegError> {
        let profile = place.client().profile();
        let nowhere = || LegError::Connect {
            peer: place.worker().to_string(),
            cause: "its agent does not say where it is".to_owned(),
        };
        let api = profile.api.as_ref().ok_or_else(nowhere)?;
        let origin = Origin::parse(&api.url).ok_or_else(nowhere)?;
        if passed.is_unseparated(api) {
            self.unseparated.call_once(|| {
                let model = passed.pool.record().name.as_str();
                tracing::warn!(
                    model,
                    engine = api.url,
                    "an engine is not known to take cache_salt: API keys and tenants share its prefixes"
                );
            });
        }
        let (head, body) = passed.onward(api, origin.host().ok_or_else(nowhere)?);
        let tls = if origin.tls { EngineTls::Checked } else { EngineTls::Plain };
        let engine = self.engines.engine(&origin.target, tls).await?;
        let mut leg = self.engines.send(&engine, &head, &body).await?;
        leg.begun().await?;
        Ok(leg)
    }
}
