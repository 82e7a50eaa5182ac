//! Answers that are decoded in chunks: the requests to the engine, one after the other.
//!
//! As long as the client has got nothing, an answer that cannot be joined costs only time: the
//! engine is asked again, for all of it at once.

use super::chunk::Unjoinable;
use super::chunks::{Chunks, OnePieceReason, Part};
use super::handover::ANSWER_MAX_BYTES;
use super::metrics::Cause;
use super::request::Request;
use super::service::Sidecar;
use crate::exchange::{Exchange, HangUp};
use crate::failure::Failure;
use crate::upstream::answer::Answer;
use crate::upstream::answer::run_out;
use crate::upstream::engines::Leg;
use crate::upstream::headers;
use crate::upstream::relay::record_first_token;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, StatusCode};
use pingora::http::ResponseHeader;
use stator_api::openai::ApiError;
use stator_body::AnswerCleaner;
use std::time::Instant;

/// The only path whose answers are decoded in chunks.
const CHAT: &str = "/v1/chat/completions";

/// The state of the answer to a client.
struct AnswerProgress {
    /// Whether the client has got anything.
    begun: bool,
    /// Arrival of the request.
    started: Instant,
}

/// Why an answer comes to no end.
enum Halt {
    Failure(Failure),
    /// The engine answered a chunk with another status than 200.
    Refused(Box<Leg>),
    Unjoinable(Unjoinable),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<HangUp> for Halt {
    fn from(gone: HangUp) -> Self {
        Self::Failure(gone.into())
    }
}

impl Sidecar {
    /// Whether requests like this one may be decoded in chunks.
    pub(super) fn chunks_requests(&self, exchange: &Exchange) -> bool {
        let is_chat = exchange.path() == CHAT && exchange.method() == Method::POST;
        self.settings.decode_chunk_size.is_some() && is_chat
    }

