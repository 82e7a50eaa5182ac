//! An engine's answer on its way to the client, part by part.

use super::answer::{Answer, PartWatch, run_out};
use super::cached::CachedTokens;
use super::engines::{Engines, Leg};
use super::headers;
use crate::exchange::Exchange;
use crate::failure::Failure;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use pingora::http::ResponseHeader;
use prometheus_client::metrics::counter::Counter;
use stator_api::openai::ApiError;
use stator_api::openai::response::{DONE, push_error_event};
use stator_body::AnswerCleaner;
use stator_protos::header::IGNORED;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};
use tracing::Span;

/// Passes answers on.
pub(crate) struct Relay<'a> {
    pub engines: &'a Engines,
    /// Counts bytes of bodies that were passed on.
    pub answer_bytes: &'a Counter,
    /// Counts answers that their engines broke off.
    pub cut: &'a Counter,
    /// Headers that every answer gets.
    pub stamp: &'a [(HeaderName, HeaderValue)],
    /// Time at which the request came.
    pub started: Instant,
}

impl Relay<'_> {
    /// Passes an answer on as it comes. Work beside it goes on meanwhile, and ends with it.
    ///
    /// # Errors
    ///
    /// When nothing has come yet that could be passed on, or the client has gone.
    pub(crate) async fn pass_on(
        &self,
        exchange: &mut Exchange,
        answer: Answer<'_>,
    ) -> Result<(), Failure> {
        let Answer { leg, beside, cached, watch, .. } = answer;
        tokio::select! {
            biased;
            passed = self.parts(exchange, leg, cached, watch) => passed,
            never = run_out(beside) => match never {},
        }
    }

    async fn parts(
        &self,
        exchange: &mut Exchange,
        mut leg: Leg,
        cached: Option<CachedTokens>,
        mut watch: Option<PartWatch>,
    ) -> Result<(), Failure> {
        // An engine that names what it ignores says so in a header that is not passed on.
        let ignored = leg.head().headers.get(IGNORED).and_then(|names| names.to_str().ok());
        exchange.ignores(ignored);
        let request = exchange.request();
        let mut head = headers::answer(leg.head(), &request.method, request.version);
        let mut edits = BodyEdits::of(&head, cached);
        if edits.cached.is_some() {
            headers::forget_length(&mut head, request.version);
        }
        for (name, value) in self.stamp {
            head.insert_header(name, value).expect("names and values are valid by type");
        }
        let is_events = leg.streams();
        let mut head = Some(head);
        let (mut at_event_end, mut begun) = (true, false);
        loop {
            let part = {
                let mut next = pin!(leg.next());
                // What is there already goes out with the head; a head alone does not wait.
                match poll_once(next.as_mut()).await {
                    Poll::Ready(part) => part,
                    Poll::Pending => {
                        if let Some(head) = head.take() {
                            exchange.relay(head, Bytes::new(), false).await?;
                        }
                        tokio::select! {
                            biased;
                            part = next => part,
                            gone = exchange.gone() => return Err(gone.into()),
                        }
                    }
                }
            };
            let part = match part {
                Ok(part) => part,
                Err(error) if head.is_some() => return Err(ApiError::from(error).into()),
                Err(error) => {
                    let events = is_events.then_some(at_event_end);
                    return self.cut(exchange, events, error.into()).await;
                }
            };
            let last = part.is_none() || leg.is_done();
            let Some(part) = edits.apply(part.unwrap_or_default(), last) else { continue };
            self.answer_bytes.inc_by(part.len() as u64);
            watch.iter_mut().for_each(|watch| watch(&part));
            at_event_end = part.ends_with(b"\n\n");
            if is_events && !begun && !part.is_empty() {
                begun = true;
                record_first_token(self.started.elapsed());
            }
            match head.take() {
                Some(head) => exchange.relay(head, part, last).await?,
                None => exchange.stream(part, last).await?,
            }
            if last {
                self.engines.keep(leg).await;
                return Ok(());
            }
        }
    }

    /// Ends an answer that the engine broke off, so that nobody takes it for whole: events end with
    /// an error, anything else with its connection. `events` says whether the last one was whole.
    pub(crate) async fn cut(
        &self,
        exchange: &mut Exchange,
        events: Option<bool>,
        error: ApiError,
    ) -> Result<(), Failure> {
        self.cut.inc();
        tracing::warn!(request_id = exchange.request_id(), %error, "an answer was cut");
        exchange.abandon();
        let Some(whole) = events else { return Ok(()) };
        let mut end = if whole { Vec::new() } else { b"\n\n".to_vec() };
        push_error_event(&mut end, &error);
        end.extend_from_slice(DONE);
        Ok(exchange.stream(end.into(), true).await?)
    }
}

/// Changes to the body of an answer on its way.
struct BodyEdits {
    /// Removes fields, if there are any to remove.
    cleaner: Option<AnswerCleaner>,
    /// Replaces the count of cached tokens.
    cached: Option<CachedTokens>,
}

impl BodyEdits {
    /// The edits of an answer with this head. A compressed body passes as it is.
    fn of(head: &ResponseHeader, cached: Option<CachedTokens>) -> Self {
        let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        let compressed = head.headers.contains_key(header::CONTENT_ENCODING);
        let cleaner = AnswerCleaner::of(kind, compressed);
        Self { cleaner, cached: cached.filter(|_| !compressed) }
    }

    /// The part as the client gets it; `None` if all of it is held back until the next part.
    fn apply(&mut self, mut part: Bytes, last: bool) -> Option<Bytes> {
        if let Some(cleaner) = &mut self.cleaner {
            part = cleaner.push(part);
            let rest = if last { cleaner.finish() } else { Bytes::new() };
            if !rest.is_empty() {
                part = [part, rest].concat().into();
            }
            if part.is_empty() && !last {
                return None;
            }
        }
        if let Some(cached) = &mut self.cached {
            part = cached.pass(part);
            if last {
                part = [part, cached.rest()].concat().into();
            }
        }
        Some(part)
    }
}

/// Records the time from a request's arrival to the first part of its streamed answer, on the
/// request's span.
///
/// Source: the name of the attribute in llm-d's routing sidecar.
pub(crate) fn record_first_token(after: Duration) {
    Span::current().record("llm_d.pd_proxy.true_ttft_ms", after.as_secs_f64() * 1000.0);
}

/// Polls a future that may be polled again.
async fn poll_once<F: Future + Unpin>(mut future: F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut future).poll(context))).await
}
