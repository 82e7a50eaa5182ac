//! A peer that says anything before it is known is refused, or closes.

use crate::block_on;
use stator_zmtp::fuzz::handshake;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let faults = block_on(handshake(input));
    // A socket type that fits one kind of socket does not fit all.
    assert!(faults.iter().any(Option::is_some));
}
