//! Discovery records: what an agent tells the fleet about itself.

use crate::{Generation, WorkerRank};
use serde::{Deserialize, Serialize};

/// One agent and the workers it runs. Serialized as JSON, one file per agent.
///
/// The agent writes the record anew well before its lease ends. Readers measure the lease on their
/// own clocks, from when they last saw the record change: the clocks of two machines may differ by
/// any amount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// Identity of the agent process; the file is named after it.
    pub agent_id: String,
    /// Request plane: `http://host:port` or `unix:///path`.
    pub endpoint: String,
    /// Whether the request plane has the events too, with their replays: an agent of an earlier
    /// version offers them over ZMQ alone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub serves_events: bool,
    /// ZMQ endpoint to subscribe to: `tcp://host:port` or `ipc:///path`. Empty where there is none.
    #[serde(default)]
    pub events_endpoint: String,
    /// ZMQ endpoint that answers replay requests. Empty where there is none.
    #[serde(default)]
    pub replay_endpoint: String,
    /// Model that the agent's workers serve.
    pub model: ModelRecord,
    /// The workers, in order of their rank within the agent.
    pub workers: Vec<WorkerRecord>,
    /// Role, labels and location of the workers.
    #[serde(flatten)]
    pub profile: ProfileRecord,
    /// False while the agent drains: it finishes what runs and takes nothing new.
    pub accepting: bool,
    /// Length of the lease, in milliseconds. 0: an agent of an earlier version does not
    /// say it; `u64::MAX`: the back-end keeps leases itself.
    #[serde(default)]
    pub lease_ms: u64,
    /// End of the lease by the agent's clock, in milliseconds since the Unix epoch: for people, and
    /// for readers of versions that compare clocks.
    pub lease_expires_unix_ms: u64,
}

/// Role, labels and location of an agent's workers. Fields at their default are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileRecord {
    /// Their part in serving a request.
    #[serde(skip_serializing_if = "is_default")]
    pub role: Role,
    /// Labels that requests may ask for, by convention `key=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Their machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Their rack, or whatever shares a fast network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Their zone or building.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// LoRA adapters that are loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// Adapters that can be loaded at once; 0 if there is no limit that is known.
    #[serde(skip_serializing_if = "is_default")]
    pub max_adapters: u32,
    /// Tokens computed in one step at most; 0 if unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub batch_tokens: u32,
    /// Pairing data of a prefill engine for decode engines: opaque JSON of the connector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handover: Option<String>,
    /// Address, `host:port`, at which the agent lends the KV of its host memory to other agents;
    /// absent where it lends none. See `Submit.kv_holders` of the request plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_transfer: Option<String>,
    /// With [`Role::Decode`]: they answer only where another worker computes the prompt.
    #[serde(skip_serializing_if = "is_default")]
    pub needs_prefill: bool,
    /// Whether their engine makes vectors of prompts: see `Sampling.pooled` of the request plane.
    #[serde(skip_serializing_if = "is_default")]
    pub embeds: bool,
    /// Whether their engine makes the probabilities of classes of prompts in place of a vector, see
    /// `Sampling.pooled` of the request plane. No engine does both.
    #[serde(skip_serializing_if = "is_default")]
    pub classifies: bool,
    /// Whether their engine answers no prompt, and does nothing but [`Self::embeds`] or
    /// [`Self::classifies`] says.
    #[serde(skip_serializing_if = "is_default")]
    pub only_pools: bool,
    /// Whether their engine ends thoughts that are too long: see `Sampling.thought_limit` of the
    /// request plane.
    #[serde(skip_serializing_if = "is_default")]
    pub bounds_thoughts: bool,
    /// Whether prompts stay cached for a time that a client wishes: see `Submit.pin_seconds` of the
    /// request plane.
    #[serde(skip_serializing_if = "is_default")]
    pub pins: bool,
    /// API of their engine, if it takes no token ids: see [`ModelRecord::takes_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiRecord>,
}

/// The OpenAI-compatible API of an engine, which proxies send requests to as they came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiRecord {
    /// `http://host:port` or `https://host:port`, where proxies reach it.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// Whether the engine is known to keep prefixes apart by the field `cache_salt`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub takes_cache_salt: bool,
}

/// Part of a request that a worker serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// All of it.
    #[default]
    Aggregated,
    /// It computes prompts for others and answers nobody.
    Prefill,
    /// It answers; others may compute prompts for it, or must, see
    /// [`ProfileRecord::needs_prefill`].
    Decode,
    /// It encodes images and other media for others.
    Encode,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The model of an agent, as far as every process of the fleet must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Name that clients ask for.
    pub name: String,
    /// Most tokens of prompt and answer together; 0 if unknown.
    pub context_length: u32,
    /// Tokens per KV block; for engines without tokens, four bytes of text count as one.
    pub block_size: u32,
    /// Token ids are below this; 0 where the engines take none.
    pub vocab_size: u32,
}

impl ModelRecord {
    /// Whether the engines take token ids, by way of their agents. Others are asked over an HTTP
    /// API of their own, in the client's words.
    pub fn takes_tokens(&self) -> bool {
        self.vocab_size > 0
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn record() -> Value {
        json!({
            "agent_id": "a",
            "endpoint": "http://127.0.0.1:1",
            "model": {"name": "m", "context_length": 64, "block_size": 16, "vocab_size": 10},
            "workers": [],
            "accepting": true,
            "lease_expires_unix_ms": 1,
        })
    }

    #[test]
    fn a_record_of_an_earlier_version_offers_its_events_over_zmq_alone() {
        let mut old = record();
        old["events_endpoint"] = "tcp://127.0.0.1:2".into();
        old["replay_endpoint"] = "tcp://127.0.0.1:3".into();
        let old: AgentRecord = serde_json::from_value(old).unwrap();
        assert!(!old.serves_events);
        assert_eq!(old.events_endpoint, "tcp://127.0.0.1:2");
    }

    #[test]
    fn a_record_without_zmq_has_the_fields_that_earlier_versions_need() {
        let mut new = record();
        new["serves_events"] = true.into();
        let new: AgentRecord = serde_json::from_value(new).unwrap();
        assert!(new.serves_events && new.events_endpoint.is_empty());
        let written = serde_json::to_value(&new).unwrap();
        assert_eq!(
            (&written["events_endpoint"], &written["replay_endpoint"]),
            (&"".into(), &"".into())
        );
        assert_eq!(serde_json::from_value::<AgentRecord>(written).unwrap(), new);
    }
}
