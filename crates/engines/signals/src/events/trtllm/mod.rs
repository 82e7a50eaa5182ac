//! TensorRT-LLM's KV events: JSON over HTTP, drained by reading.
//!
//! A server has one list of events for all of its ranks, and whoever reads it takes them away: only
//! one process may follow it. [`TrtLlmDrain`] reads the list and sends each rank's events on to the
//! follower of that rank, numbered as the engine numbers them. There is no replay: where a number
//! is missing, the engine's buffer overran, and what was known is forgotten.
//!
//! Source: `POST /kv_cache_events` of trtllm-serve around 1.2, which needs
//! `kv_cache_config.event_buffer_max_size` above 0.

mod decode;
mod drain;
mod places;

pub use drain::{TrtLlmDrain, TrtLlmSettings};

pub(super) use decode::decode;
pub(super) use places::Places;

#[cfg(test)]
mod tests;
