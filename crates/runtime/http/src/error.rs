//! Reasons why a request has no answer.

use std::io;

/// Reason why a request has no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The host cannot be the name on a certificate.
    #[error("{host:?} is not a name that a certificate can have")]
    ServerName {
        /// The host.
        host: String,
    },
    /// The connection ended before a byte of the answer came.
    #[error("no answer: {0}")]
    Unanswered(io::Error),
    /// The connection ended within the answer.
    #[error("the answer broke off: {0}")]
    Broken(io::Error),
    /// The answer is not HTTP.
    #[error("it is no HTTP: {0}")]
    Malformed(String),
    /// The answer, or its head, exceeds the limit.
    #[error("response of more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

impl HttpError {
    /// Whether the connection was lost or never made: another server may stand there next time.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Unanswered(_) | Self::Broken(_))
    }
}
