//! TensorRT-LLM's KV events: JSON over HTTP, drained by reading.
//!
//! A server has one list of events for all of its ranks, and reading removes them: only one process
//! may follow it. [`TrtLlmDrain`] reads the list and sends each rank's events to the follower of
//! that rank, numbered as the engine numbers them. There is no replay: a missing number means that
//! the engine's buffer overran, and the follower forgets everything.
//!
//! Source: `POST /kv_cache_events` of trtllm-serve around 1.2, which needs
//! `kv_cache_config.event_buffer_max_size` above 0.

mod decode;
mod drain;
mod places;

pub use drain::{TrtLlmDrain, TrtLlmSettings};

pub(crate) use decode::decode;
pub(crate) use places::Places;

#[cfg(test)]
mod tests;
