//! From vLLM's answers to deltas: the same fields in chunks and in whole answers.

use super::handover;
use super::usual::Usual;
use crate::answer::Decoder;
use crate::http::fault_of_request;
use crate::json::{Entries, FirstElement};
use crate::logprobs::{Candidate, ranked};
use crate::{Ask, Delta, Fault, Finish, Hand, TokenLogprobs};
use ::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

/// A chunk of a stream, or a whole answer.
#[derive(Deserialize)]
struct AnswerEvent<'a> {
    #[serde(borrow, default)]
    choices: FirstElement<Choice<'a>>,
    usage: Option<Usage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    kv_transfer_params: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_logprobs: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    token_ids: Option<&'a RawValue>,
    finish_reason: Option<Reason>,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
    /// Place of the prompt's logprobs in completions.
    #[serde(borrow)]
    prompt_logprobs: Option<&'a RawValue>,
}

impl AnswerEvent<'_> {
    /// The array of token ids, if the event carries nothing else that matters without logprobs.
    fn only_ids(&self) -> Option<&str> {
        let choice =
            self.choices.0.as_ref().filter(|choice| {
                choice.finish_reason.is_none() && choice.prompt_logprobs.is_none()
            })?;
        let nothing_else = self.usage.is_none()
            && self.kv_transfer_params.is_none()
            && self.prompt_logprobs.is_none();
        choice.token_ids.filter(|_| nothing_else).map(RawValue::get)
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reason {
    Stop,
    Length,
    Abort,
    Error,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Deserialize)]
struct PromptTokensDetails {
    cached_tokens: Option<u32>,
}

/// Reads the answer to one request.
pub(crate) struct Decode {
    prompt: Arc<[u32]>,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    /// Whether the answer carries the hand-over for decode.
    pub(super) hands_over: bool,
    last: Option<u32>,
    reason: Option<Reason>,
    usual: Usual,
}

impl Decode {
    /// A decoder for the answer to `ask`.
    pub(crate) fn new(ask: &Ask) -> Self {
        let prefill = matches!(ask.hand, Hand::Prefill(_));
        Self {
            prompt: ask.tokens.clone(),
            logprobs: ask.sampling.logprobs,
            prompt_logprobs: ask.sampling.prompt_logprobs.filter(|_| !prefill),
            hands_over: matches!(ask.hand, Hand::Prefill(None)),
            last: None,
            reason: None,
            usual: Usual::default(),
        }
    }

    /// Decodes an answer that came as a whole.
    pub(super) fn whole(mut self, body: &[u8]) -> Result<Delta, Fault> {
        let mut delta = Delta::default();
        self.event(body, &mut delta)?;
        self.end(&mut delta)?;
        if !self.hands_over {
            return Ok(delta);
        }
        match &delta.handover {
            // Where the first token ends the answer, there is nothing to hand over.
            None if delta.finish == Some(Finish::Length) => {
                let why = "without kv_transfer_params: it has no connector, or ended early";
                return Err(Fault::Failed(format!("the prefill was answered {why}")));
            }
            Some(told) if !handover::is_of_one_group(told) => {
                delta.tokens.clear();
                delta.logprobs.clear();
            }
            None | Some(_) => {}
        }
        Ok(delta)
    }

    fn choice(&mut self, choice: Choice<'_>, delta: &mut Delta) -> Result<(), Fault> {
        let tokens: Vec<u32> = match choice.token_ids {
            Some(ids) => serde_json::from_str(ids.get()).map_err(unknown)?,
            None if choice.finish_reason.is_some() => Vec::new(),
            None => return Err(Fault::Failed("the engine sends no token ids".into())),
        };
        if let Some(count) = self.logprobs.filter(|_| !tokens.is_empty()) {
            let said = choice.logprobs.map_or("{}", RawValue::get);
            let logprobs = logprobs(said, &tokens, count)?;
            delta.logprobs.extend(logprobs);
        }
        self.last = tokens.last().copied().or(self.last);
        self.reason = choice.finish_reason.or(self.reason);
        if delta.tokens.is_empty() {
            delta.tokens = tokens;
        } else {
            delta.tokens.extend_from_slice(&tokens);
        }
        Ok(())
    }
}

