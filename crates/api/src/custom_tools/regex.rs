//! A regular expression of a custom tool's whole input.

use super::grammar::{GrammarFault, Term, ebnf};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};

/// The input's grammar in EBNF.
///
/// # Errors
///
/// [`GrammarFault`] for an expression that is none, or that looks around.
pub(super) fn of_regex(definition: &str) -> Result<String, GrammarFault> {
    let fault = |fault: ExpressionFault| GrammarFault::at(definition, fault.at, fault.what);
    let text = parse(definition, "").map(without_anchors).and_then(without_looks).map_err(fault)?;
    ebnf(&[Term::Text(text)], 0).map_err(|what| fault(ExpressionFault { at: 0, what }))
}

/// Why an expression is none.
pub(super) struct ExpressionFault {
    /// The byte at fault.
    pub(super) at: usize,
    pub(super) what: String,
}

/// Parses an expression with flags in Python's letters.
pub(super) fn parse(expression: &str, flags: &str) -> Result<Hir, ExpressionFault> {
    let mut parser = ParserBuilder::new();
    for flag in flags.chars() {
        match flag {
            'i' => parser.case_insensitive(true),
            'm' => parser.multi_line(true),
            's' => parser.dot_matches_new_line(true),
            'x' => parser.ignore_whitespace(true),
            'u' => &mut parser,
            other => {
                let what = format!("the flag {other:?} of an expression is not supported");
                return Err(ExpressionFault { at: 0, what });
            }
        };
    }
    parser.build().parse(expression).map_err(|error| {
        let (what, span) = match &error {
            regex_syntax::Error::Parse(error) => (error.kind().to_string(), Some(error.span())),
            regex_syntax::Error::Translate(error) => (error.kind().to_string(), Some(error.span())),
            error => (error.to_string(), None),
        };
        ExpressionFault { at: span.map_or(0, |span| span.start.offset), what }
    })
}

/// The expression, if it matches texts alone, whatever stands around them.
pub(super) fn without_looks(text: Hir) -> Result<Hir, ExpressionFault> {
    match text.properties().look_set().is_empty() {
        true => Ok(text),
        false => {
            let what = "anchors and word boundaries are not supported".into();
            Err(ExpressionFault { at: 0, what })
        }
    }
}

/// The expression without anchors where the input begins and ends: it is the whole input anyway.
fn without_anchors(text: Hir) -> Hir {
    match text.into_kind() {
        HirKind::Alternation(parts) => {
            Hir::alternation(parts.into_iter().map(without_anchors).collect())
        }
        HirKind::Concat(mut parts) => {
            let is = |part: Option<&Hir>, look| {
                part.is_some_and(|part| *part.kind() == HirKind::Look(look))
            };
            if is(parts.first(), Look::Start) {
                parts.remove(0);
            }
            if is(parts.last(), Look::End) {
                parts.pop();
            }
            Hir::concat(parts)
        }
        HirKind::Look(Look::Start | Look::End) => Hir::empty(),
        kind => from_kind(kind),
    }
}

/// An expression of a kind that was taken out of one.
fn from_kind(kind: HirKind) -> Hir {
    match kind {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Repetition(it) => Hir::repetition(it),
        HirKind::Capture(it) => Hir::capture(it),
        HirKind::Concat(parts) => Hir::concat(parts),
        HirKind::Alternation(parts) => Hir::alternation(parts),
    }
}
