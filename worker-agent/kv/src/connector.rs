//! Engines in other processes that keep KV in the agent's arena.
//!
//! Start reading at [`wire`], which says who sends what and when.

mod decode;
mod encode;
pub mod names;
pub mod wire;

pub use decode::WireError;
