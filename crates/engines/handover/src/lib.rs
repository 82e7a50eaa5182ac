//! Hand-over of a prompt's KV from a prefill engine to a decode engine: the engines' own field names,
//! the fields that each of the two requests gets, and those that prefill's answer hands over.
//!
//! Pure: bodies in, bodies out. This crate asks no engine and knows no address but those that it is
//! given. The sidecar edits clients' bodies by a [`Connector`]; the agent's dialects write their own
//! bodies with the parts in [`nixl`], [`mooncake`], [`sglang`], [`offloading`] and [`moriio`].
//! TensorRT-LLM is spoken to by the agent alone, so that its fields stand in its dialect. Start
//! reading at [`Connector::prefill`].

pub mod bootstrap;
mod connector;
mod engine_request;
mod limits;
pub mod mooncake;
pub mod moriio;
pub mod nixl;
pub mod offloading;
pub mod sglang;
mod supplies;

pub use connector::{Connector, Order, Pair, gave_up};
pub use engine_request::{DpRank, EngineRequest, MissingParameters};
pub use limits::{is_prefillable, is_single, one_token};
pub use supplies::{EC_PARAMETERS, KV_PARAMETERS, KvSource, Supplies};
