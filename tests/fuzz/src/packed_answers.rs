//! The coding of an answer is one that its client takes, and the answer's parts unpack to all of it.
//!
//! An input is a value of `accept-encoding`, a zero byte, the size of parts less one, and an answer.

use crate::{cut, split};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (accepted, rest) = split(input);
    let (size, answer) = rest.split_at(rest.len().min(1));
    stator_proxy::fuzz::packed_answer(accepted, &cut(answer, size));
}
