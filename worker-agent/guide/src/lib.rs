//! Answers of a given form: which tokens may come next.
//!
//! A [`GuideFactory`] knows a model's vocabulary and compiles forms (JSON Schema, regular expressions,
//! Lark grammars, choices, structural tags) into [`Guide`]s. A guide follows one answer and says in a
//! [`TokenMask`] which tokens go on with it. Pure: no I/O, no clock; work is bounded by limits, so that
//! a hostile grammar is refused or ends its own answer.
//!
//! The grammars' engine is the crate `llguidance`, which nothing outside of this crate knows.
//!
//! Start reading at [`GuideFactory`].

mod error;
mod ebnf;
mod factory;
mod guide;
mod json_form;
mod structural_tag;
#[cfg(test)]
mod tests;

pub use error::GuideError;
pub use factory::GuideFactory;
pub use guide::{Guide, TokenMask};
