//! The way of a block of KV from a prefill agent's engine to a decode agent's.

pub(crate) mod server;
