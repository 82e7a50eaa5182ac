//! Readers of calls: what stands behind a marker that opens calls.

use crate::event::EventSink;

/// Progress of a reader through the text that it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReaderProgress {
    /// Bytes that are done; the others come again, with more text behind them.
    pub(crate) consumed: usize,
    /// The reader's state after the text that it consumed.
    pub(crate) outcome: ReaderOutcome,
}

/// The state in which a reader leaves its calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReaderOutcome {
    /// More of the calls is to come.
    Open,
    /// The calls have ended.
    Closed,
    /// The text since the marker, or since the last call, is no call but this text.
    Refused(String),
}

/// Reads calls out of text that comes in pieces.
pub(crate) trait CallReader {
    /// Begins behind the opening marker of this number.
    fn open(&mut self, opener: usize);

    /// Reads on. With `last` no more text comes: what was held back is told.
    fn read(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderProgress;
}

impl ReaderProgress {
    pub(crate) fn open(consumed: usize) -> Self {
        Self { consumed, outcome: ReaderOutcome::Open }
    }

    pub(crate) fn closed(consumed: usize) -> Self {
        Self { consumed, outcome: ReaderOutcome::Closed }
    }

    pub(crate) fn refused(consumed: usize, text: String) -> Self {
        Self { consumed, outcome: ReaderOutcome::Refused(text) }
    }
}

/// Length of the white space at the start of a text.
pub(crate) fn leading_space(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t', '\r', '\n']).len()
}
