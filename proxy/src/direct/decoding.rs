//! What the engine beside this proxy is asked where another one computes the prompt, and how long
//! is waited for it.

use super::handover::{Handover, Request, Unusable};
use super::headers;
use super::object::Object;
use super::trace;
use super::upstream::Leg;
use bytes::Bytes;
use http::header;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout_at;
use tracing::Instrument;

/// How much of an answer is looked at for the reason of its end, in bytes. One that gives up at
/// once is shorter.
const PEEK_MAX_BYTES: usize = 64 << 10;

/// By when KV must have come. Only an answer that is streamed tells by its first part that it has:
/// any other comes as a whole, and may take as long as its tokens do.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    at: Option<tokio::time::Instant>,
    limit: Duration,
}

impl Deadline {
    /// So long from now on, for this request.
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

impl Handover {
    /// Asks the engine beside this proxy to go on from what was handed over, and waits until it has
    /// something to show.
    pub(super) async fn decoding(
        &self,
        request: &Request<'_>,
        body: Bytes,
    ) -> Result<Leg, Unusable> {
        let mut leg = self.decode(request, body).await?;
        leg.begun().await.map_err(Unusable::Decode)?;
        Ok(leg)
    }

    /// Asks the engine beside this proxy to go on from what was handed over. That it cannot shows
    /// in a status of its own fault.
    async fn decode(&self, request: &Request<'_>, body: Bytes) -> Result<Leg, Unusable> {
        let mut head = headers::for_body(request.head, &body);
        let span = trace::decode(self.settings.connector);
        trace::pass_on(&mut head, &span);
        let sent = self.engines.send(request.engine, &head, &body).instrument(span).await;
        let leg = sent.map_err(Unusable::Decode)?;
        let status = leg.head().status;
        match status.is_server_error() {
            true => Err(Unusable::DecodeStatus { status, answer: Box::new(leg) }),
            false => Ok(leg),
        }
    }

    /// Asks the engine beside this proxy to go on if it has enough of the prompt; `None` where it
    /// says that it has not.
    pub(super) async fn decode_if_cached(
        &self,
        request: &Request<'_>,
    ) -> Result<Option<Leg>, Unusable> {
        let sent = self.engines.send(request.engine, request.head, request.body).await;
        let mut leg = sent.map_err(Unusable::Decode)?;
        let kind = leg.head().headers.get(header::CONTENT_TYPE);
        let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        // The first event tells, or else the whole answer.
        let enough = |seen: &[u8]| streams && seen.windows(2).any(|two| two == b"\n\n");
        let seen = leg.until(enough, PEEK_MAX_BYTES).await.map_err(Unusable::Decode)?;
        Ok((!gave_up(seen)).then_some(leg))
    }
}

/// Whether an answer ended because too little of the prompt was there.
fn gave_up(answer: &[u8]) -> bool {
    let reason = b"\"cache_threshold\"";
    answer.windows(reason.len()).any(|window| window == reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_up_is_told_from_speaking_of_it() {
        assert!(gave_up(br#"{"choices":[{"finish_reason":"cache_threshold"}]}"#));
        assert!(!gave_up(br#"{"choices":[{"text":"a \"cache_threshold\""}]}"#));
    }
}
