//! End-to-end tests: the real binary, the real official client, on port 0.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agents;
mod anthropic;
mod api;
mod bench;
mod builtin;
mod contract;
mod direct;
mod discovery;
mod docs;
mod door;
mod engines;
mod epp;
mod errors;
mod events;
mod fleet;
mod kv_operate;
mod kv_peers;
mod kv_tiers;
mod lifecycle;
mod openai;
mod pair;
mod passage;
mod pool_rules;
mod ranks;
mod release;
mod sglang;
mod stages;
mod suite;
mod support;
mod tenants;
mod testbed;
mod traces;
mod vllm;
mod vllm_tier_forms;
mod vllm_tiers;
