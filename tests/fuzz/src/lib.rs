//! What the targets share: how one input tells several things.

pub mod ext_proc;

use bytes::Bytes;

/// Splits an input at its first zero byte, which no text has: the text, and what steers the test.
/// So any text by itself is an input, and a seed.
pub fn split(input: &[u8]) -> (&[u8], &[u8]) {
    match input.iter().position(|byte| *byte == 0) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[]),
    }
}

/// Cuts `bytes` into chunks of `sizes` plus one bytes, over and over; without sizes, into chunks
/// of 7.
pub fn cut(bytes: &[u8], sizes: &[u8]) -> Vec<Bytes> {
    let sizes = if sizes.is_empty() { &[6] } else { sizes };
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut chunks = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        chunks.push(rest.split_to((usize::from(*size) + 1).min(rest.len())));
    }
    chunks
}
