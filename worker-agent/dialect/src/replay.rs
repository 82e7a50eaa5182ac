//! Answers without an engine: for benchmarks, for fuzzing, and for what was recorded.

use crate::answer::{Assembly, Decoder};
use crate::{Ask, Delta, Fault, Kind, sglang, trtllm, vllm};

/// What the agent would read as the answer to `ask`, were its stream to come in these pieces.
///
/// # Errors
///
/// The [`Fault`] that the answer ends with.
pub fn replay<'a>(
    kind: Kind,
    ask: &Ask,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Delta>, Fault> {
    match kind {
        Kind::Vllm => run(vllm::Decode::new(ask), pieces),
        Kind::Sglang => run(sglang::Decode::new(ask), pieces),
        Kind::Trtllm => run(trtllm::Decode::new(ask), pieces),
    }
}

pub(crate) fn run<'a>(
    decoder: impl Decoder,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Delta>, Fault> {
    let mut assembly = Assembly::new(decoder);
    let mut deltas = Vec::new();
    for piece in pieces {
        assembly.push(piece);
        deltas.extend(assembly.take()?);
    }
    assembly.end();
    while let Some(delta) = assembly.take()? {
        deltas.push(delta);
    }
    Ok(deltas)
}
