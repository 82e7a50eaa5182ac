//! End-to-end tests: the real binary, the real official client, on port 0.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod bench;
mod direct;
mod discovery;
mod engines;
mod epp;
mod errors;
mod events;
mod fleet;
mod lifecycle;
mod support;
mod testbed;
mod vllm;
