//! Load of an endpoint: its engine's reports, and the requests that were sent to it.

use crate::Time;
use stator_placement::Profile;
use stator_protos::WorkerRank;
use std::sync::Arc;

/// Latest report of an engine, scraped or pushed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests that wait for room.
    pub waiting: u32,
    /// Requests in the running batch.
    pub running: u32,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_usage: f64,
    /// Adapters; `None` where the engine never spoke of them.
    pub lora: Option<Lora>,
    /// Size of its KV cache; `None` where the engine does not say.
    pub cache: Option<CacheConfig>,
    /// Time of the report; `None` before the first one.
    pub updated: Option<Time>,
}

/// Properties of an engine that do not change with load, as its agent reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Equipment {
    /// Its adapters; `None` where it serves none.
    pub lora: Option<Lora>,
    /// Size of its KV cache; `None` where the agent does not know.
    pub cache: Option<CacheConfig>,
    /// The worker as its agent knows it, and as answers name it.
    pub worker: Option<WorkerRank>,
    /// Labels, location and adapters that the agent tells of.
    pub profile: Profile,
    /// Address at which the agent lends KV, if it does.
    pub lends_at: Option<Arc<str>>,
}

/// LoRA adapters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lora {
    /// Most adapters that run at once.
    pub max: u32,
    /// Adapters with running requests, or, where an agent tells of them, that are loaded.
    pub running: Vec<String>,
    /// Adapters whose requests wait for a slot.
    pub waiting: Vec<String>,
}

/// Size of an engine's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks on the device.
    pub blocks: u32,
}

/// Requests that this picker has sent to an endpoint and not yet seen end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests.
    pub requests: u64,
    /// Their tokens still to be computed or produced, as far as known.
    pub tokens: u64,
}

/// Load in flight of one flow: of the requests of one sender and priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowLoad {
    /// Fairness id of the requests.
    pub fairness_id: Arc<str>,
    /// Priority of the requests' objective.
    pub priority: i32,
    /// Load of the flow.
    pub in_flight: InFlight,
}
