//! The ext-proc server: the only place that knows Envoy's types.
//!
//! `wire` turns frames into `message`s and back, `machine` decides what is answered when,
//! `session` drives it for one stream, and `server` serves streams, all of a `connection` in one
//! task. Start reading at `machine`.

mod body;
mod budget;
mod connection;
mod frames;
mod machine;
mod message;
mod prefix_hashes;
mod refuse;
mod server;
mod service;
mod session;
mod settings;
mod subset;
mod wire;

pub use budget::BodyBudget;
pub use server::{Drain, serve};
pub use service::{ExtProc, SERVICE};
pub use settings::{BodyMode, ErrorFormat, ExtProcSettings, Modes};