    /// The chunks of a request's decode, if it is decoded in chunks.
    pub(super) fn chunks<'a>(
        &self,
        exchange: &Exchange,
        request: &Request<'a>,
    ) -> Option<Chunks<'a>> {
        let size = self.settings.decode_chunk_size.filter(|_| self.chunks_requests(exchange))?;
        let chunks = match request.prefiller {
            // Without a hand-over of its own each further chunk would be refused.
            Some(_) if !self.handover.settings.connector.decodes_alone() => {
                Err(OnePieceReason::HandedOver)
            }
            _ => Chunks::new(request.body, size),
        };
        chunks.map_err(|whole| self.in_one_piece(whole)).ok()
    }

    fn in_one_piece(&self, whole: OnePieceReason) {
        let cause = Cause { reason: whole.label() };
        self.metrics.decoded_whole.get_or_create(&cause).inc();
    }

    /// Has the engine decode an answer in chunks. Only the first one is handed over: the engine has
    /// the prompt's KV from then on.
    pub(super) async fn in_chunks(
        &self,
        exchange: &mut Exchange,
        request: &Request<'_>,
        mut chunks: Chunks<'_>,
        started: Instant,
    ) -> (&'static str, Result<(), Failure>) {
        let body = Bytes::from(chunks.ask());
        let head = headers::for_body(request.head, &body);
        let first = Request { head: &head, body: &body, ..*request };
        let answer = tokio::select! {
            biased;
            answer = self.handover.answer(&first) => answer,
            gone = exchange.gone() => return (request.way(), Err(gone.into())),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return (request.way(), Err(error.into())),
        };
        let way = answer.way;
        let mut progress = AnswerProgress { begun: false, started };
        let joined = self.join(exchange, request, &mut chunks, answer, &mut progress).await;
        let relay = self.relay(started);
        let passed = match joined {
            Ok(()) => Ok(()),
            Err(halt) if progress.begun => match halt.failure() {
                Failure::Error(error) => relay.cut(exchange, Some(true), error).await,
                Failure::Gone => Err(Failure::Gone),
            },
            Err(Halt::Failure(failure)) => Err(failure),
            // It may be the budget that the engine refuses.
            Err(Halt::Refused(leg)) if leg.head().status != StatusCode::BAD_REQUEST => {
                relay.pass_on(exchange, Answer::plain(*leg, way)).await
            }
            Err(halt) => {
                if let Failure::Error(error) = halt.failure() {
                    let request_id = exchange.request_id();
                    tracing::debug!(request_id, %error, "an answer is decoded in one piece");
                }
                self.in_one_piece(OnePieceReason::Answer);
                match self.alone(exchange, request).await {
                    Ok(leg) => relay.pass_on(exchange, Answer::plain(leg, way)).await,
                    Err(failure) => Err(failure),
                }
            }
        };
        (way, passed)
    }

    /// Passes chunks on until the last.
    async fn join(
        &self,
        exchange: &mut Exchange,
        request: &Request<'_>,
        chunks: &mut Chunks<'_>,
        mut answer: Answer<'_>,
        progress: &mut AnswerProgress,
    ) -> Result<(), Halt> {
        let mut head = Some(client_head(exchange, answer.leg.head(), chunks.streams()));
        loop {
            if answer.leg.head().status != StatusCode::OK {
                return Err(Halt::Refused(Box::new(answer.leg)));
            }
            let body = self.chunk(exchange, answer).await?;
            let Part { bytes, last } = chunks.take(body).map_err(Halt::Unjoinable)?;
            self.metrics.decode_chunks.inc();
            self.metrics.answer_bytes.inc_by(bytes.len() as u64);
            // The head waits for the first bytes: until then the request may still be decoded in one piece.
            match head.take_if(|_| !bytes.is_empty()) {
                Some(head) => {
                    progress.begun = true;
                    if chunks.streams() {
                        record_first_token(progress.started.elapsed());
                    }
                    exchange.relay(head, bytes, last).await?;
                }
                None if progress.begun => exchange.stream(bytes, last).await?,
                None => {}
            }
            if last {
                return Ok(());
            }
            let body = Bytes::from(chunks.ask());
            let head = headers::for_body(request.head, &body);
            let next = Request { head: &head, body: &body, ..*request };
            answer = Answer::plain(self.alone(exchange, &next).await?, "engine");
        }
    }

    /// The whole answer for a chunk. Prefill goes on meanwhile.
    async fn chunk(&self, exchange: &mut Exchange, answer: Answer<'_>) -> Result<Bytes, Failure> {
        let Answer { mut leg, beside, cached, .. } = answer;
        let body = tokio::select! {
            biased;
            body = leg.whole(ANSWER_MAX_BYTES) => body.map_err(ApiError::from)?,
            gone = exchange.gone() => return Err(gone.into()),
            never = run_out(beside) => match never {},
        };
        self.handover.engines.keep(leg).await;
        let mut cleaner = AnswerCleaner::new(false);
        let body = [cleaner.push(body), cleaner.finish()].concat().into();
        let Some(mut cached) = cached else { return Ok(body) };
        Ok([cached.pass(body), cached.rest()].concat().into())
    }

    /// Asks the engine beside this proxy without another one's help.
    async fn alone(&self, exchange: &mut Exchange, request: &Request<'_>) -> Result<Leg, Failure> {
        tokio::select! {
            biased;
            leg = self.handover.alone(request) => Ok(leg.map_err(ApiError::from)?),
            gone = exchange.gone() => Err(gone.into()),
        }
    }
}

impl Halt {
    /// The error for a client that has got a part of its answer.
    fn failure(self) -> Failure {
        let message = match self {
            Self::Failure(failure) => return failure,
            Self::Refused(leg) => {
                format!("the engine answered a chunk with status {}", leg.head().status)
            }
            Self::Unjoinable(error) => error.to_string(),
        };
        ApiError::bad_gateway(message).into()
    }
}

/// The head of the client's answer, from that of the first chunk's.
fn client_head(exchange: &Exchange, engine: &ResponseHeader, streams: bool) -> ResponseHeader {
    let request = exchange.request();
    let mut head = headers::answer(engine, &request.method, request.version);
    headers::forget_length(&mut head, request.version);
    if streams {
        let events = HeaderValue::from_static("text/event-stream");
        head.insert_header(header::CONTENT_TYPE, events).expect("valid by type");
    }
    head
}
