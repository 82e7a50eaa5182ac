//! Requests about responses that are kept: here, or by the engine that gave them.

use super::Service;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::standalone::pass_through::{PassContext, PassedRequest};
use crate::standalone::query::Query;
use crate::standalone::responses::ResponseRoute;
use std::time::Instant;

impl Service {
    /// Answers from the store of this proxy, unless an engine is known to keep the response.
    pub(super) async fn response(
        &self,
        exchange: &mut Exchange,
        route: ResponseRoute<'_>,
        query: &Query,
    ) -> Result<(), Failure> {
        let account = self.authorize(exchange)?;
        let about = PassedRequest::about(exchange, account, route.id(), self.pass_context())?;
        let Some(passed) = about else {
            return route.answer(exchange, &self.store, account, query).await;
        };
        self.admit(exchange)?;
        self.pass_through.answer(exchange, &passed, Instant::now()).await
    }

    /// The state by which requests that pass are read.
    pub(super) fn pass_context(&self) -> PassContext<'_> {
        PassContext {
            catalog: &self.catalog,
            settings: &self.settings,
            removed: &self.metrics.fields_removed,
            kept: self.pass_through.kept(),
        }
    }
}
