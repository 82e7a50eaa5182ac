//! One HTTP exchange with a client: reads the request within its limits, writes the response.
//!
//! The only module that knows Pingora's session. It decides nothing: what to answer is the
//! caller's business, how it gets onto the wire is this module's.

mod body;
pub(crate) mod coding;
mod extra_headers;
mod ignored;
pub(crate) mod packing;
mod rate;

use crate::corked::CorkedConnection;
use crate::deadlines::MissedDeadline;
use crate::door::{Admission, Door, Visitor};
use crate::error_headers::{asks_for_patience, error_headers, retry_after};
use crate::linger::linger;
use crate::rates::RateAccount;
use crate::standalone::client::ClientHead;
use bytes::Bytes;
use h2::Reason;
use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use packing::Packer;
use pingora::apps::{HttpPersistentSettings, ReusedHttpStream};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType};
use stator_api::openai::error::ApiError;
use stator_api::space::Account;
use stator_api::{anthropic, kserve};
use stator_protos::header::{REQUEST_ID, TRACEPARENT, TRACESTATE, WORKER_ID};
use stator_runtime::trace::Stages;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::Instant;

/// Longest `x-request-id` that is kept, in bytes; longer ones are replaced.
const REQUEST_ID_MAX_BYTES: usize = 128;

/// Time from the request's head to the answer's.
const PROCESSING_MS: &str = "openai-processing-ms";
/// Values of this header that are made once.
const USUAL_MS: u16 = 4096;

/// The client has gone; nobody reads what would be written.
#[derive(Debug)]
pub(crate) struct HangUp;

/// A request that was read up to its body, and the response to it.
pub(crate) struct Exchange {
    session: ServerSession,
    request_id: HeaderValue,
    status: Option<StatusCode>,
    /// Names of the request's fields that change nothing, for the client.
    ignored: Option<HeaderValue>,
    /// The origin of a web page that may read the answer.
    origin: Option<HeaderValue>,
    /// Requests and tokens that the client has used, if its rate is limited.
    rate: Option<RateAccount>,
    /// Compressor of the rest of an answer.
    packer: Option<Box<Packer>>,
    /// Time at which its head was there.
    started: Instant,
    reusable: bool,
    /// Whether the client takes no more of the answer.
    gone: bool,
    door: Arc<Door>,
    client: Arc<Visitor>,
    /// The request's place and its body's room, once it was admitted.
    admission: Option<Admission>,
    /// Deadline for the whole body.
    body_due: Option<Instant>,
    /// The request's spans, if it is followed.
    trace: Stages,
}

impl Exchange {
    /// Takes over a session whose request header was read.
    pub(crate) fn new(mut session: ServerSession, door: Arc<Door>, client: Arc<Visitor>) -> Self {
        if session.is_http2() {
            // That of the connection does not see a client that reads other streams only.
            session.set_write_timeout(Some(door.deadlines(&client).write));
        }
        let request_id = kept_request_id(&session).unwrap_or_else(new_request_id);
        Self {
            session,
            request_id,
            status: None,
            ignored: None,
            origin: None,
            rate: None,
            packer: None,
            started: Instant::now(),
            reusable: true,
            gone: false,
            door,
            client,
            admission: None,
            body_due: None,
            trace: Stages::default(),
        }
    }

    /// Follows the request with these spans until it ends.
    pub(crate) fn follow(&mut self, trace: Stages) {
        self.trace = trace;
    }

    /// The request's spans.
    pub(crate) fn trace(&self) -> &Stages {
        &self.trace
    }

    /// Answers a head that is no request, and closes the connection once the client knows.
    pub(crate) async fn refuse(mut session: ServerSession, error: &ApiError) {
        let body = Bytes::from(error.to_json());
        let mut head = ResponseHeader::build(error.status, Some(4)).expect("a status is valid");
        let _ = head.insert_header(header::CONTENT_TYPE, "application/json");
        let _ = head.insert_header(header::CONTENT_LENGTH, body.len());
        // Who sends no HTTP may not wait for any either.
        if session.write_error_response(head, body).await.is_ok() {
            linger(session).await;
        }
    }

