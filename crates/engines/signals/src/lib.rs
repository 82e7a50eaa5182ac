//! Signals of stock engines: the KV blocks they hold, and their load.
//!
//! The picker follows engines without an agent, an agent follows the engine beside it; both use
//! this crate. Signals are translated to our own workers and block hashes; nothing here chooses a
//! worker or finds engines.
//!
//! - [`events`] follows KV events and translates engines' block hashes to ours.
//! - [`page`] finds the few lines of a metrics page that matter to frequent readers.
//! - [`report`] reads all engine metrics, rank by rank, under one vocabulary.
//! - [`families`] republishes the engine's own metrics on an agent's page.
//!
//! Start reading at [`events::Follower`].

pub mod events;
pub mod families;
pub mod fuzz;
pub mod page;
pub mod report;
