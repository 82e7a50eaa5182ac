//! Parsers that read what a request asks for, by the API whose path it came on.
//!
//! Source: the parsers of the llm-d router, whose names, paths and error texts these keep.

mod http;
mod request;
mod rpc;
mod set;

pub use request::{Input, ParsedBody, extension_salt, session_name};
pub use set::{ParserSet, UnknownParser, parser};

use crate::api::ApiFamily;
use crate::grpc::FrameError;
use crate::scan_error::ScanError;

/// Reads the requests of one family of APIs.
pub trait Parser: Send + Sync {
    /// Name in configuration.
    fn name(&self) -> &'static str;

    /// Families of APIs it reads; a parser of none takes what no other does.
    fn families(&self) -> &'static [ApiFamily];

    /// Reads the body that came on `path`, which has neither a query nor a slash at its end.
    ///
    /// # Errors
    ///
    /// [`ParseError`] where the request cannot be served: a 400 with the error's text.
    fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError>;
}

/// Result of parsing a body.
#[derive(Clone, Debug)]
pub enum ParseOutcome {
    /// A request to route by what it asks for.
    Request(ParsedBody),
    /// A call that the picker has no part in: it goes on unread.
    Skip,
}

/// Why a request is refused; the client sees a 400 with this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The body is no JSON object.
    #[error("error unmarshaling request bodyMap: {0}")]
    Json(#[from] ScanError),
    /// No model is named.
    #[error("model not found in request body")]
    NoModel,
    /// A field is missing or has the wrong shape.
    #[error("invalid {request} request: {problem}")]
    Field {
        /// The API, in the words of its errors.
        request: &'static str,
        /// The fault.
        problem: &'static str,
    },
    /// The parser does not know the path.
    #[error("unsupported API endpoint: {0}")]
    Path(String),
    /// The body is no gRPC message.
    #[error("invalid or unsupported gRPC payload: {0}")]
    Grpc(#[from] FrameError),
}

#[cfg(test)]
mod tests;
