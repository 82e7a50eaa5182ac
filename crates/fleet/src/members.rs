//! The receiver of what is known of agents and their workers, other than KV.

use super::client::AgentClient;
use stator_placement::Worker;
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::sync::Arc;
use std::time::Duration;

/// Learns which workers an agent has and how busy they are.
pub trait Members: Send + Sync + 'static {
    /// A worker is there, or something about it or its agent's profile changed, see
    /// [`AgentClient::profile`]. False if another agent has it: an earlier life gives way to a
    /// later one, and nothing else does.
    fn join(&self, worker: Worker, client: &Arc<AgentClient>) -> bool;

    /// A worker is gone, unless it has come back with another agent.
    fn leave(&self, worker: WorkerRank, client: &Arc<AgentClient>);

    /// Time passed: called every [`Members::refresh_interval`] with the agent's workers.
    fn refresh(&self, workers: &mut dyn Iterator<Item = WorkerRank>);

    /// Time between two calls of `refresh`. Default: 250 ms.
    fn refresh_interval(&self) -> Duration {
        Duration::from_millis(250)
    }

    /// Reports a worker's load.
    fn load(&self, worker: WorkerRank, generation: Generation, load: Load);
}
