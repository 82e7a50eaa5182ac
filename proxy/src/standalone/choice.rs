//! One choice of an answer: what has come of it and has not been written.

use super::reading::{AnswerReading, MarkupReader};
use super::segment::Segments;
use stator_api::delta::{FinishReason, TokenLogprob, TokenText};
use stator_api::{Delta, GenerateOptions};
use stator_markup::OutputPlace;
use stator_model::{Detokenizer, Model, StopMatcher};
use stator_protos::worker::TokenLogprobs;

/// One choice.
pub(super) struct Choice {
    detokenizer: Detokenizer,
    stop: Option<StopMatcher>,
    markup: Option<Box<MarkupReader>>,
    pub(super) segments: Segments,
    pub(super) token_ids: Vec<u32>,
    pub(super) logprobs: Vec<TokenLogprob>,
    /// Logprobs of tokens that may be markup, whose tokens have no place in an answer's text.
    undecided: Vec<TokenLogprob>,
    /// Position of the next token's text, in characters.
    text_offset: u32,
    pub(super) tokens: u32,
    /// Tokens of thoughts.
    pub(super) reasoning_tokens: u32,
    /// Whether its worker has told what it found cached.
    pub(super) cached_told: bool,
    /// Whether the tokens of its prompt that are pinned were reported.
    pub(super) pins_told: bool,
    pub(super) finish: Option<FinishReason>,
    /// Whether the ending has been written.
    pub(super) written: bool,
}

impl Choice {
    /// A choice without a token yet, that begins with `text`.
    pub(super) fn new(
        model: &Model,
        options: &GenerateOptions,
        reading: Option<&AnswerReading>,
        text: String,
    ) -> Self {
        let skip = options.skip_special_tokens;
        Self {
            detokenizer: match reading {
                Some(reading) => model.markup_detokenizer(reading.reads_calls(), skip),
                None => model.detokenizer(skip),
            },
            stop: StopMatcher::new(&options.stop, options.include_stop_str_in_output),
            markup: reading.map(|reading| Box::new(reading.reader())),
            segments: Segments::new(text, options.stream),
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            undecided: Vec::new(),
            text_offset: 0,
            tokens: 0,
            reasoning_tokens: 0,
            cached_told: false,
            pins_told: false,
            finish: None,
            written: false,
        }
    }

    /// Takes the next token, with its logprobs where they are wanted; the reason to end the choice,
    /// if the token gives one.
    pub(super) fn push(
        &mut self,
        model: &Model,
        id: u32,
        logprobs: Option<&TokenLogprobs>,
    ) -> Option<FinishReason> {
        self.tokens += 1;
        if self.markup.is_some() {
            return self.push_marked(model, id, logprobs);
        }
        if let Some(logprobs) = logprobs {
            self.note(model, logprobs, true);
        }
        let Self { detokenizer, stop, segments, .. } = self;
        match stop {
            None => {
                detokenizer.push(&[id], segments.text());
                None
            }
            Some(stop) => {
                let mut piece = String::new();
                detokenizer.push(&[id], &mut piece);
                stop.push(&piece, segments.text()).then_some(FinishReason::Stop)
            }
        }
    }

    fn push_marked(
        &mut self,
        model: &Model,
        id: u32,
        logprobs: Option<&TokenLogprobs>,
    ) -> Option<FinishReason> {
        let Self { detokenizer, stop, markup: Some(markup), segments, .. } = self else {
            return None;
        };
        let before = markup.place();
        detokenizer.push(&[id], &mut markup.piece);
        let ends = markup.read(stop, segments);
        let (after, told_text) = (markup.place(), markup.told_text());
        if before == OutputPlace::Reasoning && after == OutputPlace::Reasoning {
            self.reasoning_tokens += 1;
        }
        if let Some(logprobs) = logprobs
            && before != OutputPlace::Reasoning
        {
            let noted = self.noted(model, logprobs, true);
            self.undecided.push(noted);
        }
        // What was held back is text or markup, once nothing is held back any more.
        match after {
            OutputPlace::Text if told_text || before == OutputPlace::Text => {
                self.logprobs.append(&mut self.undecided);
            }
            OutputPlace::Text | OutputPlace::Reasoning => self.undecided.clear(),
            OutputPlace::Markup => {}
        }
        ends
    }

    /// Ends the choice with what was held back.
    pub(super) fn end(&mut self, reason: FinishReason) {
        let Self { detokenizer, stop, markup, segments, .. } = self;
        let mut finish = reason;
        let stopped = match (markup, &mut *stop) {
            (Some(markup), stop) => {
                detokenizer.finish(&mut markup.piece);
                let stopped = markup.finish(stop, segments) == Some(FinishReason::Stop);
                finish = markup.reason(reason);
                stopped
            }
            (None, None) => {
                detokenizer.finish(segments.text());
                false
            }
            (None, Some(stop)) => {
                let mut piece = String::new();
                detokenizer.finish(&mut piece);
                stop.push(&piece, segments.text())
            }
        };
        match stop {
            Some(_) if stopped => finish = FinishReason::Stop,
            Some(stop) => stop.finish(segments.text()),
            None => {}
        }
        self.finish = Some(finish);
    }

    /// Keeps a token's logprobs, with its place in the text.
    pub(super) fn note(&mut self, model: &Model, logprobs: &TokenLogprobs, known: bool) {
        let noted = self.noted(model, logprobs, known);
        self.logprobs.push(noted);
    }

    fn noted(&mut self, model: &Model, logprobs: &TokenLogprobs, known: bool) -> TokenLogprob {
        let text = |token: u32, logprob: f32| {
            let bytes = model.token_bytes(token).into_owned();
            TokenText { token: String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob }
        };
        let chosen = text(logprobs.token_id, logprobs.logprob);
        let text_offset = self.text_offset;
        self.text_offset += chosen.token.chars().count() as u32;
        let top = logprobs.top.iter().map(|top| text(top.token_id, top.logprob)).collect();
        TokenLogprob { chosen, known, top, text_offset }
    }

    /// The stop string that ended the choice, if one did.
    pub(super) fn stop_string(&self) -> Option<&str> {
        self.stop.as_ref()?.stop_string()
    }

    /// Whether there is anything to write, beside an ending.
    pub(super) fn has_news(&self) -> bool {
        !self.segments.is_empty() || !self.token_ids.is_empty() || !self.logprobs.is_empty()
    }

    /// Forgets what has been written.
    pub(super) fn clear(&mut self) {
        self.segments.clear();
        self.token_ids.clear();
        self.logprobs.clear();
    }

    /// The members of a delta that say how the choice ended.
    pub(super) fn ending(&self) -> Delta<'_> {
        let finish = self.finish;
        Delta { finish, stop_string: self.stop_string(), ..Delta::default() }
    }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
