//! The agents of a fleet, as a process that sends requests to their workers follows them.
//!
//! [`Fleet`] watches where agents register and runs one task per agent, which keeps the agent's
//! workers, blocks and load in the pool of their model: whatever [`Pools`] opens for it. An
//! [`AgentClient`] carries requests to one agent. Nothing here knows text, queues or where a
//! request should run.

mod agent;
mod client;
mod doubts;
mod error;
pub mod events;
mod fleet_event;
mod keeper;
mod link;
mod mailbox;
mod members;
mod metrics;
mod pools;
mod settings;
mod silence;
mod source;

pub use agent::follow as follow_agent;
pub use client::{AgentClient, Records, Snapshot, TokenStream};
pub use error::StreamError;
pub use fleet_event::FleetEvent;
pub use members::Members;
pub use metrics::FleetMetrics;
pub use pools::Pools;
pub use settings::{ClientSettings, FleetSettings};

use keeper::Keeper;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Models that may wait for who listens.
const EVENTS_MAX: usize = 64;

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
