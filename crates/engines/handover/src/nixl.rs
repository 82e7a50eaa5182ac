//! NIXL between two vLLMs: prefill answers with the parameters that decode is given. The reading
//! mode of MoRI-IO begins alike.
//!
//! Source: the connectors of vLLM 0.32.0.

use crate::KV_PARAMETERS;
use serde_json::Value;
use stator_body::Object;

/// The parameters of a prefill request, as JSON: `do_remote_decode` alone is enough, and nothing else
/// is safe.
pub const PREFILL: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// [`PREFILL`] as a tree, to which more can be added.
pub fn prefill() -> Value {
    serde_json::from_str(PREFILL).expect("a literal of JSON")
}

/// Whether a request asks that the KV of its prompt be kept for another engine.
pub fn wants_kept(body: &[u8]) -> bool {
    let object = Object::parse(body).ok();
    let told = object.and_then(|object| object.get(KV_PARAMETERS));
    let told = told.and_then(|told| serde_json::from_slice::<Value>(told).ok());
    told.is_some_and(|told| told["do_remote_decode"] == true)
}
