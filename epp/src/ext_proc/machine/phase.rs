//! Progress of the two halves of a stream.

use crate::exchange::RequestHead;
use crate::ext_proc::body::total;
use bytes::Bytes;

/// Progress of the request.
pub(super) enum RequestPhase {
    /// Nothing came.
    First,
    /// The head is here, the body comes.
    Collect(CollectedRequest),
    /// The decision is being made.
    Route(PendingAnswers),
    /// The decision is made, and the body that still comes may be changed.
    Amend(LateBody),
    /// The decision is made, and the rest of the request passes.
    Pass,
    /// Nothing more may come.
    Done,
}

/// The parts of a request that are here.
pub(super) struct CollectedRequest {
    pub(super) head: RequestHead,
    pub(super) pieces: Vec<Bytes>,
    pub(super) size_bytes: usize,
}

/// Progress of the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerPhase {
    /// Nothing came.
    First,
    /// The head came, or a piece of the body where the data plane skips the head.
    Body,
    /// Nothing more may come.
    Done,
}

/// Answers that a stream owes once the decision is there.
pub(super) struct PendingAnswers {
    /// Message that carries the decision.
    pub(super) carrier: Carrier,
    /// The whole body, where it was read; its pieces are the messages that brought it.
    pub(super) body: Option<Vec<Bytes>>,
    /// Messages of the body that wait for an answer.
    pub(super) messages: usize,
    /// Whether trailers wait for one.
    pub(super) trailers: bool,
    /// Whether nothing more may come.
    pub(super) ended: bool,
    /// Headers of the request whose prefix steers, to be taken away.
    pub(super) own_headers: Vec<String>,
    /// The body, where it comes after the decision and can still be changed.
    pub(super) late: Option<LateBody>,
}

/// Message that carries a decision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// The answer to the head; the body follows in full duplex.
    Duplex,
    /// The answer to the head; then every message of the body is answered.
    Headers,
    /// The answer to the body.
    Body,
    /// The answer to the trailers, when no body came before them. The head is out of reach: only
    /// the metadata tells the destination.
    Trailers,
}

impl PendingAnswers {
    pub(super) fn new(carrier: Carrier, ended: bool) -> Self {
        Self {
            carrier,
            body: None,
            messages: 0,
            trailers: false,
            ended,
            own_headers: Vec::new(),
            late: None,
        }
    }
}

/// A late body so far; none of its bytes has been sent on.
#[derive(Default)]
pub(super) struct LateBody {
    /// Its length, where the head tells.
    length: Option<usize>,
    pub(super) pieces: Vec<Bytes>,
    pub(super) size_bytes: usize,
}

impl LateBody {
    /// A body of which these pieces came.
    pub(super) fn new(length: Option<usize>, pieces: Vec<Bytes>) -> Self {
        Self { length, size_bytes: total(&pieces), pieces }
    }

    /// Whether all of it came: a body whose length is known may end without a message that says so.
    pub(super) fn is_whole(&self, ended: bool) -> bool {
        self.size_bytes > 0 && (ended || self.length == Some(self.size_bytes))
    }

    /// The pieces that came.
    pub(super) fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        self.size_bytes += piece.len();
        self.pieces.push(piece);
    }
}
