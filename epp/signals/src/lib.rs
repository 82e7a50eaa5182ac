//! Signals of endpoints: their load, the KV blocks that they hold, and their model's tokenizer.
//!
//! Everything that arrives is handed to a [`LoadSink`] or a [`WorkerSink`], in terms of the
//! picker's own workers; nothing here chooses an endpoint, knows Kubernetes or knows Envoy.
//!
//! - [`scrape`] asks engines that have no agent for their metrics pages.
//! - [`engine`] follows the KV events of such engines.
//! - [`agents`] follows endpoints that have a stator agent beside their engine.
//! - [`tokenizer`] finds the model's tokenizer, or asks a renderer for token ids.
//!
//! Start reading at [`sink`].

pub mod agents;
pub mod engine;
mod feeds;
mod metrics;
mod roster;
pub mod scrape;
pub mod sink;
#[cfg(test)]
mod testkit;
pub mod tokenizer;

pub use metrics::SignalMetrics;
pub use sink::{LoadSink, WorkerSink};