impl Decoder for Decode {
    fn event(&mut self, event: &[u8], delta: &mut Delta) -> Result<(), Fault> {
        // Nearly every event differs from the last in its ids alone, and needs no JSON parser.
        if self.usual.read(event, &mut delta.tokens) {
            self.last = delta.tokens.last().copied();
            return Ok(());
        }
        let said: AnswerEvent<'_> = serde_json::from_slice(event).map_err(unknown)?;
        if said.error.is_some() {
            return Err(error(event));
        }
        if let Some(ids) = said.only_ids().filter(|_| self.logprobs.is_none()) {
            self.usual.learn(event, ids);
        }
        if let Some(count) = self.prompt_logprobs {
            let of_choice = said.choices.0.as_ref().and_then(|choice| choice.prompt_logprobs);
            if let Some(logprobs) = said.prompt_logprobs.or(of_choice) {
                delta.prompt_logprobs = prompt_logprobs(logprobs.get(), &self.prompt, count)?;
            }
        }
        if let Some(choice) = said.choices.0 {
            self.choice(choice, delta)?;
        }
        let details = said.usage.and_then(|usage| usage.prompt_tokens_details);
        if let Some(cached) = details.and_then(|details| details.cached_tokens) {
            delta.cached_tokens = Some(cached);
        }
        if let Some(told) = said.kv_transfer_params.filter(|_| self.hands_over) {
            delta.handover = Some(told.to_owned());
        }
        Ok(())
    }

    fn end(&mut self, delta: &mut Delta) -> Result<(), Fault> {
        let finish = match self.reason {
            // No stop strings are ever sent, so only a token can have ended it.
            Some(Reason::Stop) => Finish::Stop(self.last),
            Some(Reason::Length) => Finish::Length,
            Some(Reason::Abort) => return Err(Fault::Aborted("finish_reason is abort".into())),
            Some(Reason::Error) => return Err(Fault::Failed("finish_reason is error".into())),
            Some(Reason::Other) => {
                return Err(Fault::Failed("finish_reason is none that is known".into()));
            }
            None => return Err(Fault::Failed("the answer ends without a finish".into())),
        };
        delta.finish = Some(finish);
        Ok(())
    }
}

/// The fault in an answer with status 200, whose body carries the real status.
fn error(event: &[u8]) -> Fault {
    #[derive(Deserialize)]
    struct Outer {
        error: Inner,
    }
    #[derive(Deserialize)]
    struct Inner {
        code: u16,
    }
    let code = serde_json::from_slice(event).map(|outer: Outer| outer.error.code);
    let status = code.ok().and_then(|code| StatusCode::from_u16(code).ok());
    fault_of_request(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), event)
}

fn unknown(error: serde_json::Error) -> Fault {
    Fault::Failed(format!("the answer is not as known: {error}"))
}

/// Logprobs in the three shapes that versions and endpoints have.
#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow, default)]
    content: Option<Vec<Content<'a>>>,
    #[serde(default)]
    token_logprobs: Option<Vec<Option<f32>>>,
    #[serde(borrow, default)]
    top_logprobs: Option<Vec<Option<Entries<'a, f32>>>>,
}

#[derive(Deserialize)]
struct Content<'a> {
    token_id: Option<u32>,
    /// `token_id:17`, from versions without a field for the id.
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
    logprob: f32,
    rank: Option<u32>,
    #[serde(borrow, default)]
    top_logprobs: Vec<Content<'a>>,
}

impl Content<'_> {
    fn candidate(&self) -> Result<Candidate, Fault> {
        let named = || self.token.as_deref().and_then(|token| placeholder(token).ok());
        let token = self.token_id.or_else(named);
        let token = token.ok_or_else(|| Fault::Failed("a logprob without a token id".into()))?;
        Ok(Candidate { token, logprob: self.logprob, rank: self.rank })
    }
}

