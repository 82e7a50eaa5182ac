//! The way of a block of KV from a prefill agent's engine to a decode agent's.
//!
//! A request that names a prefill worker comes to a decode worker, and:
//!
//! 1. Decode checks that the KV there is of its own form ([`offer`]) and trusted. It draws a ticket, and
//!    asks the prefill worker to compute the prompt and to keep its blocks for whoever has the ticket
//!    ([`fetch`]).
//! 2. The prefill worker computes the prompt, chunk by chunk, and keeps its blocks ([`kept_prompts`]).
//!    After each chunk its driver copies the blocks that decode lacks out of the engine into host
//!    memory, as far as there is room ([`pushed`]), and tells decode how many there are.
//! 3. Decode reads them at once by the transfer, batch by batch, while the next chunk is computed
//!    ([`prompt_reader`], [`stator_kv::transfer`]). The prefill agent lends them from host memory
//!    ([`handovers`], [`lending`]); blocks for which there was no room are copied when they are asked for.
//! 4. Decode's driver imports each batch as it comes ([`fetch`]). Its engine computes whatever did not
//!    come.
//!
//! Both agents have a bounded memory for blocks on their way ([`transfer_room`]). KV of tiers goes the
//! same way from agent to agent ([`peers`]), without steps 1 and 2.

pub(crate) mod fetch;
pub(crate) mod handovers;
pub(crate) mod kept_prompts;
pub(crate) mod lending;
pub(crate) mod offer;
pub(crate) mod pages;
pub(crate) mod peers;
pub(crate) mod prompt_pins;
pub(crate) mod prompt_reader;
pub(crate) mod pushed;
pub(crate) mod tiers;
pub(crate) mod transfer_room;
