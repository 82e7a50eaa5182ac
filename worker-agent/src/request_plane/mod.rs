//! The request plane: requests of proxies on their way in, and tokens on their way out.
//!
//! [`server`] binds the gRPC services to a [`listen`]er. [`service`] takes a client's stream apart
//! into requests, [`translate`] and [`metadata`] check them, and an [`outbox`] per stream collects
//! the answers.

pub(crate) mod in_flight;
pub(crate) mod listen;
pub(crate) mod metadata;
pub(crate) mod outbox;
pub(crate) mod rules;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod snapshot;
pub(crate) mod trace;
pub(crate) mod translate;
