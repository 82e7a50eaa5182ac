//! A request that is decoded in chunks asks an engine with sound bodies, whatever the engine
//! answered before.
//!
//! An input is the client's body, then the engine's answers, with zero bytes between them.

use crate::split;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (body, answers) = split(input);
    stator_proxy::fuzz::chunks(body, answers.split(|byte| *byte == 0));
}
