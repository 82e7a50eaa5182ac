//! Turns the tokens of a request's choices into text: detokenizes, finds stop strings, counts.

use super::job::Job;
use stator_api::Delta;
use stator_api::delta::{FinishReason, TokenLogprob, TokenText, Usage};
use stator_api::openai::response::EventWriter;
use stator_model::{Detokenizer, Model, StopMatcher};
use stator_protos::worker::{self, Finish, Output, TokenLogprobs};
use std::sync::Arc;

/// The choices of one request, as text.
pub(crate) struct Answer {
    model: Arc<Model>,
    choices: Vec<Choice>,
    choices_per_prompt: usize,
    /// Choices that have not ended.
    open: usize,
    usage: Usage,
    with_ids: bool,
    with_logprobs: bool,
    keep_stop_token: bool,
}

/// One choice: what has come of it and has not been written yet.
struct Choice {
    detokenizer: Detokenizer,
    stop: Option<StopMatcher>,
    /// Text, token ids and logprobs that are to be written.
    text: String,
    token_ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    /// Position of the next token's text, in characters.
    text_offset: u32,
    tokens: u32,
    /// Whether its worker has told what it found cached.
    cached_told: bool,
    finish: Option<FinishReason>,
    /// Whether the ending has been written.
    written: bool,
}

impl Answer {
    /// An answer without a token yet; an echoed prompt is its beginning.
    pub(crate) fn new(job: &Job) -> Self {
        let options = &job.options;
        let model = &job.served.model;
        let mut choices = Vec::with_capacity(job.prompts.len() * options.n as usize);
        for (n, prompt) in job.prompts.iter().enumerate() {
            let echo = job.echo.get(n);
            choices.extend((0..options.n).map(|_| {
                let mut choice = Choice {
                    detokenizer: model.detokenizer(options.skip_special_tokens),
                    stop: StopMatcher::new(&options.stop, options.include_stop_str_in_output),
                    text_offset: 0,
                    text: echo.cloned().unwrap_or_default(),
                    token_ids: Vec::new(),
                    logprobs: Vec::new(),
                    tokens: 0,
                    cached_told: false,
                    finish: None,
                    written: false,
                };
                if echo.is_some()
                    && options.sampling.logprobs.is_some()
                    && let Some(first) = prompt.first()
                {
                    // Nothing came before it, so no worker can say how likely it was.
                    let first = TokenLogprobs { token_id: *first, ..TokenLogprobs::default() };
                    choice.note(model, &first, false);
                }
                choice
            }));
        }
        let prompt_tokens = job.prompts.iter().map(|prompt| prompt.len() as u32).sum();
        Self {
            model: model.clone(),
            open: choices.len(),
            choices,
            choices_per_prompt: options.n as usize,
            usage: Usage { prompt_tokens, ..Usage::default() },
            with_ids: options.return_token_ids,
            with_logprobs: options.sampling.logprobs.is_some(),
            keep_stop_token: options.include_stop_str_in_output,
        }
    }

    /// Whether more is to come.
    pub(crate) fn open(&self) -> bool {
        self.open > 0
    }

    /// Tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Tokens of the longest choice.
    pub(crate) fn longest(&self) -> u32 {
        self.choices.iter().map(|choice| choice.tokens).max().unwrap_or(0)
    }

    /// Takes in what the workers sent; empties `outputs`.
    pub(crate) fn take(&mut self, outputs: &mut Vec<Output>) {
        for output in outputs.drain(..) {
            self.take_one(output);
        }
    }

    fn take_one(&mut self, output: Output) {
        let at = output.choice as usize;
        let Some(choice) = self.choices.get_mut(at) else { return };
        if choice.finish.is_some() {
            // It ended here, by a stop string; the worker has not heard of that yet.
            return;
        }
        // Some engines tell with the first token, some with the last; a worker that goes on where
        // another failed tells again.
        if at.is_multiple_of(self.choices_per_prompt)
            && let Some(cached) = output.cached_tokens
            && !std::mem::replace(&mut choice.cached_told, true)
        {
            self.usage.cached_tokens += cached;
        }
        for prompt in &output.prompt_logprobs {
            choice.note(&self.model, prompt, true);
        }
        let ending = output.finish.as_ref().map(Ending::of);
        let stop_token = ending.is_some_and(|ending| ending.by_token) && !self.keep_stop_token;
        let shown =
            output.token_ids.len() - usize::from(stop_token && !output.token_ids.is_empty());
        let mut stopped = false;
        for (n, id) in output.token_ids.iter().enumerate() {
            choice.tokens += 1;
            self.usage.completion_tokens += 1;
            if n < shown {
                if self.with_ids {
                    choice.token_ids.push(*id);
                }
                if self.with_logprobs
                    && let Some(logprobs) = output.logprobs.get(n)
                {
                    choice.note(&self.model, logprobs, true);
                }
                stopped = choice.push(*id);
                if stopped {
                    break;
                }
            }
        }
        if stopped {
            choice.finish = Some(FinishReason::Stop);
        } else if let Some(ending) = ending {
            choice.end(ending.reason);
        }
        self.open -= usize::from(choice.finish.is_some());
    }

