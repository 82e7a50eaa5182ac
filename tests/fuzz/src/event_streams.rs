//! The events of a streamed answer are the same wherever its bytes are cut, to `stator bench` and to
//! `stator chat`.
//!
//! An input is a stream, then the sizes of its pieces.

use crate::{cut, split};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (stream, sizes) = split(input);
    let pieces = cut(stream, sizes);
    let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
    stator_bench::fuzz::answer(stream, &pieces);
    stator_chat::fuzz::answer(stream, &pieces);
}
