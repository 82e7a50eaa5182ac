//! The worker agent: runs engines on one node, publishes their KV events and load, and serves the
//! request plane to proxies.
//!
//! The agent never decides where a request runs and never sees text: token ids in, token ids out.
//! Start reading at [`agent`] for how the parts are joined; `stator-engine` computes the tokens.

mod access;
pub mod agent;
pub mod config;

mod crew;
mod door;
mod events;
mod extras;
mod fetch;
mod identity;
mod in_flight;
mod listen;
mod load;
mod metrics;
mod operate;
mod operations;
mod outbox;
mod peers;
mod planes;
mod registered;
mod service;
mod stock;
mod trace;
mod translate;
mod worker;
mod workers;

pub use agent::run;
pub use config::{AgentArgs, AgentSettings, EngineArgs, EngineSettings};
pub use operate::{OperateArgs, OperationArg, operate};