    /// Appends what a stream begins with.
    pub(crate) fn begin(&self, writer: &EventWriter, events: &mut Vec<u8>) {
        for number in (0..).take(self.choices.len()) {
            writer.role(events, number, self.usage);
        }
    }

    /// Appends an event for each choice that has something new.
    pub(crate) fn write(&mut self, writer: &EventWriter, events: &mut Vec<u8>) {
        for (number, choice) in (0..).zip(&mut self.choices) {
            let ends = choice.finish.is_some() && !choice.written;
            let news = !choice.text.is_empty()
                || !choice.token_ids.is_empty()
                || !choice.logprobs.is_empty();
            if !news && !ends {
                continue;
            }
            let delta = choice.delta(number, self.with_ids, self.with_logprobs);
            writer.delta(events, &delta, self.usage);
            choice.written |= ends;
            choice.text.clear();
            choice.token_ids.clear();
            choice.logprobs.clear();
        }
    }

    /// All choices, whole.
    pub(crate) fn deltas(&self) -> Vec<Delta<'_>> {
        let choices = (0..).zip(&self.choices);
        choices.map(|(n, choice)| choice.delta(n, self.with_ids, self.with_logprobs)).collect()
    }
}

impl Choice {
    /// Takes the next token; true when a stop string is complete.
    fn push(&mut self, id: u32) -> bool {
        let Self { detokenizer, stop, text, .. } = self;
        match stop {
            None => {
                detokenizer.push(&[id], text);
                false
            }
            Some(stop) => {
                let mut piece = String::new();
                detokenizer.push(&[id], &mut piece);
                stop.push(&piece, text)
            }
        }
    }

    /// Ends the choice with what was held back.
    fn end(&mut self, reason: FinishReason) {
        let Self { detokenizer, stop, text, .. } = self;
        let mut finish = reason;
        match stop {
            None => detokenizer.finish(text),
            Some(stop) => {
                let mut piece = String::new();
                detokenizer.finish(&mut piece);
                if stop.push(&piece, text) {
                    finish = FinishReason::Stop;
                } else {
                    stop.finish(text);
                }
            }
        }
        self.finish = Some(finish);
    }

    /// Keeps a token's logprobs, with its place in the text.
    fn note(&mut self, model: &Model, logprobs: &TokenLogprobs, known: bool) {
        let text = |token: u32, logprob: f32| {
            let bytes = model.token_bytes(token).into_owned();
            TokenText { token: String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob }
        };
        let chosen = text(logprobs.token_id, logprobs.logprob);
        let text_offset = self.text_offset;
        self.text_offset += chosen.token.chars().count() as u32;
        let top = logprobs.top.iter().map(|top| text(top.token_id, top.logprob)).collect();
        self.logprobs.push(TokenLogprob { chosen, known, top, text_offset });
    }

    fn delta(&self, number: u32, with_ids: bool, with_logprobs: bool) -> Delta<'_> {
        Delta {
            choice: number,
            text: &self.text,
            logprobs: with_logprobs.then_some(&self.logprobs),
            token_ids: with_ids.then_some(&self.token_ids),
            finish: self.finish,
            ..Delta::default()
        }
    }
}

/// A worker's report of the end of a choice.
#[derive(Clone, Copy)]
struct Ending {
    reason: FinishReason,
    /// Its last token is the one that ended it.
    by_token: bool,
}

impl Ending {
    fn of(finish: &Finish) -> Self {
        match finish.reason() {
            worker::FinishReason::Stop => {
                Self { reason: FinishReason::Stop, by_token: finish.stop_token_id.is_some() }
            }
            // Failures never get here: the generation continues the choice elsewhere.
            _ => Self { reason: FinishReason::Length, by_token: false },
        }
    }
}
