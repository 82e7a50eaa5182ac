//! Engines over HTTP: requests in a client's words, and answers that are passed on as they come. The
//! sidecar and pass-through use it; it knows neither.
//!
//! [`passage`] limits what of a request reaches an engine, on the paths of [`serving`], [`headers`] makes the heads of messages,
//! [`engines`] sends and receives, and [`relay`] passes an [`answer`] on to the client. No address of
//! a cloud's [`metadata`] is ever called.

pub(crate) mod answer;
pub(crate) mod cached;
pub(crate) mod engines;
pub(crate) mod headers;
pub(crate) mod metadata;
pub(crate) mod passage;
pub(crate) mod relay;
pub(crate) mod serving;
pub(crate) mod settings;
pub(crate) mod target;
#[cfg(test)]
pub(crate) mod testkit;
