//! Requests to the engine beside this proxy when another engine computes the prompt, and how long
//! the proxy waits for their answers.

use super::deadline::Deadline;
use super::handover::Handover;
use super::request::Request;
use super::trace;
use super::unusable::Unusable;
use crate::upstream::engines::{Leg, LegError};
use crate::upstream::headers;
use bytes::Bytes;
use stator_handover::{EngineRequest, gave_up};
use std::future::Future;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep_until;
use tracing::Instrument;

/// Longest part of an answer that is searched for the reason of its end, in bytes. An engine that
/// gives up at once answers with less.
const PEEK_MAX_BYTES: usize = 64 << 10;
/// Longest time that an engine takes to admit a request; after that, closing the connection aborts
/// the request. If the client has gone, a non-streaming answer is abandoned after this time.
const ADMITTED_WITHIN: Duration = Duration::from_secs(5);

impl Handover {
    /// Asks the engine beside this proxy to continue from the KV that was handed over, and waits for
    /// the first part of its answer. An engine that cannot continue answers with a server error.
    pub(super) fn decoding(
        &self,
        request: &Request<'_>,
        told: EngineRequest,
    ) -> impl Future<Output = Result<Leg, Unusable>> + Send + use<> {
        let body = Bytes::from(told.body);
        let mut head = headers::for_body(request.head, &body);
        headers::for_rank(&mut head, told.rank);
        let span = trace::decode(self.settings.connector);
        trace::pass_on(&mut head, &span);
        let (engines, engine) = (self.engines.clone(), request.engine.clone());
        async move {
            let sent = engines.send(&engine, &head, &body).instrument(span).await;
            let mut leg = sent.map_err(Unusable::Decode)?;
            let status = leg.head().status;
            if status.is_server_error() {
                return Err(Unusable::DecodeStatus { status, answer: Box::new(leg) });
            }
            leg.begun().await.map_err(Unusable::Decode)?;
            Ok(leg)
        }
    }

    /// Runs [`Self::decoding`] in a task that goes on for a while after the client has gone, so that
    /// the decode engine hears of the request and the prefill engine can release its KV at once.
    /// Otherwise the prefill engine would keep the KV until its lease ends.
    pub(super) async fn decoding_for_certain(
        &self,
        request: &Request<'_>,
        told: EngineRequest,
        deadline: Deadline,
    ) -> Result<Leg, Unusable> {
        let decoding = self.decoding(request, told);
        let admitted = tokio::time::Instant::now() + deadline.limit.min(ADMITTED_WITHIN);
        let until = deadline.at.unwrap_or(admitted);
        let (mut waited_for, decoded) = oneshot::channel();
        let task = async move {
            let abandoned = async {
                waited_for.closed().await;
                sleep_until(until).await;
            };
            let leg = tokio::select! {
                biased;
                leg = decoding => leg,
                () = abandoned => return,
            };
            // If the client has gone, dropping the leg closes its connection here.
            let _ = waited_for.send(leg);
        };
        tokio::spawn(task.in_current_span());
        decoded.await.unwrap_or_else(|_| {
            let peer = request.engine._address.to_string();
            let cause = "the task that waits for it ended".to_owned();
            Err(Unusable::Decode(LegError::Broken { peer, cause }))
        })
    }

    /// Asks the engine beside this proxy to answer if it has enough of the prompt cached; `None` if
    /// the engine says that it has not.
    pub(super) async fn decode_if_cached(
        &self,
        request: &Request<'_>,
    ) -> Result<Option<Leg>, Unusable> {
        let sent = self.engines.send(request.engine, request.head, request.body).await;
        let mut leg = sent.map_err(Unusable::Decode)?;
        let streams = leg.streams();
        // A stream tells with its first event, any other answer only as a whole.
        let enough = |seen: &[u8]| streams && seen.windows(2).any(|two| two == b"\n\n");
        let seen = leg.until(enough, PEEK_MAX_BYTES).await.map_err(Unusable::Decode)?;
        Ok((!gave_up(seen)).then_some(leg))
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::Outcome;
    use super::super::testkit::Proxy;
    use crate::upstream::testkit::{BODY, Engine, Peer, soon};

    /// A decode request of a client that has gone, which nothing has come of yet.
    async fn left_behind(stream: bool, flags: &[&str]) -> (Proxy, Peer) {
        let (engine, prefiller) = (Engine::start().await, Engine::start().await);
        let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", flags).await;
        let client = proxy.ask(&prefiller, &BODY.replace("false", &stream.to_string())).await;
        prefiller.asked().await.answer(200, r#"{"kv_transfer_params":{"a":1}}"#).await;
        let decode = engine.asked().await;
        drop(client);
        let gone = Outcome { way: "handed_over", status: 499 };
        let counted = async {
            while proxy.metrics.requests.get_or_create(&gone).get() == 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("the client's end", counted).await;
        // Whatever was closed before this answer shows by then.
        let mut other = Peer::connect(proxy.address).await;
        other.write("GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await;
        assert!(other.read().await);
        (proxy, decode)
    }

    #[tokio::test]
    async fn what_is_handed_over_is_fetched_although_the_client_has_gone() {
        let (_proxy, mut decode) = left_behind(true, &[]).await;
        assert!(decode.is_open(), "an engine that has not begun would never fetch it");
        decode.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        decode.chunk("data: 1\n\n").await;
        decode.closed().await;
    }

    #[tokio::test]
    async fn nobody_is_waited_for_longer_than_kv_may_take() {
        for stream in [false, true] {
            let (_proxy, mut decode) = left_behind(stream, &["--prefill-timeout-ms=1500"]).await;
            decode.closed().await;
        }
    }
}
