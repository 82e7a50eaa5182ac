//! Wherever the chunks of an answer end, its usage and its model's name are found as in the whole.
//!
//! An input is an answer, then the sizes of its chunks.

use crate::{cut, split};
use bytes::Bytes;
use stator_body::{ModelNameRewriter, UsageTail};

/// Answers up to this length are kept as a whole by [`UsageTail`].
const KEPT_BYTES: usize = 8 << 10;
/// What the worker writes, and what the client is to read.
const NAMES: [(&str, &str); 2] = [
    ("\"model\":\"org/base\"", "\"model\":\"cli\\\"ent\""),
    ("\"model\": \"org/base\"", "\"model\": \"cli\\\"ent\""),
];

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (answer, sizes) = split(input);
    let chunks = cut(answer, sizes);
    assert_eq!(
        String::from_utf8_lossy(&rewrite(&chunks)),
        String::from_utf8_lossy(&replaced(answer))
    );
    if answer.len() <= KEPT_BYTES {
        assert_eq!(usage(&chunks), usage(&[Bytes::copy_from_slice(answer)]));
    }
}

fn rewrite(chunks: &[Bytes]) -> Vec<u8> {
    let mut rewriter = ModelNameRewriter::new("org/base", "cli\"ent");
    let mut out = Vec::new();
    for chunk in chunks {
        rewriter.push(chunk.clone(), &mut out);
    }
    rewriter.finish(&mut out);
    out.concat()
}

/// Replaces from left to right in the whole answer.
fn replaced(mut answer: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(answer.len());
    while let Some(first) = answer.first() {
        let found = NAMES.iter().find(|(from, _)| answer.starts_with(from.as_bytes()));
        match found {
            Some((from, to)) => {
                out.extend_from_slice(to.as_bytes());
                answer = &answer[from.len()..];
            }
            None => {
                out.push(*first);
                answer = &answer[1..];
            }
        }
    }
    out
}

fn usage(chunks: &[Bytes]) -> Option<stator_body::Usage> {
    let mut tail = UsageTail::new();
    chunks.iter().for_each(|chunk| tail.push(chunk));
    tail.finish()
}
