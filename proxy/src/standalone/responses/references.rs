//! Earlier responses that a request names: those that it continues, and those whose items it refers to.

use super::keeper::{PreviousItems, previous};
use super::record::ResponseRecord;
use super::store::{ResponseStore, SharedStore};
use stator_api::FieldNotes;
use stator_api::openai::ApiError;
use stator_api::responses::body::ResponsesBody;
use stator_api::responses::{self, MissingItem, ThoughtSeal, named_responses, response_of};
use stator_api::space::PrefixSpace;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Look-ups of one request that the database has at once.
const AT_ONCE: usize = 8;
/// Longest time for all look-ups of a request.
const RECALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a database that does not answer may be asked again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The responses of one client, as a request sees them.
#[derive(Clone, Copy)]
pub(crate) struct OwnResponses<'a> {
    pub store: &'a ResponseStore,
    /// The client's own.
    pub space: PrefixSpace,
    /// Opens thoughts that were sealed for the client.
    pub seal: &'a ThoughtSeal,
}

impl OwnResponses<'_> {
    /// Puts items in place of the references to them in a body. `earlier` gets the items of the responses
    /// that the body continues, oldest first. Returns the first response of the conversation, if the body
    /// names one that is part of it.
    ///
    /// # Errors
    ///
    /// 400 for a response or an item that is not kept, or whose response is not over yet.
    pub(crate) fn resolve(
        &self,
        body: &mut ResponsesBody<'_>,
        notes: &FieldNotes,
        earlier: &mut PreviousItems,
    ) -> Result<Option<Arc<str>>, ApiError> {
        let id = body.previous_response_id.as_ref().map(|id| &*id.0);
        let previous = previous(self.store, self.space, id)?;
        let mut session = previous.as_ref().map(|previous| previous.session.clone());
        *earlier = previous.map(|previous| previous.items()).unwrap_or_default();
        responses::resolve(body, notes, |id| {
            let (record, item) = self.item(id)?;
            session.get_or_insert_with(|| record.session.clone());
            Ok(item)
        })?;
        Ok(session)
    }

    /// The item of this id, and the response that has it.
    fn item(&self, id: &str) -> Result<(Arc<ResponseRecord>, Arc<str>), MissingItem> {
        let (response, at) = response_of(id).ok_or(MissingItem::Unknown)?;
        let found = self.store.find(&format!("resp_{response}"), self.space);
        let record = found.ok_or(MissingItem::Unknown)?;
        if !record.is_over() {
            return Err(MissingItem::Unfinished);
        }
        let item = record.item(id, at).ok_or(MissingItem::Unknown)?;
        Ok((record, item))
    }
}

/// Has the responses in memory that a body names, where proxies share a database of them.
///
/// # Errors
///
/// 503 where the database does not answer in time.
pub(crate) async fn recall_named(
    store: &SharedStore,
    space: PrefixSpace,
    body: &[u8],
) -> Result<(), ApiError> {
    let recalls = async {
        let mut running: JoinSet<Result<(), ApiError>> = JoinSet::new();
        for id in named_responses(body) {
            if running.len() >= AT_ONCE {
                ended(running.join_next().await)?;
            }
            let store = store.clone();
            running.spawn(async move { store.recall(&id, space).await });
        }
        while let Some(recall) = running.join_next().await {
            ended(Some(recall))?;
        }
        Ok(())
    };
    timeout(RECALL_TIMEOUT, recalls).await.unwrap_or_else(|_| {
        let message = "the database of responses answers too slowly; try again later";
        Err(ApiError::unavailable(message, RETRY_AFTER))
    })
}

/// The end of a look-up.
fn ended(
    recall: Option<Result<Result<(), ApiError>, tokio::task::JoinError>>,
) -> Result<(), ApiError> {
    // A panic of the task has been printed already.
    recall.map_or(Ok(()), |recall| recall.unwrap_or_else(|_| Err(ApiError::internal())))
}

#[cfg(test)]
mod tests {
    use super::super::record::{FinishedResponse, ResponseKeeping};
    use super::super::{ResponseStore, StoreLimits, tenant_space};
    use super::*;

    fn keep(store: &ResponseStore, response: &str, space: PrefixSpace) {
        let input = format!(r#"{{"id":"item_{response}_0"}}"#);
        let output = |at: usize| format!(r#"{{"id":"msg_{response}_{at}"}}"#).into();
        let finished = FinishedResponse {
            object: Vec::new().into(),
            events: Vec::new().into(),
            items: vec![output(0), output(1)],
        };
        let keeping = ResponseKeeping::of_tests(space, &[&input, r#"{"id":"msg_own_7"}"#]);
        let record = Arc::new(ResponseRecord::finished(&keeping, finished));
        store.keep(&format!("resp_{response}"), record.clone(), record.bytes());
    }

    #[test]
    fn an_item_is_found_by_its_id_and_is_its_tenants_own() {
        let limits = StoreLimits { bytes: 1 << 20, responses: 9, ttl: Duration::from_secs(60) };
        let store = ResponseStore::new(limits);
        let (mine, yours) = (tenant_space(1), tenant_space(2));
        keep(&store, "a", mine);
        keep(&store, "b", yours);
        let running = Arc::new(ResponseRecord::of_tests(mine));
        store.keep("resp_c", running.clone(), running.bytes());
        let seal = ThoughtSeal::new(&[0; 32]);
        let own = OwnResponses { store: &store, space: mine, seal: &seal };
        let found = |id: &str| own.item(id).map(|(_, item)| item.to_string());
        assert_eq!(found("msg_a_1").as_deref(), Ok(r#"{"id":"msg_a_1"}"#));
        assert_eq!(found("item_a_0").as_deref(), Ok(r#"{"id":"item_a_0"}"#));
        assert_eq!(found("msg_c_0"), Err(MissingItem::Unfinished));
        for other in ["msg_b_0", "msg_a_2", "rs_a_1", "item_a_1", "msg_own_7", "msg_x_0", "x"] {
            assert_eq!(found(other), Err(MissingItem::Unknown), "{other}");
        }
    }
}
