//! Errors of requests at an agent.

/// Why a request's stream ended without an answer from its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The connection is gone. The request may run elsewhere, from the tokens that arrived.
    #[error("the connection to the agent is lost")]
    Disconnected,
    /// There is no connection, or there was none for long enough: the agent never saw the request.
    #[error("there is no connection to the agent")]
    Unsent,
    /// The connection has as many requests as it may.
    #[error("the connection has {limit} requests, the limit")]
    Overloaded {
        /// The limit.
        limit: usize,
    },
    /// The reader left more unread than it may, and the agent was told to stop.
    #[error("more than {limit} bytes of the answer are unread, the limit")]
    Unread {
        /// The limit, in bytes.
        limit: usize,
    },
}
