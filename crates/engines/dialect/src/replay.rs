//! Answers without an engine: for benchmarks, fuzzing and recordings.

use crate::answer::{Assembly, Decoder};
use crate::http::{self, MAX_ANSWER_BYTES};
use crate::{Ask, Delta, Fault, Kind, Pooling, sglang, trtllm, vllm};

/// Deltas that the agent would read for `ask` if its stream came in these pieces.
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
        Kind::Openai => Err(Fault::Unsupported("it is asked for no tokens".into())),
    }
}

/// The vector or classes that the agent would read of an engine's whole answer.
///
/// # Errors
///
/// The [`Fault`] that the answer is.
pub fn replay_pooled(kind: Kind, pooling: Pooling, answer: &[u8]) -> Result<Delta, Fault> {
    match kind {
        Kind::Vllm => vllm::pooled::decode(answer),
        Kind::Sglang => sglang::pooled::decode(answer, pooling),
        Kind::Trtllm | Kind::Openai => Err(Fault::Unsupported("it makes no vectors".into())),
    }
}

/// Status and body that the agent would read if an HTTP answer, head included, came in these
/// pieces.
///
/// # Errors
///
/// [`Fault::Unreachable`] where the pieces are no answer, or an incomplete one.
pub fn replay_http<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(u16, Vec<u8>), Fault> {
    let whole = stator_http::replay(pieces, MAX_ANSWER_BYTES);
    whole.map(|answer| (answer.status, answer.body)).map_err(|error| http::broken(&error))
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
