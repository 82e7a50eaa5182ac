//! `stator sidecar` beside simulated engines and a real one: alone, and behind a real
//! Envoy and a real picker.

mod chunks;
mod door;
mod gateway;
mod pair;
mod process;
mod supplies;
pub(crate) mod testbed;
mod tls;
pub(crate) mod vllm;
