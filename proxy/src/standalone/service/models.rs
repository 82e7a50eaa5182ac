//! Queries of requests, and the list of models.

use super::Service;
use crate::exchange::Exchange;
use crate::standalone::listing;
use crate::standalone::query::Query;
use crate::standalone::route::Route;
use stator_api::openai::ApiError;

impl Service {
    /// The query of a request, of whose other parameters the answer tells.
    pub(super) fn settle_query(
        &self,
        exchange: &mut Exchange,
        route: &Route<'_>,
    ) -> Result<Query, ApiError> {
        // A request that may pass is settled once it is known not to.
        let may_pass = matches!(
            route,
            Route::Generate(_)
                | Route::Count(_)
                | Route::Pooled(_)
                | Route::Tokenize
                | Route::Detokenize
        );
        match may_pass && self.catalog.passes() {
            true => Ok(Query::default()),
            false => self.settle(exchange, route),
        }
    }

    /// Settles the query of a request that might have passed, and does not.
    pub(super) fn settle_unpassed(
        &self,
        exchange: &mut Exchange,
        route: &Route<'_>,
    ) -> Result<(), ApiError> {
        match self.catalog.passes() {
            true => self.settle(exchange, route).map(drop),
            false => Ok(()),
        }
    }

    fn settle(&self, exchange: &mut Exchange, route: &Route<'_>) -> Result<Query, ApiError> {
        let sent = exchange.request().uri.query().unwrap_or_default();
        let (query, ignored) = Query::settle(
            sent,
            route.parameters(for_anthropic(exchange)),
            self.settings.unknown_fields,
        )?;
        exchange.ignores(ignored.as_deref());
        Ok(query)
    }

    /// The models, or one of them.
    pub(super) fn models(
        &self,
        exchange: &Exchange,
        route: Route<'_>,
        query: &Query,
    ) -> Result<Vec<u8>, ApiError> {
        Ok(match (route, for_anthropic(exchange)) {
            (Route::Model(name), false) => listing::one(&self.catalog.describe(name)?),
            (Route::Model(name), true) => listing::one_for_anthropic(&self.catalog.describe(name)?),
            (_, false) => listing::list(&self.catalog.list()?),
            (_, true) => listing::list_for_anthropic(&self.catalog.list()?, query)?,
        })
    }
}

/// Whether a client reads Anthropic's shape where a path has two.
fn for_anthropic(exchange: &Exchange) -> bool {
    exchange.header("anthropic-version").is_some()
}
