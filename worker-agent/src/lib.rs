//! The worker agent: runs engines on one node, publishes their KV events and load, and serves the
//! request plane to proxies.
//!
//! The agent never decides where a request runs and never sees text: token ids in, token ids out.
//! Start reading at [`agent`] for how the parts are joined; `stator-engine` computes the tokens.

pub mod agent;
pub mod config;

mod availability;
mod events;
pub mod fuzz;
mod identity;
mod kv;
mod metrics;
mod model_loader;
mod operations;
mod prefill;
mod request_plane;
mod served_model;
mod stock;
mod worker;
mod workers;

pub use agent::run;
pub use config::{
    AgentArgs, AgentSettings, EngineArgs, EngineSettings, KvDiskSettings, KvKeySettings,
    KvObjectSettings, KvTierArgs, KvTierSettings,
};
pub use operations::client::{OperateArgs, OperationArg, operate};
pub use served_model::{LoadedEngine, LoadedModel, RuleMaker};
pub use stator_kv::cipher::KvKey;
