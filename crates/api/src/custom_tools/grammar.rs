//! Grammars of a custom tool's input, written in EBNF over the JSON string that holds the input.
//!
//! To a model the input is the string of a JSON object, so a grammar of the input becomes one of that
//! string: a character that JSON escapes is its escape, always the same one. Engines read the EBNF.
//!
//! Source: the notation of xgrammar's EBNF, which vLLM, SGLang and TensorRT-LLM take, and the built-in
//! engine as well.

use regex_syntax::hir::{Class, Hir, HirKind};
use std::fmt;

/// Longest grammar that is written, in bytes.
const EBNF_MAX_BYTES: usize = 192 << 10;
/// Largest count of repetitions.
pub(super) const REPEATS_MAX: u32 = 10_000;

/// A part of a grammar.
#[derive(Clone, Debug)]
pub(super) enum Term {
    Choice(Vec<Term>),
    Sequence(Vec<Term>),
    /// A term with the least and the largest number of its repetitions.
    Repeat(Box<Term>, u32, Option<u32>),
    /// Text of a regular expression.
    Text(Hir),
    /// The rule of this number.
    Rule(usize),
}

/// Why a grammar cannot be held, with the place in its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrammarFault {
    line: usize,
    column: usize,
    what: String,
}

impl GrammarFault {
    /// A fault at a byte of a definition.
    pub(super) fn at(definition: &str, byte: usize, what: impl Into<String>) -> Self {
        let before = &definition[..definition.floor_char_boundary(byte)];
        let line_begin = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_begin..].chars().count() + 1,
            what: what.into(),
        }
    }
}

impl fmt::Display for GrammarFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, what } = self;
        write!(f, "line {line}, column {column}: {what}")
    }
}

/// The rules in EBNF, of which the answer begins with `start`; a fault's own words where that cannot be.
pub(super) fn ebnf(rules: &[Term], start: usize) -> Result<String, String> {
    let mut out = format!("root ::= r{start}\n");
    for (number, term) in rules.iter().enumerate() {
        out.push_str(&format!("r{number} ::= "));
        push(&mut out, term)?;
        out.push('\n');
    }
    Ok(out)
}

fn push(out: &mut String, term: &Term) -> Result<(), String> {
    if out.len() > EBNF_MAX_BYTES {
        return Err(format!("the grammar is larger than {EBNF_MAX_BYTES} bytes as EBNF"));
    }
    match term {
        Term::Choice(terms) => list(out, terms, " | ", push),
        Term::Sequence(terms) if terms.is_empty() => {
            out.push_str("\"\"");
            Ok(())
        }
        Term::Sequence(terms) => list(out, terms, " ", push),
        Term::Repeat(term, least, most) => repeat(out, *least, *most, |out| push(out, term)),
        Term::Text(text) => push_text(out, text),
        Term::Rule(number) => {
            out.push_str(&format!("r{number}"));
            Ok(())
        }
    }
}

fn list<T>(
    out: &mut String,
    terms: &[T],
    between: &str,
    push: fn(&mut String, &T) -> Result<(), String>,
) -> Result<(), String> {
    out.push('(');
    for (at, term) in terms.iter().enumerate() {
        if at > 0 {
            out.push_str(between);
        }
        push(out, term)?;
    }
    out.push(')');
    Ok(())
}

fn repeat(
    out: &mut String,
    least: u32,
    most: Option<u32>,
    term: impl FnOnce(&mut String) -> Result<(), String>,
) -> Result<(), String> {
    if least.max(most.unwrap_or(0)) > REPEATS_MAX {
        return Err(format!("a count of repetitions is above {REPEATS_MAX}"));
    }
    out.push('(');
    term(out)?;
    out.push(')');
    match (least, most) {
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (0, Some(1)) => out.push('?'),
        (least, None) => out.push_str(&format!("{{{least},}}")),
        (least, Some(most)) => out.push_str(&format!("{{{least},{most}}}")),
    }
    Ok(())
}

/// Appends a regular expression. Greedy or not, it means the same texts.
fn push_text(out: &mut String, text: &Hir) -> Result<(), String> {
    if out.len() > EBNF_MAX_BYTES {
        return Err(format!("the grammar is larger than {EBNF_MAX_BYTES} bytes as EBNF"));
    }
    match text.kind() {
        HirKind::Empty => out.push_str("\"\""),
        HirKind::Literal(literal) => {
            out.push('"');
            String::from_utf8_lossy(&literal.0).chars().for_each(|c| push_quoted(out, c));
            out.push('"');
        }
        HirKind::Class(class) => push_class(out, class)?,
        HirKind::Look(look) => return Err(format!("the anchor {look:?} is not supported")),
        HirKind::Repetition(it) => {
            return repeat(out, it.min, it.max, |out| push_text(out, &it.sub));
        }
        HirKind::Capture(capture) => return push_text(out, &capture.sub),
        HirKind::Concat(parts) => return list(out, parts, " ", push_text),
        HirKind::Alternation(parts) => return list(out, parts, " | ", push_text),
    }
    Ok(())
}

/// Appends a class of characters: those that JSON does not escape, and the escapes of the others.
fn push_class(out: &mut String, class: &Class) -> Result<(), String> {
    let Class::Unicode(class) = class else {
        return Err("a class of bytes is not supported".into());
    };
    let mut plain = String::new();
    let mut escaped = Vec::new();
    for range in class.ranges() {
        let mut next = range.start() as u32;
        // Characters that JSON escapes are few and have low codes.
        for special in (0..0x20).chain(['"' as u32, '\\' as u32]) {
            if special < next || special > range.end() as u32 {
                continue;
            }
            push_range(&mut plain, next, special);
            escaped.extend(char::from_u32(special));
            next = special + 1;
        }
        push_range(&mut plain, next, range.end() as u32 + 1);
    }
    let mut parts = Vec::new();
    if !plain.is_empty() {
        parts.push(format!("[{plain}]"));
    }
    for c in escaped {
        let mut part = String::from("\"");
        push_quoted(&mut part, c);
        part.push('"');
        parts.push(part);
    }
    match parts.is_empty() {
        true => return Err("a class has no character".into()),
        false => out.push_str(&format!("({})", parts.join(" | "))),
    }
    Ok(())
}

/// Appends the characters from `first` up to `end`, which is not among them, to a class.
fn push_range(class: &mut String, first: u32, end: u32) {
    let last = end.saturating_sub(1);
    if first >= end {
        return;
    }
    push_code(class, first);
    if last > first {
        class.push('-');
        push_code(class, last);
    }
}

fn push_code(out: &mut String, code: u32) {
    match code {
        0x30..=0x39 | 0x41..=0x5a | 0x61..=0x7a => out.extend(char::from_u32(code)),
        0..=0x7f => out.push_str(&format!("\\x{code:02x}")),
        0x80..=0xffff => out.push_str(&format!("\\u{code:04x}")),
        _ => out.push_str(&format!("\\U{code:08x}")),
    }
}

/// Appends a character of the input as JSON has it, within a text of EBNF.
fn push_quoted(out: &mut String, c: char) {
    let json = serde_json::to_string(&c).expect("a character can be written");
    for c in json[1..json.len() - 1].chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            c => push_code(out, c as u32),
        }
    }
}
