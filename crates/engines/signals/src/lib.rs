//! What stock engines tell of themselves: which KV blocks they hold, and how busy they are.
//!
//! The picker follows engines that have no agent, an agent follows the engine beside it; both do it
//! here. What arrives is handed on in terms of our own workers and block hashes; nothing here
//! chooses a worker or knows where engines are found.
//!
//! - [`events`] follows KV events and translates engines' block hashes to ours.
//! - [`page`] finds the few lines of a metrics page that matter to who reads it often.
//! - [`report`] reads what an agent tells under its own names, rank by rank.
//! - [`families`] takes over the engine's own names, to stand on an agent's page.
//! - [`fetch`] is the HTTP client that asks for pages.
//!
//! Start reading at [`events::Follower`].

pub mod events;
pub mod families;
pub mod fetch;
pub mod page;
pub mod report;
