//! From SGLang's answers to deltas: events of a stream and whole answers are alike.

use crate::answer::Decoder;
use crate::http::{fault_of_request, fault_of_status};
use crate::logprobs::{Candidate, ranked};
use crate::{Ask, Delta, Fault, Finish, Hand, TokenLogprobs};
use ::http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

#[derive(Deserialize)]
struct AnswerEvent<'a> {
    output_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    meta_info: Option<Meta<'a>>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow)]
    finish_reason: Option<Reason<'a>>,
    /// Tokens of the whole answer so far, even where an event carries only the new ones.
    completion_tokens: Option<usize>,
    cached_tokens: Option<u32>,
    #[serde(borrow)]
    output_token_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    output_top_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    input_token_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    input_top_logprobs: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Reason<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    /// A stop token or a stop string.
    #[serde(borrow)]
    matched: Option<&'a RawValue>,
    message: Option<String>,
    status_code: Option<u16>,
}

/// `[logprob, token, text]`; the prompt's first token has no logprob.
type Scored = (Option<f32>, u32, IgnoredAny);

/// Reads the answer to one request.
pub(crate) struct Decode {
    prompt: Arc<[u32]>,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    /// Number of tokens read so far.
    seen: usize,
    last: Option<u32>,
    told_cached: bool,
    finish: Option<Finish>,
}

impl Decode {
    /// A decoder for the answer to `ask`.
    pub(crate) fn new(ask: &Ask) -> Self {
        let prefill = matches!(ask.hand, Hand::Prefill(_));
        Self {
            prompt: ask.tokens.clone(),
            logprobs: ask.sampling.logprobs.filter(|_| !prefill),
            prompt_logprobs: ask.sampling.prompt_logprobs.filter(|_| !prefill),
            seen: 0,
            last: None,
            told_cached: false,
            finish: None,
        }
    }

    /// Decodes an answer that came as a whole.
    pub(super) fn whole(mut self, body: &[u8]) -> Result<Delta, Fault> {
        let mut delta = Delta::default();
        self.event(body, &mut delta)?;
        self.end(&mut delta)?;
        Ok(delta)
    }

    /// The new tokens among `ids`. Depending on the engine's configuration an event has all tokens
    /// so far or only the new ones; `total` counts all in both cases.
    fn new_tokens<'t>(&self, ids: &'t [u32], total: usize) -> Result<&'t [u32], Fault> {
        let new = total.checked_sub(self.seen);
        match new {
            Some(new) if ids.len() == new || ids.len() == total => Ok(&ids[ids.len() - new..]),
            _ => {
                let (ids, seen) = (ids.len(), self.seen);
                let message = format!("{ids} tokens came, of {total} in all, {seen} were known");
                Err(Fault::Failed(message))
            }
        }
    }

    fn tokens(&mut self, ids: &[u32], meta: &Meta<'_>, delta: &mut Delta) -> Result<(), Fault> {
        let total = meta
            .completion_tokens
            .ok_or_else(|| Fault::Failed("meta_info.completion_tokens is missing".into()))?;
        let new = self.new_tokens(ids, total)?;
        if let Some(count) = self.logprobs.filter(|_| !new.is_empty()) {
            let tokens = meta.output_token_logprobs.map_or("[]", RawValue::get);
            let tops = meta.output_top_logprobs.map_or("[]", RawValue::get);
            delta.logprobs.extend(scored(tokens, tops, new, count)?);
        }
        delta.tokens.extend_from_slice(new);
        self.seen = total;
        self.last = new.last().copied().or(self.last);
        Ok(())
    }

    fn finish(&self, reason: Reason<'_>) -> Result<Finish, Fault> {
        match &*reason.kind {
            "length" => Ok(Finish::Length),
            "stop" => {
                let matched = reason.matched.and_then(|matched| matched.get().parse().ok());
                Ok(Finish::Stop(matched.filter(|matched| self.last == Some(*matched))))
            }
            "abort" => {
                let message = reason.message.unwrap_or_else(|| "no reason given".into());
                Err(match reason.status_code {
                    Some(status) => fault_of_status(status, message),
                    None => Fault::Aborted(message),
                })
            }
            kind => Err(Fault::Failed(format!("finish_reason {kind:?} is none that is known"))),
        }
    }
}

impl Decoder for Decode {
    fn event(&mut self, event: &[u8], delta: &mut Delta) -> Result<(), Fault> {
        let said: AnswerEvent<'_> = serde_json::from_slice(event)
            .map_err(|error| Fault::Failed(format!("the answer is not as known: {error}")))?;
        let Some(meta) = said.meta_info else {
            return Err(error(event));
        };
        if let Some(count) = self.prompt_logprobs.take() {
            let tokens = meta.input_token_logprobs.map_or("[]", RawValue::get);
            let tops = meta.input_top_logprobs.map_or("[]", RawValue::get);
            delta.prompt_logprobs = scored(tokens, tops, &self.prompt, count)?;
            delta.prompt_logprobs.drain(..1.min(self.prompt.len()));
        }
        if let Some(ids) = &said.output_ids {
            self.tokens(ids, &meta, delta)?;
        }
        if let Some(cached) = meta.cached_tokens.filter(|_| !self.told_cached) {
            delta.cached_tokens = Some(cached);
            self.told_cached = true;
        }
        if let Some(reason) = meta.finish_reason {
            self.finish = Some(self.finish(reason)?);
        }
        Ok(())
    }

    fn end(&mut self, delta: &mut Delta) -> Result<(), Fault> {
        let finish =
            self.finish.ok_or_else(|| Fault::Failed("the answer ends without a finish".into()))?;
        delta.finish = Some(finish);
        Ok(())
    }
}

/// The last logprobs of a list, one for each of `tokens`.
fn scored(said: &str, tops: &str, tokens: &[u32], count: u32) -> Result<Vec<TokenLogprobs>, Fault> {
    let unknown =
        |error: serde_json::Error| Fault::Failed(format!("logprobs are not as known: {error}"));
    let said: Vec<Scored> = serde_json::from_str(said).map_err(unknown)?;
    let tops: Vec<Option<Vec<Scored>>> = serde_json::from_str(tops).map_err(unknown)?;
    let Some(first) = said.len().checked_sub(tokens.len()) else {
        let (got, wanted) = (said.len(), tokens.len());
        return Err(Fault::Failed(format!("logprobs: {got} entries for {wanted} tokens")));
    };
    // Without alternatives there is no list of them.
    let first_top = tops.len().saturating_sub(tokens.len());
    let mut tops = tops.into_iter().skip(first_top);
    let entries = said[first..].iter().zip(tokens).map(|((logprob, token, _), wanted)| {
        let top = tops.next().flatten().unwrap_or_default();
        if token != wanted {
            return Err(Fault::Failed(format!("logprobs: of token {token} for token {wanted}")));
        }
        let candidates = top.iter().filter_map(|(logprob, token, _)| {
            Some(Candidate { token: *token, logprob: (*logprob)?, rank: None })
        });
        let logprob = logprob.unwrap_or(f32::NEG_INFINITY);
        Ok(ranked((*token, logprob), candidates.collect(), count))
    });
    entries.collect()
}

/// The fault in an answer with status 200, whose body may carry the real status.
fn error(event: &[u8]) -> Fault {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Outer {
        code: Option<u16>,
        error: Inner,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        code: Option<u16>,
    }
    let outer: Outer = serde_json::from_slice(event).unwrap_or_default();
    let status = outer.code.or(outer.error.code).and_then(|code| StatusCode::from_u16(code).ok());
    fault_of_request(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), event)
}

#[cfg(test)]
mod tests;
