//! The event plane's client: it follows publishers of KV events, finds gaps in what they sent, and
//! asks for what is missing.
//!
//! [`subscribe`] reads a publisher's ZMQ sockets; other transports share its rules for
//! [`attempts`] and [`replay`]s. [`feed`] is the pure rule of one worker's feed:
//! apply, replay, or start over from a snapshot. A [`KvSink`] learns which blocks workers hold.
//! Nothing here knows agents, engines or placement. Start reading at [`feed`].

pub mod attempts;
pub mod feed;
pub mod replay;
mod sink;
pub mod subscribe;

pub use sink::KvSink;
