//! The markup of a model's answers: which families read it, and which special tokens they need.

use super::detokenizer::Detokenizer;
use super::tokenizer::Tokenizer;
use stator_markup::ThoughtRoom;
use stator_markup::families::{
    MessageFrame, ModelTraits, ReasoningFamily, ToolFamily, marker_suffix, reasoning_of, tools_of,
};
use stator_protos::worker::ThoughtLimit;
use std::sync::Arc;

/// Tokens at the end of a prompt that say whether thoughts have begun there.
const PROMPT_END_TOKENS: usize = 32;

/// Longest message whose beginning is looked for at the end of a prompt, in tokens; a prompt that
/// begins none is not read as a whole.
const MESSAGE_TOKENS_MAX: usize = 8192;

/// A family of markup, as an operator chose it.
#[derive(Debug, Default)]
pub enum FamilyChoice<F: 'static> {
    /// The family that the model's files give away, if any.
    #[default]
    Auto,
    /// No family: markup is text.
    Off,
    /// This family.
    Family(&'static F),
}

/// The families that an operator chose.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkupChoice {
    /// The family of calls of tools.
    pub tools: FamilyChoice<ToolFamily>,
    /// The family of thoughts.
    pub reasoning: FamilyChoice<ReasoningFamily>,
}

/// The families that read a model's answers.
#[derive(Clone, Debug, Default)]
pub struct ModelMarkup {
    tools: Option<&'static ToolFamily>,
    reasoning: Option<&'static ReasoningFamily>,
    /// Special tokens that mean nothing to readers of thoughts, ascending.
    dropped_by_reasoning: Arc<[u32]>,
    /// Special tokens that mean nothing to readers of thoughts and calls, ascending.
    dropped_by_tools: Arc<[u32]>,
}

impl<F> Clone for FamilyChoice<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for FamilyChoice<F> {}

impl<F> FamilyChoice<F> {
    /// The family chosen, where `found` is what the model's files give away.
    fn resolve(self, found: Option<&'static F>) -> Option<&'static F> {
        match self {
            Self::Auto => found,
            Self::Off => None,
            Self::Family(family) => Some(family),
        }
    }
}

impl ModelMarkup {
    pub(crate) fn new(
        traits: ModelTraits<'_>,
        choice: MarkupChoice,
        tokenizer: &Tokenizer,
    ) -> Self {
        let added = tokenizer.added_tokens();
        let suffix = marker_suffix(added.iter().map(String::as_str));
        let tools = choice.tools.resolve(tools_of(traits));
        let tools = tools.map(|family| family.with_suffix(suffix));
        let reasoning = choice.reasoning.resolve(reasoning_of(traits));
        let reasoning = reasoning.map(|family| family.with_suffix(suffix));
        let of_reasoning = reasoning.map(ReasoningFamily::markers).unwrap_or_default();
        let of_tools = tools.map(ToolFamily::markers).unwrap_or_default();
        let special = tokenizer.special_tokens();
        let dropped = |markers: &[&str]| -> Arc<[u32]> {
            let unused = |(id, text): &(u32, String)| {
                let used = markers.iter().any(|marker| marker.contains(text.as_str()));
                (!used || text.is_empty()).then_some(*id)
            };
            special.iter().filter_map(unused).collect()
        };
        Self {
            tools,
            reasoning,
            dropped_by_tools: dropped(&[&of_reasoning[..], &of_tools].concat()),
            // Harmony's calls and thoughts are one markup.
            dropped_by_reasoning: match tools.filter(|family| family.holds_reasoning()) {
                Some(_) => dropped(&[&of_reasoning[..], &of_tools].concat()),
                None => dropped(&of_reasoning),
            },
        }
    }

    /// The family of calls of tools.
    pub fn tools(&self) -> Option<&'static ToolFamily> {
        self.tools
    }

    /// The family of thoughts.
    pub fn reasoning(&self) -> Option<&'static ReasoningFamily> {
        self.reasoning
    }

    /// Whether answers hold markup, be there tools or not.
    pub fn is_needed(&self) -> bool {
        self.reasoning.is_some() || self.tools.is_some_and(|family| family.holds_reasoning())
    }

    /// A detokenizer that keeps the markers of the families in the text: of thoughts, and with
    /// `tools` of calls, too. Other special tokens are left out if `skip_special_tokens`.
    pub(crate) fn detokenizer(
        &self,
        tokenizer: &Tokenizer,
        tools: bool,
        skip_special_tokens: bool,
    ) -> Detokenizer {
        let plain = Detokenizer::new(tokenizer.decoder(), false);
        match skip_special_tokens {
            true if tools => plain.without(self.dropped_by_tools.clone()),
            true => plain.without(self.dropped_by_reasoning.clone()),
            false => plain,
        }
    }

    /// The markers of thoughts, for a bound of them; with `tools` the markers of calls end thoughts of
    /// models that forget to.
    pub(crate) fn thought_limit(&self, tokenizer: &Tokenizer, tools: bool) -> Option<ThoughtLimit> {
        let family = self.reasoning?;
        if let Some(MessageFrame { opener, closer, next, answer }) = family.messages {
            let end = format!("{closer}{next}{answer}");
            return Some(ThoughtLimit {
                openers: vec![opener.to_owned()],
                closers: vec![closer.to_owned()],
                end_tokens: tokenizer.encode(&end, false).ok()?,
                ..ThoughtLimit::default()
            });
        }
        let end_tokens = tokenizer.encode(family.closers.first()?, false).ok()?;
        let calls = self.tools.filter(|_| tools && family.ends_at_calls);
        let calls = calls.map_or(&[][..], |calls| calls.openers);
        let owned = |markers: &[&str]| markers.iter().map(|marker| (*marker).to_owned()).collect();
        Some(ThoughtLimit {
            openers: owned(family.openers),
            closers: owned(&[family.closers, calls].concat()),
            end_tokens,
            ..ThoughtLimit::default()
        })
    }

    /// Whether an answer to this prompt begins inside thoughts.
    pub(crate) fn begins_inside(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> bool {
        let Some(family) = self.reasoning else { return false };
        family.is_inside(&prompt_end(tokenizer, prompt, PROMPT_END_TOKENS))
    }

    /// The thoughts that may come in an answer to this prompt.
    pub(crate) fn room(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> ThoughtRoom {
        let Some(family) = self.reasoning else { return ThoughtRoom::None };
        family.room(&prompt_end(tokenizer, prompt, PROMPT_END_TOKENS))
    }

    /// The message that the prompt has begun, for families that write messages.
    pub(crate) fn begun_message(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> Option<String> {
        let markup = stator_markup::channels(self.reasoning, self.tools)?;
        let mut tokens = PROMPT_END_TOKENS;
        loop {
            let text = prompt_end(tokenizer, prompt, tokens);
            if let Some(message) = markup.begun(&text) {
                return Some(message.to_owned());
            }
            if tokens >= prompt.len().min(MESSAGE_TOKENS_MAX) {
                return None;
            }
            // A message that goes on may be long, and is rare.
            tokens *= 4;
        }
    }
}

/// Text of the last tokens of a prompt, special ones among them.
fn prompt_end(tokenizer: &Tokenizer, prompt: &[u32], tokens: usize) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.decoder(), false);
    let mut text = String::new();
    detokenizer.push(&prompt[prompt.len().saturating_sub(tokens)..], &mut text);
    detokenizer.finish(&mut text);
    text
}
