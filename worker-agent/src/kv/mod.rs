//! The way of a block of KV from a prefill agent's engine to a decode agent's.
//!
//! A request that names a prefill worker comes to a decode worker, and:
//!
//! 1. Decode checks that the KV there is of its own form ([`offer`]) and trusted, and asks the
//!    prefill worker to compute the prompt and to keep its blocks ([`fetch`]).
//! 2. The prefill worker computes the prompt and keeps its blocks under a handle ([`kept_prompts`]).
//! 3. Decode fetches the blocks that it lacks. The prefill agent copies them out of its engine in
//!    batches, seals each block, and streams it in pieces ([`server`]).
//! 4. Decode puts the pieces together, checks each seal, and imports the blocks ([`fetch`],
//!    [`stator_engine::transfer`]). Its engine computes whatever did not come.

pub(crate) mod fetch;
pub(crate) mod kept_prompts;
pub(crate) mod offer;
pub(crate) mod pages;
pub(crate) mod peers;
pub(crate) mod server;
pub(crate) mod tiers;
