//! ZeroMQ's wire protocol, ZMTP 3, as far as the event plane needs it: live feeds ([`Publisher`],
//! [`Subscriber`], [`Collector`]) and questions that have many answers ([`Router`], [`Dealer`]),
//! over TCP and Unix sockets, without encryption.
//!
//! A message is one to a few frames. A publisher never waits: what a subscriber does not take in
//! time is dropped for that subscriber alone, and who takes nothing for 10 s is cut off. A socket
//! that is bound has 1024 connections, 256 for one address; where there is no room, those of no use
//! give way. Nothing connects again by itself: who was connected
//! learns that it is over, and decides.
//!
//! Every connection is one task that reads and writes, and what connections share is locked for
//! moments and never across a wait. Start reading at [`frame`] for the wire, at `connection` for
//! the rest.
//!
//! Source: RFC 23 (ZMTP 3.0) and RFC 37 (ZMTP 3.1).

mod client;
mod connection;
mod endpoint;
pub mod frame;
pub mod fuzz;
mod handshake;
mod outbox;
mod publisher;
mod router;
mod seats;
mod server;

pub use client::{Collector, Dealer, Subscriber};
pub use frame::{FrameError, Message};
pub use outbox::Gone;
pub use publisher::Publisher;
pub use router::{ReplyPath, Router, RouterRequest};

/// Why a socket cannot be opened, or a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An endpoint that cannot be understood.
    #[error("{endpoint:?} is neither tcp://host:port nor ipc:///path")]
    Endpoint {
        /// The endpoint as given.
        endpoint: String,
    },
    /// The system refuses, or the connection broke.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer breaks the protocol or our bounds.
    #[error(transparent)]
    Malformed(#[from] FrameError),
    /// The peer is something else than we need.
    #[error("the peer {0}")]
    Unfit(String),
}

#[cfg(test)]
mod tests;
