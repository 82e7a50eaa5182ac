//! Listeners to an engine's own events.

use stator_protos::kv_event::EngineEvent;

/// Hears what an engine says of its blocks, by the engine's own hashes.
pub trait EngineListener: Send + Sync {
    /// Events in the order in which the engine sent them. Some may come again after a lost connection.
    /// Returns at once.
    fn heard(&self, events: &[EngineEvent]);
}
