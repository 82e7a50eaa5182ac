//! Turns the tokens of a request's choices into thoughts, text and calls, and counts them.

use super::choice::Choice;
use super::job::Job;
use stator_api::Delta;
use stator_api::delta::{FinishReason, ToolCallDelta, Usage};
use stator_api::stream::AnswerEvents;
use stator_model::Model;
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

impl Answer {
    /// An answer without a token yet; an echoed prompt is its beginning.
    pub(crate) fn new(job: &Job) -> Self {
        let options = &job.options;
        let model = &job.served.model;
        let mut choices = Vec::with_capacity(job.prompts.len() * options.n as usize);
        for (n, prompt) in job.prompts.iter().enumerate() {
            let echo = job.echo.get(n);
            choices.extend((0..options.n).map(|_| {
                let text = echo.cloned().unwrap_or_default();
                let mut choice = Choice::new(model, options, job.reading.as_ref(), text);
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

    /// Takes note of what is pinned of a choice's prompt: once, whichever choice tells it.
    fn note_pins(&mut self, at: usize, pinned: Option<u32>) {
        let first = at - at % self.choices_per_prompt;
        if let (Some(pinned), Some(choice)) = (pinned, self.choices.get_mut(first))
            && !std::mem::replace(&mut choice.pins_told, true)
        {
            self.usage.pinned_tokens += pinned;
        }
    }

    fn take_one(&mut self, output: Output) {
        let at = output.choice as usize;
        self.note_pins(at, output.pinned_tokens);
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
        let thoughts = choice.reasoning_tokens;
        let mut ends = None;
        for (n, id) in output.token_ids.iter().enumerate() {
            self.usage.completion_tokens += 1;
            if n >= shown {
                choice.tokens += 1;
                continue;
            }
            if self.with_ids {
                choice.token_ids.push(*id);
            }
            let logprobs = output.logprobs.get(n).filter(|_| self.with_logprobs);
            ends = choice.push(&self.model, *id, logprobs);
            if ends.is_some() {
                break;
            }
        }
        self.usage.reasoning_tokens += choice.reasoning_tokens - thoughts;
        if ends.is_some() {
            choice.finish = ends;
        } else if let Some(ending) = ending {
            choice.end(ending.reason);
        }
        self.open -= usize::from(choice.finish.is_some());
    }

    /// Appends what a stream begins with.
    pub(crate) fn begin(&self, writer: &mut AnswerEvents, events: &mut Vec<u8>) {
        // A request has few choices.
        writer.begin(events, self.choices.len() as u32, self.usage);
    }

    /// Hands on a delta for each choice that has something new, with the usage so far; several
    /// where text came behind a call.
    pub(crate) fn write(&mut self, mut each: impl FnMut(&Delta<'_>, Usage)) {
        for (number, choice) in (0..).zip(&mut self.choices) {
            let ends = choice.finish.is_some() && !choice.written;
            if !choice.has_news() && !ends {
                continue;
            }
            let last = choice.segments.all().count() - 1;
            for (at, segment) in choice.segments.all().enumerate() {
                let calls = segment.calls();
                let delta = Delta {
                    choice: number,
                    reasoning: &segment.reasoning,
                    text: &segment.text,
                    tool_calls: &calls,
                    logprobs: (self.with_logprobs && at == 0).then_some(&choice.logprobs),
                    token_ids: (self.with_ids && at == 0).then_some(&choice.token_ids),
                    ..if at == last { choice.ending() } else { Delta::default() }
                };
                each(&delta, self.usage);
            }
            choice.written |= ends;
            choice.clear();
        }
    }

    /// The calls of all choices, whole, for [`Answer::deltas`].
    pub(crate) fn calls(&self) -> Vec<Vec<ToolCallDelta<'_>>> {
        self.choices.iter().map(|choice| choice.segments.whole().calls()).collect()
    }

    /// All choices, whole, with their calls.
    pub(crate) fn deltas<'a>(&'a self, calls: &'a [Vec<ToolCallDelta<'a>>]) -> Vec<Delta<'a>> {
        let choices = (0..).zip(&self.choices).zip(calls);
        let delta = |((number, choice), calls): ((u32, &'a Choice), &'a Vec<_>)| {
            let segment = choice.segments.whole();
            Delta {
                choice: number,
                reasoning: &segment.reasoning,
                text: &segment.text,
                tool_calls: calls,
                logprobs: self.with_logprobs.then_some(&choice.logprobs),
                token_ids: self.with_ids.then_some(&choice.token_ids),
                ..choice.ending()
            }
        };
        choices.map(delta).collect()
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
