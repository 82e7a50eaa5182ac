//! The ext-proc server: the only place that knows Envoy's types.
//!
//! `wire` turns frames into `message`s and back, `machine` decides what is answered when,
//! `session` drives it for one stream, and `service` serves streams. Start reading at
//! `machine`.

mod body;
mod frames;
mod machine;
mod message;
mod refuse;
mod service;
mod session;
mod settings;
mod subset;
mod wire;

pub use service::{Drain, ExtProc, SERVICE, serve};
pub use settings::{BodyMode, ErrorFormat, Modes, Settings};
