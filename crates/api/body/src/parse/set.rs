//! The parsers of a configuration, and which of them reads a path.

use super::http::{Anthropic, OpenAi, Passthrough, SglangHttp, VllmHttp};
use super::rpc::{VertexAi, VllmGrpc};
use super::{ParseError, ParseOutcome, Parser};
use crate::api::Api;

/// Every parser there is.
const PARSERS: [&dyn Parser; 7] =
    [&OpenAi, &Anthropic, &VllmHttp, &SglangHttp, &VllmGrpc, &VertexAi, &Passthrough];
/// The parsers where a configuration names none.
const DEFAULT: [&dyn Parser; 4] = [&OpenAi, &Anthropic, &VllmHttp, &Passthrough];
/// Path assumed for a request without one.
const DEFAULT_PATH: &str = "/v1/completions";

/// A configuration names a parser that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown parser {0:?}")]
pub struct UnknownParser(pub String);

/// The parser of this name in configuration.
///
/// # Errors
///
/// [`UnknownParser`] where there is none.
pub fn parser(name: &str) -> Result<&'static dyn Parser, UnknownParser> {
    let found = PARSERS.into_iter().find(|parser| parser.name() == name);
    found.ok_or_else(|| UnknownParser(name.to_owned()))
}

/// The parsers that a pool's requests may need, in the order of the configuration.
#[derive(Clone)]
pub struct ParserSet {
    parsers: Vec<&'static dyn Parser>,
}

impl Default for ParserSet {
    /// OpenAI's, Anthropic's and vLLM's APIs; what comes on another path goes unread.
    fn default() -> Self {
        Self::new(DEFAULT.to_vec())
    }
}

impl ParserSet {
    /// A set of these; without any, the default one.
    pub fn new(parsers: Vec<&'static dyn Parser>) -> Self {
        if parsers.is_empty() { Self::default() } else { Self { parsers } }
    }

    /// The parser that reads what comes on `path`: the one with the longest ending of it, the
    /// first among equals; else the one that takes everything; else the first.
    pub fn select(&self, path: &str) -> &'static dyn Parser {
        let path = clean(path);
        let mut best: Option<(usize, &'static dyn Parser)> = None;
        for &parser in &self.parsers {
            if let Some(known) = Api::by_ending(parser.families(), path)
                && best.is_none_or(|(longest, _)| known.ending.len() > longest)
            {
                best = Some((known.ending.len(), parser));
            }
        }
        let rest = || self.parsers.iter().copied().find(|parser| parser.families().is_empty());
        best.map(|(_, parser)| parser).or_else(rest).unwrap_or(self.parsers[0])
    }

    /// Reads a body by the parser of its path.
    ///
    /// # Errors
    ///
    /// Those of [`Parser::parse`].
    pub fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError> {
        self.select(path).parse(clean(path), body)
    }
}

/// The path without its query and the slashes at its end.
fn clean(path: &str) -> &str {
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    if path.is_empty() { DEFAULT_PATH } else { path }
}
