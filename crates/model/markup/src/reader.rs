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

/// Bytes that a stage has read, and the progress of the reader unless another stage follows.
pub(crate) type ReaderStep = (usize, Option<ReaderProgress>);

/// A reader that goes from stage to stage.
pub(crate) trait StagedReader {
    /// Begins behind the opening marker of this number.
    fn open(&mut self, opener: usize);

    /// Reads on in the present stage.
    fn step(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep;

    /// Tells the text that was held back: no more comes. `at` is the number of bytes read.
    fn finish(&mut self, at: usize, sink: &mut dyn EventSink) -> ReaderProgress;
}

impl<T: StagedReader> CallReader for T {
    fn open(&mut self, opener: usize) {
        StagedReader::open(self, opener);
    }

    fn read(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderProgress {
        let mut at = 0;
        loop {
            let (read, end) = self.step(&text[at..], last, sink);
            let Some(mut progress) = end else {
                at += read;
                continue;
            };
            progress.consumed += at;
            return match progress.outcome == ReaderOutcome::Open && last {
                true => self.finish(progress.consumed, sink),
                false => progress,
            };
        }
    }
}

/// A reader of any notation.
pub(crate) trait AnyReader: CallReader + std::fmt::Debug + Send {}

impl<T: CallReader + std::fmt::Debug + Send> AnyReader for T {}

/// A reader of the notation of a family.
pub(crate) type BoxedReader = Box<dyn AnyReader>;

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

/// Reads held text and the piece behind it; returns the text to hold until more comes. `read` returns
/// the bytes that it is done with.
pub(crate) fn read_piece(
    mut held: String,
    piece: &str,
    read: impl FnOnce(&str) -> usize,
) -> String {
    // Nearly every piece is read to its end: nothing of it is copied.
    if held.is_empty() {
        let done = read(piece);
        held.push_str(&piece[done..]);
    } else {
        held.push_str(piece);
        let done = read(&held);
        held.drain(..done);
    }
    held
}

/// Length of the white space at the start of a text.
pub(crate) fn leading_space(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t', '\r', '\n']).len()
}
