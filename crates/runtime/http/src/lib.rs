//! A small HTTP/1.1 client: the task that waits for an answer reads its socket itself.
//!
//! Engines are asked for tokens, metrics pages are fetched up to twenty times a second from each
//! endpoint, and the load generator measures when bytes arrive. The tasks, channels and frames of a
//! general client would dominate each of these. This one follows no redirection, knows no proxy and
//! no HTTP/2, and takes no answer apart.
//!
//! - [`Links`] keeps connections to one server; an [`Answer`]'s body is handed on as it arrives.
//! - [`Connection`] is one of them with room for a whole answer, within a limit.
//!
//! Start reading at [`Links::send`].

mod buffers;
mod connection;
mod error;
mod framing;
mod links;
mod origin;
mod replay;
mod request;
mod tls;
mod url;
mod wire;

pub use buffers::Buffers;
pub use connection::{Connection, Response};
pub use error::HttpError;
pub use links::{Answer, AnswerBody, LinkSettings, Links};
pub use origin::Origin;
pub use replay::{ReplayedResponse, replay};
pub use request::{Bearer, RequestHead, request};
pub use tls::{TlsError, TlsOptions};
pub use url::{Url, UrlError};
pub use wire::Acknowledge;

#[cfg(test)]
mod tests;
