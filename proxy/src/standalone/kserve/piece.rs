//! Answers of calls, in pieces or whole.

use crate::exchange::{Exchange, HangUp};
use crate::failure::Failure;
use crate::standalone::run::{Run, RunProgress};
use stator_api::delta::FinishReason;
use stator_api::kserve::InferText;
use std::future::Future;

/// A piece of an answer, or all of it.
#[derive(Debug, Default)]
pub(crate) struct AnswerPiece {
    text: String,
    finish: Option<FinishReason>,
    /// Whether nothing follows.
    pub is_last: bool,
}

impl AnswerPiece {
    /// The piece in the protocol's words.
    pub(crate) fn text(&self) -> InferText<'_> {
        InferText { text: &self.text, finish: self.finish }
    }
}

/// Somebody who waits for an answer.
pub(crate) trait AnswerReader {
    /// Ends where nobody wants the answer any more.
    fn gone(&mut self) -> impl Future<Output = HangUp>;
}

impl AnswerReader for Exchange {
    async fn gone(&mut self) -> HangUp {
        Exchange::gone(self).await
    }
}

/// Waits for the next piece of an answer; for all of it if it is not to come in pieces.
///
/// # Errors
///
/// When the answer cannot go on, or nobody wants it.
pub(crate) async fn next(
    run: &mut Run<'_>,
    in_pieces: bool,
    reader: &mut impl AnswerReader,
) -> Result<AnswerPiece, Failure> {
    let mut piece = AnswerPiece::default();
    while !piece.is_last {
        let progress = run.advance(reader.gone()).await?;
        run.write(|delta, _| {
            piece.text.push_str(delta.text);
            piece.finish = delta.finish.or(piece.finish);
        });
        piece.is_last = progress == RunProgress::Over;
        if in_pieces && !(piece.text.is_empty() && piece.finish.is_none()) {
            break;
        }
    }
    if piece.is_last {
        run.record();
    }
    Ok(piece)
}
