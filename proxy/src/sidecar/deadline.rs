//! The wait for KV that was handed over.

use super::unusable::Unusable;
use crate::upstream::engines::Leg;
use stator_body::Object;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout_at;

/// The time by which the KV must have come. Only a streamed answer shows by its first part that
/// the KV is there. A non-streaming answer has no deadline: it takes as long as its tokens do.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    pub(super) at: Option<tokio::time::Instant>,
    pub(super) limit: Duration,
}

impl Deadline {
    /// The deadline of this request, `limit` from now.
    pub(super) fn of(request: &Object<'_>, limit: Duration) -> Self {
        let streams = request.get("stream").is_some_and(|raw| *raw == *b"true");
        Self { at: streams.then(|| tokio::time::Instant::now() + limit), limit }
    }

    pub(super) async fn keep(
        self,
        decode: impl Future<Output = Result<Leg, Unusable>>,
    ) -> Result<Leg, Unusable> {
        let Some(at) = self.at else { return decode.await };
        let late = |_| Unusable::NotArrived { limit_ms: self.limit.as_millis() };
        timeout_at(at, decode).await.map_err(late)?
    }
}
