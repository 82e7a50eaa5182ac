//! Messages of a stream in our own terms: what [`wire`](super::wire) translates to and from, and
//! all that [`machine`](super::machine) knows.

use super::settings::Modes;
use crate::headers::Headers;
use bytes::Bytes;
use stator_epp_scheduler::Subset;
use std::borrow::Cow;
use std::net::SocketAddr;

/// Direction of a message through the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client to the endpoint.
    Request,
    /// From the endpoint to the client.
    Response,
}

/// One message of a data plane.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Incoming {
    /// The part that it brings; `None` for messages that bring nothing we know.
    pub(crate) part: Option<Part>,
    /// Modes of the bodies, on the first message of data planes that name them.
    pub(crate) modes: Option<Modes>,
    /// The allowed endpoints, where the message names them.
    pub(crate) subset: Option<Subset>,
    /// Hashes of the prompt's blocks, where the message names them.
    pub(crate) prefix_hashes: Option<Vec<u64>>,
    /// The endpoint that gave the answer, where the message names it.
    pub(crate) served: Option<String>,
    /// Whether the data plane only lets us watch, and ignores answers.
    pub(crate) observing: bool,
}

/// A part of a request or of its answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    /// The head.
    Headers {
        /// Direction of the head.
        direction: Direction,
        /// The fields.
        fields: HeadFields,
        /// Whether nothing follows.
        end: bool,
    },
    /// A piece of the body.
    Body {
        /// Direction of the body.
        direction: Direction,
        /// The piece.
        bytes: Bytes,
        /// Whether nothing follows.
        end: bool,
    },
    /// The trailers, whose content nobody reads.
    Trailers {
        /// Direction of the trailers.
        direction: Direction,
    },
}

/// The fields of a head.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct HeadFields {
    /// `:method`, of a request.
    pub(crate) method: String,
    /// `:path`, of a request.
    pub(crate) path: String,
    /// `:status`, of an answer; 0 without one.
    pub(crate) status: u16,
    /// All without pseudo-headers, in order.
    pub(crate) headers: Headers,
    /// Bytes of all names and values.
    pub(crate) size_bytes: usize,
}

/// One message to a data plane.
#[derive(Debug, PartialEq)]
pub(crate) struct Outgoing {
    /// The answer.
    pub(crate) answer: PartAnswer,
    /// Dynamic metadata that rides on it.
    pub(crate) metadata: Vec<Metadatum>,
}

/// The part of an exchange that a message to a data plane answers.
#[derive(Debug, PartialEq)]
pub(crate) enum PartAnswer {
    /// A head.
    Headers(Direction, HeadChange),
    /// A piece of a body. The change of the head counts where the data plane still holds it.
    Body(Direction, HeadChange, BodyChange),
    /// Trailers.
    Trailers(Direction),
    /// The request as a whole: the client gets this.
    Refuse(Immediate),
}

/// Change of a head. The default leaves it as it is.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct HeadChange {
    /// Headers to be set, in place of any of that name.
    pub(crate) set: Vec<(&'static str, String)>,
    /// Headers to be taken away; none of those that are set.
    pub(crate) remove: Vec<Cow<'static, str>>,
    /// Whether the data plane is to choose the route again.
    pub(crate) clear_route_cache: bool,
}

/// Change of a piece of a body.
#[derive(Debug, PartialEq)]
pub(crate) enum BodyChange {
    /// The piece passes.
    Keep,
    /// These bytes pass in its place.
    Replace(Vec<Bytes>),
    /// Nothing passes in its place.
    Clear,
    /// Full duplex: these bytes pass, whatever came.
    Streamed {
        /// The bytes, in pieces.
        pieces: Vec<Bytes>,
        /// Whether nothing follows.
        end: bool,
    },
}

/// One entry of dynamic metadata.
#[derive(Debug, PartialEq)]
pub(crate) struct Metadatum {
    /// Namespace.
    pub(crate) namespace: Cow<'static, str>,
    /// Key.
    pub(crate) key: Cow<'static, str>,
    /// Value.
    pub(crate) value: MetaValue,
}

/// A value in dynamic metadata.
#[derive(Debug, PartialEq)]
pub(crate) enum MetaValue {
    /// A string.
    Text(String),
    /// A number.
    Number(f64),
    /// A number for each endpoint.
    Scores(Vec<(SocketAddr, f64)>),
}

/// An answer of our own to the client.
#[derive(Debug, PartialEq)]
pub(crate) struct Immediate {
    /// HTTP status.
    pub(crate) status: u16,
    /// Its headers.
    pub(crate) set: Vec<(&'static str, String)>,
    /// Its body.
    pub(crate) body: Vec<u8>,
}
