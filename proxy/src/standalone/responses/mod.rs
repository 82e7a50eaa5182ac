//! Responses that clients come back to: kept, read again, followed, cancelled and forgotten.
//!
//! A response of `POST /v1/responses` takes the way of every completion; [`ResponseKeeper`] keeps
//! it before its client has its end. Start reading at [`ResponseRoute`], then [`background`].

mod archive;
pub(crate) mod background;
pub(crate) mod fuzz;
mod keeper;
mod limits;
mod listing;
mod postgres;
mod record;
mod references;
mod retrieval;
mod store;

pub(crate) use keeper::{PreviousItems, ResponseKeeper, new_id};
pub(crate) use limits::StoreLimits;
pub(crate) use postgres::PostgresPlace;
pub(crate) use record::ResponseKeeping;
pub(crate) use references::{OwnResponses, recall_named};
pub(crate) use store::{ResponseStore, SharedStore, StoreUse};

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::standalone::query::Query;
use bytes::Bytes;
use http::StatusCode;
use retrieval::Retrieval;
use stator_api::openai::ApiError;
use stator_api::space::Account;

/// A request about a response that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseRoute<'a> {
    /// The response, or its events, by id.
    Retrieve(&'a str),
    /// Forget it.
    Delete(&'a str),
    /// End it.
    Cancel(&'a str),
    /// The items that it was asked with.
    InputItems(&'a str),
}

impl<'a> ResponseRoute<'a> {
    /// The route of a path behind `/v1/responses/`, and the method that it takes; the response
    /// itself takes two.
    pub(crate) fn find(rest: &'a str, method: &str) -> Option<(Self, &'static str)> {
        match rest.split_once('/') {
            None if method == "DELETE" => Some((Self::Delete(rest), "GET, DELETE")),
            None => Some((Self::Retrieve(rest), "GET, DELETE")),
            Some((id, "cancel")) => Some((Self::Cancel(id), "POST")),
            Some((id, "input_items")) => Some((Self::InputItems(id), "GET")),
            Some(_) => None,
        }
    }

    /// The response's id.
    pub(crate) fn id(self) -> &'a str {
        match self {
            Self::Retrieve(id) | Self::Delete(id) | Self::Cancel(id) | Self::InputItems(id) => id,
        }
    }

    /// Answers a request of the tenant of `space`.
    pub(crate) async fn answer(
        self,
        exchange: &mut Exchange,
        store: &ResponseStore,
        account: Account,
        query: &Query,
    ) -> Result<(), Failure> {
        let id = self.id();
        let space = account.space_of(&exchange.request().headers, None, None)?;
        store.recall(id, space).await?;
        let record = store.find(id, space).ok_or_else(|| unknown(id))?;
        match self {
            Self::Retrieve(_) => {
                let seal = account.thought_seal(&exchange.request().headers)?;
                match retrieval::read(query)? {
                    Retrieval::Events { from, includes } => {
                        includes.check_events(&record)?;
                        exchange.ignores(
                            query.value("include_obfuscation").map(|_| "include_obfuscation"),
                        );
                        return background::follow(exchange, &record, from).await;
                    }
                    Retrieval::Object(includes) => {
                        let object = includes.object(&record, &seal)?;
                        json(exchange, object).await;
                    }
                }
            }
            Self::Delete(_) => {
                store.forget(id, space);
                record.cancel();
                store.settle(id).await?;
                let deleted = format!(r#"{{"id":"{id}","object":"response","deleted":true}}"#);
                json(exchange, deleted.into_bytes()).await;
            }
            Self::Cancel(_) if !record.background => {
                let message = "only a response with background: true can be cancelled";
                return Err(ApiError::bad_request(message).into());
            }
            Self::Cancel(_) => {
                record.cancel();
                json(exchange, record.object()).await;
            }
            Self::InputItems(_) => {
                let page = listing::input_items(&record, query)?;
                json(exchange, page).await;
            }
        }
        Ok(())
    }
}

fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(80).collect();
    let message = format!("no response with the id {id:?} is kept here");
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("not_found")
}

async fn json(exchange: &mut Exchange, body: Vec<u8>) {
    exchange.respond(StatusCode::OK, "application/json", Bytes::from(body), &[]).await;
}

/// A space of the tests.
#[cfg(test)]
fn tenant_space(number: u64) -> stator_api::space::PrefixSpace {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&number.to_le_bytes());
    stator_api::space::PrefixSpace::read(Some(&digest)).expect("a digest has 32 bytes")
}
