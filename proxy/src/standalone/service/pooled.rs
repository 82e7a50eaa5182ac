//! Requests for vectors of texts, and for what is made of them.

use super::{Service, beside, json};
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::standalone::clock::created;
use crate::standalone::pooled::{prepare, vectors};
use crate::standalone::route::Route;
use crate::standalone::trace;
use http::StatusCode;
use stator_api::Api;
use stator_api::delta::Identity;
use stator_runtime::trace::parent_from;
use std::time::Instant;

impl Service {
    /// Makes vectors, and what is asked for of them.
    pub(super) async fn pooled(&self, exchange: &mut Exchange, api: Api) -> Result<(), Failure> {
        let account = self.authorize(exchange)?;
        self.admit(exchange)?;
        let started = Instant::now();
        let parent = || parent_from(exchange.traceparent()?, exchange.tracestate());
        exchange.follow(trace::request(api, exchange.request_id(), parent));
        let body = self.read(exchange).await?;
        if let Some(passed) = self.passed(exchange, account, &body)? {
            return Box::pin(self.pass_through.answer(exchange, &passed, started)).await;
        }
        self.settle_unpassed(exchange, &Route::Pooled(api))?;
        let client = exchange.as_client(account);
        let (path, catalog, settings) = (exchange.path(), &self.catalog, &self.settings);
        let job = beside(&body, || prepare(&body, api, path, catalog, client, settings))?;
        drop(body);
        exchange.release_body();
        exchange.ignores(job.ignored.as_deref());
        let trace = exchange.trace().clone();
        let (metrics, limit) = (&self.metrics, self.settings.first_token_timeout);
        let vectors = tokio::select! {
            biased;
            vectors = vectors(&job, metrics, limit, &trace) => vectors?,
            gone = exchange.gone() => return Err(gone.into()),
        };
        trace::answered(&trace, vectors.usage());
        if let Some(rate) = exchange.as_client(account).rate {
            rate.take_tokens(vectors.usage().prompt_tokens, Instant::now());
        }
        metrics.request_duration.observe(started.elapsed().as_secs_f64());
        let identity =
            Identity { id: exchange.request_id(), created: created(), model: &job.model_name };
        let answer = vectors.answer(&job.form, &identity)?;
        json(exchange, StatusCode::OK, answer).await;
        Ok(())
    }
}
