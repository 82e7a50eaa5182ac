//! Discovery records: what an agent tells the fleet about itself.

use crate::{Generation, WorkerRank};
use serde::{Deserialize, Serialize};

/// One agent and the workers it runs. Serialized as JSON, one file per agent.
///
/// A record is valid until `lease_expires_unix_ms`; the agent writes it anew well before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// Identity of the agent process; the file is named after it.
    pub agent_id: String,
    /// Request plane: `http://host:port` or `unix:///path`.
    pub endpoint: String,
    /// Event plane, a ZMQ endpoint to subscribe to: `tcp://host:port` or `ipc:///path`.
    pub events_endpoint: String,
    /// ZMQ endpoint that answers replay requests.
    pub replay_endpoint: String,
    /// What the agent's workers serve.
    pub model: ModelRecord,
    /// The workers, in order of their rank within the agent.
    pub workers: Vec<WorkerRecord>,
    /// False while the agent drains: it finishes what runs and takes nothing new.
    pub accepting: bool,
    /// End of the lease, in milliseconds since the Unix epoch.
    pub lease_expires_unix_ms: u64,
}

/// The model of an agent, as far as every process of the fleet must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Name that clients ask for.
    pub name: String,
    /// Most tokens of prompt and answer together.
    pub context_length: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
}

/// One worker of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Identity and rank.
    #[serde(flatten)]
    pub worker: WorkerRank,
    /// Its present life.
    pub generation: Generation,
    /// KV blocks it can hold.
    pub total_blocks: u32,
}