fn logprobs(said: &str, tokens: &[u32], count: u32) -> Result<Vec<TokenLogprobs>, Fault> {
    let said: Logprobs<'_> = serde_json::from_str(said).map_err(unknown)?;
    let all: Vec<TokenLogprobs> = match said.content {
        Some(content) => content.iter().map(|content| of_content(content, count)).collect(),
        None => of_completion(said, tokens, count),
    }?;
    if all.len() != tokens.len() {
        let (got, wanted) = (all.len(), tokens.len());
        return Err(Fault::Failed(format!("logprobs: {got} entries for {wanted} tokens")));
    }
    Ok(all)
}

fn of_content(content: &Content<'_>, count: u32) -> Result<TokenLogprobs, Fault> {
    let candidates = content.top_logprobs.iter().map(Content::candidate);
    let chosen = content.candidate()?;
    Ok(ranked((chosen.token, chosen.logprob), candidates.collect::<Result<_, _>>()?, count))
}

fn of_completion(
    said: Logprobs<'_>,
    tokens: &[u32],
    count: u32,
) -> Result<Vec<TokenLogprobs>, Fault> {
    let logprobs = said.token_logprobs.unwrap_or_default();
    let mut tops = said.top_logprobs.unwrap_or_default().into_iter();
    let entries = tokens.iter().zip(logprobs).map(|(token, logprob)| {
        let top = tops.next().flatten().map_or_else(Vec::new, |entries| entries.0);
        let candidates = top.iter().map(|(token, logprob)| {
            Ok(Candidate { token: placeholder(token)?, logprob: *logprob, rank: None })
        });
        let candidates = candidates.collect::<Result<_, Fault>>()?;
        // An engine has none for a token that it was made to produce.
        Ok(ranked((*token, logprob.unwrap_or(f32::NEG_INFINITY)), candidates, count))
    });
    entries.collect()
}

/// The id in `token_id:17`.
fn placeholder(token: &str) -> Result<u32, Fault> {
    let id = token.strip_prefix("token_id:").and_then(|id| id.parse().ok());
    id.ok_or_else(|| Fault::Failed(format!("logprobs: {token:?} is no token_id:N")))
}

#[derive(Deserialize)]
struct PromptLogprob {
    logprob: f32,
    rank: Option<u32>,
}

/// Logprobs of the prompt: an object of candidates by id for each token, null for the first.
fn prompt_logprobs(said: &str, prompt: &[u32], count: u32) -> Result<Vec<TokenLogprobs>, Fault> {
    type Positions<'a> = Vec<Option<Entries<'a, PromptLogprob>>>;
    let positions: Positions<'_> = serde_json::from_str(said).map_err(unknown)?;
    if positions.len() != prompt.len() {
        let (got, wanted) = (positions.len(), prompt.len());
        return Err(Fault::Failed(format!("prompt_logprobs: {got} entries for {wanted} tokens")));
    }
    let entries = prompt.iter().zip(positions).skip(1).map(|(token, position)| {
        let entries = position.map_or_else(Vec::new, |entries| entries.0);
        let candidates = entries.iter().map(|(id, said)| {
            let token = id
                .parse()
                .map_err(|_| Fault::Failed(format!("prompt_logprobs: {id:?} is no token id")))?;
            Ok(Candidate { token, logprob: said.logprob, rank: said.rank })
        });
        let candidates: Vec<Candidate> = candidates.collect::<Result<_, Fault>>()?;
        let own = candidates.iter().find(|candidate| candidate.token == *token);
        let own = own.ok_or_else(|| {
            Fault::Failed(format!("prompt_logprobs: none for token {token} of the prompt"))
        })?;
        Ok(ranked((*token, own.logprob), candidates.clone(), count))
    });
    entries.collect()
}

#[cfg(test)]
mod tests;
