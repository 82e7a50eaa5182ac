//! The engine that goes on is asked with an object or not at all, whatever the engine that computed
//! the prompt answers.
//!
//! An input is the client's body, a zero byte, and the answer.

use crate::split;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (body, answer) = split(input);
    stator_proxy::fuzz::hand_over(body, answer);
}
