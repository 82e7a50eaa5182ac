//! Answers whose requests were never shown.

use crate::answer::AnswerEdit;
use crate::exchange::{Interest, Watch};
use crate::headers::Headers;
use crate::observe::Observe;
use crate::usage::TokenCounts;
use bytes::Bytes;

/// Counts the tokens of an answer of which nothing else is known, and removes the parts that its
/// engine means for other engines: its request was answered or let through before it came here.
pub struct UnaskedWatch {
    observe: Observe,
    usage: TokenCounts,
    edit: AnswerEdit,
}

impl UnaskedWatch {
    /// Counts there.
    pub(crate) fn new(observe: Observe) -> Self {
        Self { observe, usage: TokenCounts::default(), edit: AnswerEdit::default() }
    }
}

impl Watch for UnaskedWatch {
    fn interest(&self) -> Interest {
        Interest::Body
    }

    fn headers(&mut self, _: u16, head: &Headers, _: Option<&str>) -> Vec<(&'static str, String)> {
        self.usage = TokenCounts::of(head);
        self.edit.clean(head);
        Vec::new()
    }

    fn body(&mut self, piece: Bytes, end: bool, out: &mut Vec<Bytes>) {
        self.usage.push(&piece);
        self.edit.push(piece, end, out);
    }

    fn end(&mut self) -> Vec<(String, String, f64)> {
        if let Some(usage) = self.usage.finish() {
            self.observe.unasked(usage);
        }
        Vec::new()
    }
}