    /// Takes a place among the requests that run, until the end of this exchange. `key` is the
    /// API key that the request came with.
    ///
    /// # Errors
    ///
    /// 429 where there is none for this client.
    pub(crate) fn admit(&mut self, key: Option<Account>) -> Result<(), ApiError> {
        self.admission = Some(self.door.admit(&self.client, key)?);
        Ok(())
    }

    /// The request's place, for work that goes on when the exchange is over.
    pub(crate) fn take_admission(&mut self) -> Option<Admission> {
        self.admission.take()
    }

    /// Gives the room of the request's body to others: the body is no longer kept.
    pub(crate) fn release_body(&mut self) {
        if let Some(admission) = &mut self.admission {
            admission.release_body();
        }
    }

    /// The head of the request as it came.
    pub(crate) fn request(&self) -> &RequestHeader {
        self.session.req_header()
    }

    /// What the rest of the proxy needs of the request's head.
    pub(crate) fn client_head(&self) -> ClientHead<'_> {
        let headers = &self.session.req_header().headers;
        ClientHead { headers, request_id: self.request_id(), trace: &self.trace }
    }

    pub(crate) fn method(&self) -> &Method {
        &self.session.req_header().method
    }

    pub(crate) fn path(&self) -> &str {
        self.session.req_header().uri.path()
    }

    /// A header's value, if it is there once and is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.session.get_header(name)?.to_str().ok()
    }

    /// The value of a request header, text or not.
    pub(crate) fn header_bytes(&self, name: &str) -> Option<&[u8]> {
        Some(self.session.get_header(name)?.as_bytes())
    }

    /// The request's identity, the client's own or made here.
    pub(crate) fn request_id(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }

    /// The request's identity as the value of its header.
    pub(crate) fn identity(&self) -> HeaderValue {
        self.request_id.clone()
    }

    /// The trace context to pass on, if the client sent one.
    pub(crate) fn traceparent(&self) -> Option<&str> {
        self.header(TRACEPARENT)
    }

    /// The client's `tracestate` to pass on beside `traceparent`.
    pub(crate) fn tracestate(&self) -> Option<&str> {
        self.header(TRACESTATE)
    }

    /// The status that was sent, if any.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Refuses a target or headers that are larger than allowed.
    pub(crate) fn check_headers(&self) -> Result<(), ApiError> {
        let (limits, header) = (self.door.limits(), self.session.req_header());
        let target = header.raw_path().len();
        if target > limits.header_bytes {
            return Err(ApiError::target_too_long(target, limits.header_bytes));
        }
        let fields: usize = header.headers.iter().map(|(n, v)| n.as_str().len() + v.len()).sum();
        let bytes = fields + target;
        match bytes <= limits.header_bytes {
            true => Ok(()),
            false => Err(ApiError::headers_too_large(bytes, limits.header_bytes)),
        }
    }

    /// Waits until the client is gone. Never ends while it waits for its answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn gone(&mut self) -> HangUp {
        // Pingora stashes bytes of a pipelined request and stays pending; only the end of the
        // connection or an error ends this.
        let _ = self.session.read_body_or_idle(true).await;
        self.gone = true;
        HangUp
    }

    /// Sends a whole response.
    pub(crate) async fn respond(
        &mut self,
        status: StatusCode,
        content_type: &'static str,
        body: Bytes,
        extra: &[(HeaderName, HeaderValue)],
    ) {
        let mut head = self.head(status, content_type, extra);
        if asks_for_patience(status) && !head.headers.contains_key(header::RETRY_AFTER) {
            let _ = head.insert_header(header::RETRY_AFTER, retry_after(Duration::ZERO));
        }
        let _ = head.insert_header(header::CONTENT_LENGTH, body.len());
        // A client that is gone finds no answer; there is nobody to tell.
        let _ = self.write(Some(head), body, true).await;
    }

    /// Sends an error: how every [`ApiError`] to a request becomes a response.
    pub(crate) async fn fail(&mut self, error: &ApiError) {
        let extra = error_headers(error);
        let (status, body) = match anthropic::error::owns(self.path()) {
            false if kserve::owns(self.path()) => (error.status, kserve::json::error(error)),
            false => (error.status, error.to_json()),
            true => {
                let mut body = Vec::new();
                anthropic::error::push_error(&mut body, error, self.request_id());
                (anthropic::error::status(error), body)
            }
        };
        self.respond(status, "application/json", body.into(), &extra).await;
    }

    /// Begins an event stream with its first events, which may be its last.
    ///
    /// # Errors
    ///
    /// [`HangUp`] when the client has closed the connection.
    pub(crate) async fn begin_stream(
        &mut self,
        worker: &str,
        events: Bytes,
        last: bool,
    ) -> Result<(), HangUp> {
        let mut extra = vec![(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
        if let Ok(value) = HeaderValue::from_str(worker) {
            extra.push((HeaderName::from_static(WORKER_ID), value));
        }
        let mut head = self.head(StatusCode::OK, "text/event-stream", &extra);
        let _ = head.insert_header(header::TRANSFER_ENCODING, "chunked");
        self.write(Some(head), events, last).await
    }

    /// Begins an answer that somebody else gives: its head and the first part of its body, which
    /// may be the last. A head alone goes out at once.
    ///
    /// # Errors
    ///
    /// [`HangUp`] when the client has closed the connection.
    pub(crate) async fn relay(
        &mut self,
        mut head: ResponseHeader,
        body: Bytes,
        last: bool,
    ) -> Result<(), HangUp> {
        for (name, value) in self.extra_headers() {
            let put = match name == header::VARY {
                true => head.append_header(name, value).map(drop),
                false => head.insert_header(name, value),
            };
            put.expect("names and values are valid by type");
        }
        self.status = Some(head.status);
        if !self.reusable {
            self.session.set_keepalive(None);
        }
        self.write(Some(Box::new(head)), body, last).await
    }

    /// Sends further parts of a stream that was begun.
    ///
    /// # Errors
    ///
    /// [`HangUp`] when the client has closed the connection.
    pub(crate) async fn stream(&mut self, events: Bytes, last: bool) -> Result<(), HangUp> {
        self.write(None, events, last).await
    }

    /// Writes a head, a part of the body and the body's end, as far as there are such, at once.
    async fn write(
        &mut self,
        mut head: Option<Box<ResponseHeader>>,
        body: Bytes,
        last: bool,
    ) -> Result<(), HangUp> {
        let body = self.pack(head.as_deref_mut(), body, last);
        let written = self.write_parts(head, body, last).await;
        written.map_err(|error| {
            let expired = self.connection().and_then(|stream| stream.patience().expired());
            if expired == Some(MissedDeadline::Write) || *error.etype() == ErrorType::WriteTimedout
            {
                self.door.metrics().late("write");
                tracing::info!(request_id = self.request_id(), "the client takes no bytes");
            }
            self.reusable = false;
            self.gone = true;
            HangUp
        })
    }

    /// Compresses a part of the body, if the answer with this head is to be compressed.
    fn pack(&mut self, head: Option<&mut ResponseHeader>, body: Bytes, last: bool) -> Bytes {
        let request = self.session.req_header();
        let mut begun = None;
        // A client of HTTP/1.0 knows no chunks, so what it gets has a length.
        if let Some(head) = head.filter(|_| last || request.version != Version::HTTP_10) {
            self.packer = Packer::of(&request.method, &request.headers, head).map(Box::new);
            begun = Some(head);
        }
        let Some(mut packer) = self.packer.take() else { return body };
        let packed = if last {
            packer.end(&body)
        } else {
            let packed = packer.push(&body);
            self.packer = Some(packer);
            packed
        };
        if let Some(head) = begun {
            let framed = match last {
                true => head.insert_header(header::CONTENT_LENGTH, packed.len()),
                false => head.insert_header(header::TRANSFER_ENCODING, "chunked"),
            };
            framed.expect("names and values are valid by type");
        }
        packed
    }

    async fn write_parts(
        &mut self,
        head: Option<Box<ResponseHeader>>,
        body: Bytes,
        last: bool,
    ) -> Result<(), Box<Error>> {
        if self.session.is_http2() {
            return self.write_frames(head, body, last).await;
        }
        if let Some(head) = head {
            self.cork(last || !body.is_empty());
            self.session.write_response_header(head).await?;
        }
        self.cork(last);
        self.session.write_response_body(body, false).await?;
        if last {
            self.cork(false);
            self.session.write_response_body(Bytes::new(), true).await?;
        }
        Ok(())
    }

    /// Frames that are there together leave together.
    async fn write_frames(
        &mut self,
        head: Option<Box<ResponseHeader>>,
        body: Bytes,
        last: bool,
    ) -> Result<(), Box<Error>> {
        if let Some(head) = head {
            self.session.write_response_header(head).await?;
        }
        let body = if *self.method() == Method::HEAD { Bytes::new() } else { body };
        self.session.write_response_body(body, last).await
    }

    fn cork(&self, corked: bool) {
        if let Some(connection) = self.connection() {
            connection.cork(corked);
        }
    }

    fn connection(&self) -> Option<&CorkedConnection> {
        CorkedConnection::of(&self.session)
    }

    /// Closes the connection after this exchange.
    pub(crate) fn close_after(&mut self) {
        self.session.set_keepalive(None);
    }

    /// Leaves the answer without an end: the connection closes with this exchange.
    pub(crate) fn abandon(&mut self) {
        self.reusable = false;
    }

    /// Ends the exchange and gives the connection back for the next one, where it can be used.
    pub(crate) async fn finish(mut self) -> Option<ReusedHttpStream> {
        self.admission = None;
        if self.gone && self.session.is_http2() {
            self.client.note_reset(self.started.elapsed());
        }
        if !self.gone && !self.session.is_body_done() {
            // In place it would take room of every connection.
            Box::pin(linger(self.session)).await;
            return None;
        }
        if !self.reusable {
            // A stream of HTTP/2 whose answer has no end is reset.
            self.session.shutdown_with_reason(Reason::INTERNAL_ERROR);
            return None;
        }
        let settings = HttpPersistentSettings::for_session(&self.session);
        // In place it would take 4 KB of every connection, while requests run too.
        let reusable = Box::pin(self.session.finish()).await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(reusable, settings))
    }

    fn head(
        &mut self,
        status: StatusCode,
        content_type: &'static str,
        extra: &[(HeaderName, HeaderValue)],
    ) -> Box<ResponseHeader> {
        self.status = Some(status);
        if !self.reusable {
            self.session.set_keepalive(None);
        }
        let head = ResponseHeader::build(status, Some(12)).expect("a status code is valid");
        let mut head = Box::new(head);
        let own = [
            (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
            (HeaderName::from_static(REQUEST_ID), self.request_id.clone()),
        ];
        // Anthropic's clients look for the identity under another name.
        let second = anthropic::error::owns(self.path())
            .then(|| (HeaderName::from_static("request-id"), self.request_id.clone()));
        let time = (HeaderName::from_static(PROCESSING_MS), milliseconds(self.started.elapsed()));
        let own = own.into_iter().chain(second).chain([time]).chain(self.extra_headers());
        for (name, value) in own.chain(extra.iter().cloned()) {
            head.insert_header(name, value).expect("names and values are valid by type");
        }
        head
    }
}

/// Milliseconds as a header's value: those that are usual are made once.
fn milliseconds(time: Duration) -> HeaderValue {
    static USUAL: LazyLock<Vec<HeaderValue>> =
        LazyLock::new(|| (0..USUAL_MS).map(HeaderValue::from).collect());
    let milliseconds = time.as_millis();
    let usual = usize::try_from(milliseconds).ok().and_then(|at| USUAL.get(at).cloned());
    usual.unwrap_or_else(|| HeaderValue::from(u64::try_from(milliseconds).unwrap_or(u64::MAX)))
}

fn kept_request_id(session: &ServerSession) -> Option<HeaderValue> {
    let value = session.get_header(REQUEST_ID)?;
    let fits = (1..=REQUEST_ID_MAX_BYTES).contains(&value.len());
    let plain = value.as_bytes().iter().all(|b| b.is_ascii_graphic());
    (fits && plain).then(|| value.clone())
}

/// An identity for a request that came without one.
pub(crate) fn new_request_id() -> HeaderValue {
    let id: u128 = rand::random();
    HeaderValue::from_str(&format!("{id:032x}")).expect("hexadecimal digits are a valid value")
}
