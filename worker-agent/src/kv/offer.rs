//! Messages about KV between the agents of a pair, as JSON in the hand-over of their requests.

use serde::{Deserialize, Serialize};

/// The KV that an agent's engines compute: the hand-over of its record.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KvOffer {
    /// [`stator_engine::transfer::KvForm::fingerprint`] of its engines.
    pub(crate) kv: u64,
}

/// A decode worker's order to keep a prompt. The decode worker chooses the handle, so that it can
/// give the prompt up whether or not it heard of its end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeepOrder {
    pub(crate) handle: u64,
}

/// A prefill worker's answer about a kept prompt.
#[derive(Debug, Serialize)]
pub(crate) struct KeptBlocks {
    pub(crate) blocks: usize,
}
