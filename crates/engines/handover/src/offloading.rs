//! vLLM's offloading connector from peer to peer: prefill keeps the KV under a name, and decode reads
//! it there.
//!
//! Source: llm-d's sidecar.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// KV of a prompt at a peer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// The name of the KV, which no other request has.
    pub kv_request_id: String,
    /// The peer's host, without brackets.
    pub remote_host: String,
    /// The port of the peer's rank.
    pub remote_port: u16,
}

/// The parameters of a prefill request under this name.
pub fn prefill(kv_request_id: &str) -> Value {
    json!({ "remote_decoder": { "kv_request_id": kv_request_id } })
}

/// The parameters of a decode request that reads from `peer`.
pub fn decode(peer: Peer) -> Value {
    json!({ "remote_prefiller": peer })
}

/// The peer that the parameters of a decode request name; `None` if they name none, or are those of
/// prefill.
///
/// # Errors
///
/// For parameters that are not JSON of this shape.
pub fn read_decode(parameters: &str) -> serde_json::Result<Option<Peer>> {
    #[derive(Deserialize)]
    struct Parameters {
        remote_decoder: Option<serde::de::IgnoredAny>,
        remote_prefiller: Option<Peer>,
    }
    let Parameters { remote_decoder, remote_prefiller } = serde_json::from_str(parameters)?;
    Ok(remote_prefiller.filter(|_| remote_decoder.is_none()))
}
