//! From a form to a guide.

use crate::ebnf::{self, Translation};
use crate::error::GuideError;
use crate::guide::Guide;
use crate::json_form::kept;
use crate::structural_tag::lark_of_tag;
use crate::thoughts::ThoughtGuard;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use stator_protos::worker::ThoughtLimit;
use stator_protos::worker::guide::Form;
use std::sync::Arc;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// Longest reason, in bytes.
const MESSAGE_MAX_BYTES: usize = 400;

/// Compiles forms for the vocabulary of one model. Cloning shares it.
#[derive(Clone)]
pub struct GuideFactory {
    parsers: Arc<ParserFactory>,
    /// Special tokens and their texts.
    special: Arc<[(u32, String)]>,
}

impl std::fmt::Debug for GuideFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuideFactory").field("special", &self.special.len()).finish_non_exhaustive()
    }
}

impl GuideFactory {
    /// A factory for a vocabulary: the bytes of each token by its id, the special tokens with their
    /// texts, and the tokens that end an answer.
    ///
    /// # Errors
    ///
    /// A vocabulary without a token, or without one that ends answers.
    pub fn new(
        mut tokens: Vec<Vec<u8>>,
        special: Vec<(u32, String)>,
        eos: &[u32],
    ) -> Result<Self, GuideError> {
        let eos: Vec<u32> =
            eos.iter().copied().filter(|id| (*id as usize) < tokens.len()).collect();
        let Some(first) = eos.first() else {
            return Err(GuideError("the model has no token that ends an answer".into()));
        };
        // Special tokens are no text: their bytes begin with one that no text has.
        for (id, text) in &special {
            if let Some(bytes) = tokens.get_mut(*id as usize) {
                *bytes = [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
            }
        }
        let info = TokRxInfo::new(tokens.len() as u32, *first);
        let trie = TokTrie::from(&info, &tokens).with_eos_tokens(&eos);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut parsers = ParserFactory::new_simple(&environment).map_err(fault)?;
        parsers.quiet();
        parsers.limits_mut().verbose_errors = false;
        Ok(Self { parsers: Arc::new(parsers), special: special.into() })
    }

    /// A guide for answers of this form.
    ///
    /// # Errors
    ///
    /// [`GuideError`] for a form that is no sound one, that uses what is not supported, or that would
    /// take too much work.
    pub fn compile(&self, form: &Form) -> Result<Guide, GuideError> {
        let grammar = match form {
            Form::JsonSchema(text) => {
                let schema = serde_json::from_str(text).map_err(|error| {
                    GuideError(format!("the schema is not valid JSON: {error}"))
                })?;
                TopLevelGrammar::from_json_schema(kept(schema))
            }
            Form::JsonObject(_) => {
                TopLevelGrammar::from_json_schema(kept(json!({"type": "object"})))
            }
            Form::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Form::Choices(choices) => {
                let quoted =
                    choices.texts.iter().map(|text| Value::from(text.as_str()).to_string());
                let alternatives: Vec<_> = quoted.collect();
                TopLevelGrammar::from_lark(format!("start: {}", alternatives.join(" | ")))
            }
            Form::Grammar(text) if text.contains("::=") => match ebnf::translate(text)? {
                Translation::Regex(regex) => TopLevelGrammar::from_regex(&regex),
                Translation::Lark(rules) => TopLevelGrammar::from_lark(rules),
            },
            Form::Grammar(text) => TopLevelGrammar::from_lark(text.clone()),
            Form::StructuralTag(text) => {
                TopLevelGrammar::from_lark(lark_of_tag(text, &self.special)?)
            }
        };
        let parser = self.parsers.create_parser(grammar).map_err(fault)?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            None => Ok(Guide::new(matcher)),
            Some(error) => Err(fault(error)),
        }
    }

    /// A guard of the thoughts of one answer.
    pub fn guard(&self, limit: &ThoughtLimit) -> ThoughtGuard {
        ThoughtGuard::new(self.parsers.tok_env().clone(), limit.clone())
    }
}

fn fault(error: impl std::fmt::Display) -> GuideError {
    GuideError(on_one_line(&error.to_string()))
}

/// A message on one line, cut so that it cannot be made arbitrarily long.
fn on_one_line(message: &str) -> String {
    let words: Vec<_> = message.split_whitespace().collect();
    let mut line = words.join(" ");
    line.truncate(line.floor_char_boundary(MESSAGE_MAX_BYTES));
    line
}
