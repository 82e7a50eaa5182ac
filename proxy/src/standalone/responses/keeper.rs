//! Keeping a response, and finding those that a new one continues.

use super::record::{ResponseKeeping, ResponseRecord};
use super::store::ResponseStore;
use stator_api::openai::ApiError;
use stator_api::responses::ResponseEvents;
use stator_api::space::PrefixSpace;
use std::sync::Arc;

/// Prefix of the ids of responses.
const PREFIX: &str = "resp_";

/// A new id of a response, without its prefix.
pub(crate) fn new_id() -> String {
    let id: u128 = rand::random();
    format!("{id:032x}")
}

/// Items of the responses that a new one continues, oldest first.
pub(crate) type PreviousItems = Vec<Arc<str>>;

/// The response that a new one continues; none where no `id` is named.
///
/// # Errors
///
/// 400 where it is not kept, or is not over yet.
pub(crate) fn previous(
    store: &ResponseStore,
    space: PrefixSpace,
    id: Option<&str>,
) -> Result<Option<Arc<ResponseRecord>>, ApiError> {
    let Some(id) = id else { return Ok(None) };
    let fault = |message: String| {
        ApiError::bad_request(message)
            .with_param("previous_response_id")
            .with_code("previous_response_not_found")
    };
    let record = store.find(id, space).ok_or_else(|| {
        let id: String = id.chars().take(80).collect();
        fault(format!("previous_response_id: no response with the id {id:?} is kept here"))
    })?;
    match record.is_over() {
        true => Ok(Some(record)),
        false => Err(fault(format!("previous_response_id: the response {id:?} is not over yet"))),
    }
}

/// Keeps one response.
#[derive(Clone)]
pub(crate) struct ResponseKeeper {
    store: Arc<ResponseStore>,
    keeping: ResponseKeeping,
}

impl ResponseKeeper {
    pub(crate) fn new(store: Arc<ResponseStore>, keeping: ResponseKeeping) -> Self {
        Self { store, keeping }
    }

    /// Whether the response is generated while nobody waits.
    pub(crate) fn is_background(&self) -> bool {
        self.keeping.background
    }

    /// Keeps the response as it is.
    pub(crate) fn keep(&self, events: ResponseEvents) -> Arc<ResponseRecord> {
        let id = events.id();
        let record = Arc::new(ResponseRecord::new(&self.keeping, events));
        self.store.keep(&id, record.clone(), record.bytes());
        record
    }

    /// Waits until other proxies find a response that is over, if they share a database; not for long.
    pub(crate) async fn settle(&self, id: &str) {
        // Who is too late is found here, and there once the database takes it.
        let _ = self.store.settle(&format!("{PREFIX}{id}")).await;
    }

    /// Keeps a response that has grown, unless its client has had it forgotten.
    pub(crate) fn keep_grown(&self, id: &str, record: &Arc<ResponseRecord>) {
        let id = format!("{PREFIX}{id}");
        if self.store.find(&id, record.space).is_some() {
            self.store.keep(&id, record.clone(), record.bytes());
        }
    }
}
