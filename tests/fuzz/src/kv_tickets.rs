//! Orders to keep a prompt, and offers of KV, are refused, or survive the wire.

/// Runs the target.
pub(crate) fn run(json: &[u8]) {
    stator_worker_agent::fuzz::hand_over(json);
}
