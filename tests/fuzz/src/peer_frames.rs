//! Frames of another replica are passed over, or believed within bounds.

use stator_peers::fuzz::{snapshot_chunk, sync_frame};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    // Each gauge and each prompt takes two bytes at least, each block one.
    if let Some((gauges, sent)) = sync_frame(input) {
        assert!(gauges + sent <= input.len());
    }
    if let Some(blocks) = snapshot_chunk(input) {
        assert!(blocks <= input.len());
    }
}
