//! A record of discovery is refused, or survives the wire.

use stator_discovery::fuzz::record;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Ok(record_read) = record(input) else { return };
    assert_eq!(record_read.agent_id, "a");
    let again = serde_json::to_vec(&record_read).expect("a record is JSON");
    assert_eq!(record(&again), Ok(record_read));
}
