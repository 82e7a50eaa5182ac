//! Answers of a given form: which tokens may come next.
//!
//! A [`GuideFactory`] knows a model's vocabulary and compiles forms (JSON Schema, regular expressions,
//! grammars in Lark and EBNF, choices, structural tags) into [`Guide`]s. A guide follows one answer and
//! says in a [`TokenMask`] which tokens go on with it. A [`ThoughtGuard`] ends thoughts that are too
//! long. Pure: no I/O, no clock; work is bounded by limits, so that a hostile grammar is refused or ends
//! its own answer.
//!
//! The grammars' engine is the crate `llguidance`, which nothing outside of this crate knows.
//!
//! Start reading at [`GuideFactory`].

mod ebnf;
mod error;
mod factory;
mod guide;
mod json_form;
mod rules;
mod structural_tag;
#[cfg(test)]
mod tests;
mod thoughts;

pub use error::GuideError;
pub use factory::GuideFactory;
pub use guide::{Guide, TokenMask};
pub use rules::AnswerRules;
pub use thoughts::ThoughtGuard;
