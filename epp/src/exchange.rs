//! One request and its answer as the picker sees them, in nobody's wire format.
//!
//! [`ext_proc`](crate::ext_proc) translates a data plane's messages into these types; a
//! [`Director`] decides. Neither knows the other's business.

use crate::headers::Headers;
use bytes::Bytes;
use futures::future::Either;
use stator_epp_scheduler::Subset;
use std::future::Future;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

/// A request's head.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// `:method`.
    pub method: String,
    /// `:path`, with its query.
    pub path: String,
    /// All other headers in their order, pseudo-headers without.
    pub headers: Headers,
    /// The endpoints that the data plane allows; `None` is all of the pool.
    pub subset: Option<Subset>,
    /// Hashes of the prompt's blocks, where a stage before the picker tells them.
    pub prefix_hashes: Vec<u64>,
    /// The time at which the picker gets the body.
    pub body: RequestBody,
    /// Part of the answer's body that the picker will get.
    pub answer: AnswerBody,
}

/// The time at which a picker gets the body of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestBody {
    /// With the head, or the request has none.
    #[default]
    Whole,
    /// After the decision, to be changed with [`Watch::amend`].
    Late,
    /// Never, or too much of it to be kept.
    Unseen,
}

/// Part of an answer's body that a picker gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerBody {
    /// All of it, as long as it asks for it.
    #[default]
    Shown,
    /// All of it, as in full duplex: what is not sent back is lost, also where the stream ends
    /// while the answer begins.
    Passes,
    /// Nothing.
    Hidden,
}

impl RequestHead {
    /// The last value of a header, if it is text. `name` is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }
}

/// Decides for every request of one pool.
pub trait Director: Send + Sync + 'static {
    /// Follower of an answer.
    type Watch: Watch;

    /// Chooses an endpoint. `body` is the whole body as it came, in pieces; `None` where the
    /// request has none.
    ///
    /// # Errors
    ///
    /// The answer that the client gets instead.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back what it holds; nothing else has happened.
    fn route(
        &self,
        head: RequestHead,
        body: Option<Vec<Bytes>>,
    ) -> impl Future<Output = Result<RoutedRequest<Self::Watch>, Refusal>> + Send;

    /// Follows an answer whose request was never shown: one that the data plane gave before it
    /// asked, or whose request it keeps to itself. The watch sees all of it.
    fn unasked(&self) -> Self::Watch;
}

/// Destination of a request, and the changes of its head and body.
#[derive(Debug)]
pub struct RoutedRequest<W> {
    /// The endpoint, then fallbacks in order. At least one.
    pub endpoints: Vec<SocketAddr>,
    /// Headers to be set, in place of any of that name; names in lower case. The destination and
    /// `content-length` are not among them.
    pub set_headers: Vec<(&'static str, String)>,
    /// The body that is sent on, in pieces of any size: those that came, but for what changed.
    pub body: Vec<Bytes>,
    /// Scores of all candidates, where they are wanted in the metadata.
    pub scores: Vec<(SocketAddr, f64)>,
    /// Follower of the answer.
    pub watch: W,
}

impl<W> RoutedRequest<W> {
    /// The same destination, with the watch that `change` makes of this one.
    pub fn followed_by<V>(self, change: impl FnOnce(W) -> V) -> RoutedRequest<V> {
        let Self { endpoints, set_headers, body, scores, watch } = self;
        RoutedRequest { endpoints, set_headers, body, scores, watch: change(watch) }
    }
}

/// A request that is answered without an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status of the answer.
    pub status: u16,
    /// Reason, in one line.
    pub message: String,
    /// Value of the header `x-llm-d-request-dropped-reason`, if the request was dropped.
    pub reason: Option<&'static str>,
    /// Time after which a retry makes sense.
    pub retry_after: Option<Duration>,
    /// Body of the answer as JSON, in the words of the request's API. Without it the message makes
    /// the body.
    pub body: Option<Vec<u8>>,
}

/// Part of an answer that a follower wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interest {
    /// Nothing: the stream to the data plane ends with the request. Not for an answer that
    /// [passes](AnswerBody::Passes), unless losing it is accepted.
    Nothing,
    /// Its head: the stream ends with it. Not for an answer that passes.
    Headers,
    /// All of it.
    Body,
}

/// Follows one answer. Dropped without [`Watch::end`] if the stream breaks off.
pub trait Watch: Send + 'static {
    /// The part that it wants to see; asked once, after the request phase.
    fn interest(&self) -> Interest;

    /// Whether it may change a body that comes [late](RequestBody::Late); asked once, after the
    /// decision.
    fn amends(&self) -> bool {
        false
    }

    /// The whole of a late body came. Returns what is sent on in its place.
    ///
    /// # Errors
    ///
    /// The answer that the client gets, where the body must not go on.
    fn amend(&mut self, body: Vec<Bytes>) -> Result<Vec<Bytes>, Refusal> {
        Ok(body)
    }

    /// Whether the request is to end now, whatever became of it: the client gets the refusal if
    /// nothing of the answer has reached it, else the answer breaks off.
    fn poll_revoked(&mut self, _cx: &mut Context<'_>) -> Poll<Refusal> {
        Poll::Pending
    }

    /// The head came. `served` is the endpoint that gave it, where the data plane says so.
    /// Returns headers to be set in place of any of their name.
    fn headers(
        &mut self,
        status: u16,
        headers: &Headers,
        served: Option<&str>,
    ) -> Vec<(&'static str, String)>;

    /// A piece of the body came; `end` with the last. Appends to `out` what the client gets in
    /// its place, which for a watch that changes nothing is the piece itself.
    fn body(&mut self, piece: Bytes, end: bool, out: &mut Vec<Bytes>);

    /// The answer is complete. Returns dynamic metadata for the data plane's logs, as
    /// namespace, key and value.
    fn end(&mut self) -> Vec<(String, String, f64)>;
}

impl<A: Watch, B: Watch> Watch for Either<A, B> {
    fn interest(&self) -> Interest {
        match self {
            Self::Left(watch) => watch.interest(),
            Self::Right(watch) => watch.interest(),
        }
    }

    fn amends(&self) -> bool {
        match self {
            Self::Left(watch) => watch.amends(),
            Self::Right(watch) => watch.amends(),
        }
    }

    fn amend(&mut self, body: Vec<Bytes>) -> Result<Vec<Bytes>, Refusal> {
        match self {
            Self::Left(watch) => watch.amend(body),
            Self::Right(watch) => watch.amend(body),
        }
    }

    fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        match self {
            Self::Left(watch) => watch.poll_revoked(cx),
            Self::Right(watch) => watch.poll_revoked(cx),
        }
    }

    fn headers(
        &mut self,
        status: u16,
        headers: &Headers,
        served: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        match self {
            Self::Left(watch) => watch.headers(status, headers, served),
            Self::Right(watch) => watch.headers(status, headers, served),
        }
    }

    fn body(&mut self, piece: Bytes, end: bool, out: &mut Vec<Bytes>) {
        match self {
            Self::Left(watch) => watch.body(piece, end, out),
            Self::Right(watch) => watch.body(piece, end, out),
        }
    }

    fn end(&mut self) -> Vec<(String, String, f64)> {
        match self {
            Self::Left(watch) => watch.end(),
            Self::Right(watch) => watch.end(),
        }
    }
}
