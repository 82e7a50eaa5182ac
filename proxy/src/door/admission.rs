//! A request's place among those that run, and the room for its body.

use super::address::ClientAddress;
use super::metrics::Refusal;
use super::{Door, Visitor};
use prometheus_client::metrics::gauge::Gauge;
use stator_api::openai::ApiError;
use stator_api::space::Account;
use stator_runtime::quota::{Hold, QuotaRefusal};
use std::time::Duration;

/// Wait that a client is asked for where there is no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longest wait for room for a body. Bodies come and go within milliseconds; where no room has come
/// by then, waiting longer would only fill the next bound.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// A request's place and its body's room. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    _request: Hold<ClientAddress>,
    _key_request: Hold<Account>,
    body: Hold<ClientAddress>,
    key_body: Hold<Account>,
    /// Shows what is held of bodies.
    held_bytes: Gauge,
}

impl Door {
    /// Gives a client's request a place; `key` is the API key that it came with.
    ///
    /// # Errors
    ///
    /// 429 where all places, or those of the client's or the key's share, are taken.
    pub(crate) fn admit(
        &self,
        client: &Visitor,
        key: Option<Account>,
    ) -> Result<Admission, ApiError> {
        let refused = |why, owner| {
            let (limit, reason) = limit(why, owner);
            self.metrics.requests_refused.get_or_create(&Refusal { reason }).inc();
            ApiError::too_many_requests(limit, RETRY_AFTER)
        };
        let key_request = self.key_requests.take(key, 1).map_err(|why| refused(why, "key"))?;
        let request = self.requests.take(client.address, 1);
        Ok(Admission {
            _request: request.map_err(|why| refused(why, "address"))?,
            _key_request: key_request,
            body: self.bodies.hold(client.address),
            key_body: self.key_bodies.hold(key),
            held_bytes: self.metrics.bodies_held_bytes.clone(),
        })
    }

    /// Sets so many bytes more aside for a request's body, and waits a second at most until others
    /// give them back.
    ///
    /// # Errors
    ///
    /// 503 where there is no room, and 429 where the client's or the key's share is used up.
    ///
    /// # Cancel safety
    ///
    /// The admission has to be dropped with the future.
    pub(crate) async fn make_room(
        &self,
        admission: &mut Admission,
        bytes: usize,
    ) -> Result<(), ApiError> {
        let refused = |why, owner| {
            let (limit, reason) = limit(why, owner);
            self.metrics.bodies_refused.get_or_create(&Refusal { reason }).inc();
            let message = format!("the bodies of running requests have {limit} bytes, the limit");
            match why {
                QuotaRefusal::Limit { .. } => ApiError::unavailable(message, RETRY_AFTER),
                QuotaRefusal::Share { .. } => ApiError { message, ..too_much(limit) },
            }
        };
        admission.key_body.grow(bytes).map_err(|why| refused(why, "key"))?;
        let grown = admission.body.grow_within(bytes, ROOM_WAIT).await;
        grown.map_err(|why| refused(why, "address"))?;
        admission.held_bytes.inc_by(bytes as i64);
        Ok(())
    }
}

impl Admission {
    /// Gives the body's room back: the body is no longer kept.
    pub(crate) fn release_body(&mut self) {
        self.held_bytes.dec_by(self.body.amount() as i64);
        self.body.release();
        self.key_body.release();
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.release_body();
    }
}

fn too_much(limit: usize) -> ApiError {
    ApiError::too_many_requests(limit, RETRY_AFTER)
}

/// The limit that was met, and whose it is.
fn limit(why: QuotaRefusal, owner: &'static str) -> (usize, &'static str) {
    match why {
        QuotaRefusal::Share { share } => (share, owner),
        QuotaRefusal::Limit { limit } => (limit, "limit"),
    }
}
