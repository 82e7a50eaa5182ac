//! The description of an arena that is read directly: what is read survives the wire, and no address
//! within the arena is beyond the last one.

use stator_kv::transfer::direct::DESCRIPTION_BYTES_MAX;
use stator_nixl::ArenaDescription;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Ok(arena) = ArenaDescription::decode(input) else { return };
    assert!(input.len() <= DESCRIPTION_BYTES_MAX);
    assert!(arena.first.checked_add(arena.bytes).is_some());
    assert_eq!(arena.encode(), input);
}
