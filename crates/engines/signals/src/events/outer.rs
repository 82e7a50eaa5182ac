//! Blocks that an engine can load from outside of it.

use stator_protos::kv_event::KvEvent;

/// Blocks that an engine can load from outside of it and does not report itself: those of its agent's
/// tiers. All events name blocks by our hashes.
pub trait OuterBlocks: Send + Sync {
    /// The blocks that are held now, parents first, each as stored. What changes afterwards is for
    /// [`OuterBlocks::take_changes`].
    fn all(&self) -> Vec<KvEvent>;

    /// Takes what changed since the last call of either: what is stored, parents first, then what is
    /// removed.
    fn take_changes(&self) -> Vec<KvEvent>;
}
