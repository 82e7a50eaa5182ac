//! The agents of a fleet, as a process that sends requests to their workers follows them.
//!
//! [`Fleet`] watches where agents register and runs one task per agent, which keeps the agent's
//! workers, blocks and load in the pool of their model: whatever [`Pools`] opens for it. An
//! [`AgentClient`] carries requests to one agent. Nothing here knows text, queues or where a
//! request should run.

mod agent;
mod client;
mod doubts;
pub mod events;
mod keeper;
mod link;
mod mailbox;
mod members;
mod metrics;
mod pools;
mod silence;
mod source;

pub use agent::follow as follow_agent;
pub use client::{AgentClient, ClientSettings, Records, Snapshot, StreamError, TokenStream};
pub use members::Members;
pub use metrics::FleetMetrics;
pub use pools::Pools;

use keeper::Keeper;
use stator_discovery::DiscoverySource;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Models that may wait for who listens.
const EVENTS_MAX: usize = 64;
/// Longest wait for the link of an agent that has just answered a question.
const LINK_WAIT: Duration = Duration::from_secs(2);

/// Settings for finding and reaching the fleet.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// Registry of the agents.
    pub discovery: DiscoverySource,
    /// Time between two looks at files; 200 ms by default.
    pub poll: Duration,
    /// Connections to agents.
    pub client: ClientSettings,
    /// Time for which a model stays known after its last agent has left; 10 minutes by default.
    pub model_linger: Duration,
}

impl FleetSettings {
    /// The default settings for agents that are found there.
    pub fn new(discovery: DiscoverySource) -> Self {
        Self {
            discovery,
            poll: Duration::from_millis(200),
            client: ClientSettings::default(),
            model_linger: Duration::from_secs(600),
        }
    }
}

/// A change in the fleet that concerns the speaker for a model.
#[derive(Debug)]
pub enum FleetEvent<Pool> {
    /// A model is there for the first time, or again with another description.
    ModelUp {
        /// Its workers, now and later.
        pool: Arc<Pool>,
        /// Its tokenizer, templates and defaults, by base name.
        files: Vec<(String, Vec<u8>)>,
    },
    /// The fleet has been looked at, and the models found were announced, or took too long for
    /// that. What was not announced before this is not there.
    Settled,
    /// A model is forgotten, because its last worker left long ago.
    ModelDown {
        /// Its pool, whose requests were sent away.
        pool: Arc<Pool>,
    },
}

/// The fleet, followed in the background. Dropping it ends that.
#[derive(Debug)]
pub struct Fleet {
    _task: JoinSet<()>,
}

impl Fleet {
    /// Starts to follow the fleet, with a pool for each model; the events must be read.
    ///
    /// Must be called within a Tokio runtime, which all connections then live on.
    pub fn start<P: Pools>(
        settings: FleetSettings,
        metrics: FleetMetrics,
        pools: P,
    ) -> (Self, mpsc::Receiver<FleetEvent<P::Pool>>) {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        let keeper = Keeper::new(settings, metrics, pools, sender);
        let mut task = JoinSet::new();
        task.spawn(keeper.run());
        (Self { _task: task }, receiver)
    }
}
