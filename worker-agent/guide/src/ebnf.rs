//! Grammars in EBNF (`name ::= …`), translated for the crate that guides answers.
//!
//! A grammar without recursion becomes one regular expression. Any other grammar becomes rules over
//! single characters, so that no lexer divides a text into words in a way that the grammar does not
//! mean. Look-ahead is refused.
//!
//! Source: the notation of xgrammar's EBNF and of llama.cpp's GBNF.

use crate::error::GuideError;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write as _;

/// Longest translation, in bytes: rules that stand in one another grow.
const TRANSLATION_MAX_BYTES: usize = 1 << 18;
/// Deepest nesting of brackets.
const BRACKETS_MAX: usize = 64;
/// Deepest nesting of terms and rules that becomes a regular expression; each takes some stack.
const DEPTH_MAX: usize = 400;
/// Largest count of repetitions.
const REPEATS_MAX: u32 = 10_000;
/// Rule at which an answer begins; a grammar without it begins at its first rule.
const ROOT: &str = "root";

/// A grammar for the engine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// A regular expression for the whole answer.
    Regex(String),
    /// Rules in Lark's notation.
    Lark(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Choice(Vec<Term>),
    Sequence(Vec<Term>),
    /// A term with the least and the largest number of its repetitions.
    Repeat(Box<Term>, u32, Option<u32>),
    Text(String),
    /// A class of characters in a regular expression's notation.
    Class(String),
    /// A rule by its name.
    Rule(String),
}

/// Translates a grammar.
///
/// # Errors
///
/// [`GuideError`] with the line at fault, or the rule that is missing.
pub(crate) fn translate(text: &str) -> Result<Translation, GuideError> {
    let rules = Parser { text, at: 0, depth: 0 }.rules()?;
    let numbers: HashMap<&str, usize> =
        rules.iter().enumerate().map(|(number, (name, _))| (&**name, number)).collect();
    if numbers.len() < rules.len() {
        return Err(GuideError("a rule of the grammar is there twice".into()));
    }
    let grammar = Grammar { rules: &rules, numbers };
    for (_, term) in &rules {
        grammar.check(term)?;
    }
    let start = grammar.numbers.get(ROOT).copied().unwrap_or(0);
    let mut regex = String::new();
    match grammar.regex(&rules[start].1, &mut vec![start], 0, &mut regex) {
        true => Ok(Translation::Regex(regex)),
        false => grammar.lark(start).map(Translation::Lark),
    }
}

struct Grammar<'g> {
    rules: &'g [(String, Term)],
    numbers: HashMap<&'g str, usize>,
}

impl Grammar<'_> {
    fn check(&self, term: &Term) -> Result<(), GuideError> {
        match term {
            Term::Choice(terms) | Term::Sequence(terms) => {
                terms.iter().try_for_each(|term| self.check(term))
            }
            Term::Repeat(term, ..) => self.check(term),
            Term::Rule(name) if !self.numbers.contains_key(&**name) => {
                Err(GuideError(format!("the grammar has no rule {name:?}")))
            }
            Term::Rule(_) | Term::Text(_) | Term::Class(_) => Ok(()),
        }
    }

    /// Appends a term as a regular expression; false if a rule stands within itself, or the expression
    /// grows too long or too deep. `within` are the rules around the term.
    fn regex(&self, term: &Term, within: &mut Vec<usize>, depth: usize, out: &mut String) -> bool {
        if out.len() > TRANSLATION_MAX_BYTES || depth > DEPTH_MAX {
            return false;
        }
        let depth = depth + 1;
        match term {
            Term::Choice(terms) => {
                out.push_str("(?:");
                for (at, term) in terms.iter().enumerate() {
                    if at > 0 {
                        out.push('|');
                    }
                    if !self.regex(term, within, depth, out) {
                        return false;
                    }
                }
                out.push(')');
            }
            Term::Sequence(terms) => {
                return terms.iter().all(|term| self.regex(term, within, depth, out));
            }
            Term::Repeat(term, least, most) => {
                out.push_str("(?:");
                if !self.regex(term, within, depth, out) {
                    return false;
                }
                out.push(')');
                push_count(out, *least, *most);
            }
            Term::Text(text) => text.chars().for_each(|c| push_char(out, c)),
            Term::Class(class) => out.push_str(class),
            Term::Rule(name) => {
                let number = self.numbers[&**name];
                if within.contains(&number) {
                    return false;
                }
                within.push(number);
                out.push_str("(?:");
                let done = self.regex(&self.rules[number].1, within, depth, out);
                out.push(')');
                within.pop();
                return done;
            }
        }
        true
    }

    fn lark(&self, start: usize) -> Result<String, GuideError> {
        let mut out = format!("start: rule_{start}\n");
        for (number, (_, term)) in self.rules.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(out, "rule_{number}: ");
            self.push_lark(term, &mut out)?;
            out.push('\n');
        }
        Ok(out)
    }

    fn push_lark(&self, term: &Term, out: &mut String) -> Result<(), GuideError> {
        bounded(out)?;
        let list = |terms: &[Term], between: &str, out: &mut String| {
            out.push('(');
            for (at, term) in terms.iter().enumerate() {
                if at > 0 {
                    out.push_str(between);
                }
                self.push_lark(term, out)?;
            }
            out.push(')');
            Ok(())
        };
        match term {
            Term::Choice(terms) => list(terms, " | ", out)?,
            Term::Sequence(terms) if terms.is_empty() => out.push_str("\"\""),
            Term::Sequence(terms) => list(terms, " ", out)?,
            Term::Repeat(term, least, most) => {
                out.push('(');
                self.push_lark(term, out)?;
                out.push(')');
                push_count(out, *least, *most);
            }
            Term::Text(text) if text.is_empty() => out.push_str("\"\""),
            Term::Text(text) => {
                let letters = text.chars().map(|c| Value::from(c.to_string()).to_string());
                out.push_str(&letters.collect::<Vec<_>>().join(" "));
            }
            Term::Class(class) => {
                let _ = write!(out, "/{class}/");
            }
            Term::Rule(name) => {
                let _ = write!(out, "rule_{}", self.numbers[&**name]);
            }
        }
        Ok(())
    }
}

fn bounded(out: &str) -> Result<(), GuideError> {
    match out.len() > TRANSLATION_MAX_BYTES {
        true => Err(GuideError("the grammar is too large once its rules are put in".into())),
        false => Ok(()),
    }
}

fn push_count(out: &mut String, least: u32, most: Option<u32>) {
    match (least, most) {
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (0, Some(1)) => out.push('?'),
        // Writing to a string cannot fail.
        (least, None) => drop(write!(out, "{{{least},}}")),
        (least, Some(most)) => drop(write!(out, "{{{least},{most}}}")),
    }
}

/// Appends a character that stands for itself in a regular expression.
fn push_char(out: &mut String, c: char) {
    match c.is_ascii_alphanumeric() {
        true => out.push(c),
        // Writing to a string cannot fail.
        false => drop(write!(out, "\\x{{{:x}}}", c as u32)),
    }
}

/// The only term of a list, or the list.
fn single(mut terms: Vec<Term>) -> Result<Term, Vec<Term>> {
    match terms.len() {
        1 => Ok(terms.remove(0)),
        _ => Err(terms),
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn rules(mut self) -> Result<Vec<(String, Term)>, GuideError> {
        let mut rules = Vec::new();
        self.skip();
        while !self.rest().is_empty() {
            let Some(name) = self.rule_name() else {
                return Err(self.fault("expected a rule, as in `root ::= …`"));
            };
            rules.push((name, self.choice()?));
        }
        match rules.is_empty() {
            true => Err(self.fault("the grammar has no rule")),
            false => Ok(rules),
        }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn fault(&self, what: &str) -> GuideError {
        let line = self.text[..self.at].matches('\n').count() + 1;
        GuideError(format!("line {line} of the grammar: {what}"))
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            if !self.rest().starts_with('#') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn take(&mut self, sign: &str) -> bool {
        let is_there = self.rest().starts_with(sign);
        if is_there {
            self.at += sign.len();
        }
        is_there
    }

    fn name(&mut self) -> Option<&'t str> {
        let of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let rest = self.rest();
        let end = rest.find(|c| !of_name(c)).unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| &rest[..end])
    }

    /// A name in front of `::=`, if one stands here.
    fn rule_name(&mut self) -> Option<String> {
        let begin = self.at;
        let name = self.name();
        self.skip();
        match name.filter(|_| self.take("::=")) {
            Some(name) => Some(name.to_owned()),
            None => {
                self.at = begin;
                None
            }
        }
    }

    fn choice(&mut self) -> Result<Term, GuideError> {
        let mut terms = vec![self.sequence()?];
        while self.take("|") {
            terms.push(self.sequence()?);
        }
        Ok(single(terms).unwrap_or_else(Term::Choice))
    }

    fn sequence(&mut self) -> Result<Term, GuideError> {
        let mut terms = Vec::new();
        loop {
            self.skip();
            let begin = self.at;
            if self.rule_name().is_some() {
                // The next rule begins here.
                self.at = begin;
                break;
            }
            let Some(term) = self.term()? else { break };
            let term = self.counted(term)?;
            terms.push(term);
        }
        Ok(single(terms).unwrap_or_else(Term::Sequence))
    }

    fn term(&mut self) -> Result<Option<Term>, GuideError> {
        let Some(first) = self.rest().chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '|' | ')' => return Ok(None),
            '(' => {
                self.at += 1;
                self.depth += 1;
                if self.depth > BRACKETS_MAX {
                    return Err(self.fault("brackets are nested too deep"));
                }
                let inner = self.choice()?;
                self.depth -= 1;
                if !self.take(")") {
                    return Err(self.fault("a bracket is not closed"));
                }
                inner
            }
            '"' | '\'' => {
                self.at += 1;
                Term::Text(self.quoted(first)?)
            }
            '[' => {
                self.at += 1;
                Term::Class(self.class()?)
            }
            '.' => {
                self.at += 1;
                Term::Class("[^\\x{a}]".into())
            }
            _ => match self.name() {
                Some(name) => Term::Rule(name.to_owned()),
                None => return Err(self.fault(&format!("{first:?} means nothing here"))),
            },
        }))
    }

    /// The term, repeated as the signs behind it say.
    fn counted(&mut self, term: Term) -> Result<Term, GuideError> {
        let repeat = |term, least, most| Term::Repeat(Box::new(term), least, most);
        if self.take("*") {
            return Ok(repeat(term, 0, None));
        }
        if self.take("+") {
            return Ok(repeat(term, 1, None));
        }
        if self.take("?") {
            return Ok(repeat(term, 0, Some(1)));
        }
        if !self.take("{") {
            return Ok(term);
        }
        let Some(end) = self.rest().find('}') else {
            return Err(self.fault("a count is not closed"));
        };
        let count = &self.rest()[..end];
        let number = |text: &str| text.trim().parse().ok().filter(|number| *number <= REPEATS_MAX);
        let counts = match count.split_once(',') {
            None => number(count).map(|count| (count, Some(count))),
            Some((least, most)) if most.trim().is_empty() => {
                number(least).map(|least| (least, None))
            }
            Some((least, most)) => number(least).zip(number(most).map(Some)),
        };
        let sound = counts.filter(|(least, most)| most.is_none_or(|most| *least <= most));
        let Some((least, most)) = sound else {
            return Err(self.fault(&format!("{count:?} is no count up to {REPEATS_MAX}")));
        };
        self.at += end + 1;
        Ok(repeat(term, least, most))
    }

    fn quoted(&mut self, quote: char) -> Result<String, GuideError> {
        let mut text = String::new();
        loop {
            match self.char()? {
                (c, false) if c == quote => return Ok(text),
                ('\n', false) => return Err(self.fault("a text is not closed")),
                (c, _) => text.push(c),
            }
        }
    }

    /// A class of characters behind its bracket.
    fn class(&mut self) -> Result<String, GuideError> {
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let begin = class.len();
        loop {
            let (c, escaped) = self.char()?;
            match (c, escaped) {
                (']', false) if class.len() > begin => {
                    class.push(']');
                    return Ok(class);
                }
                // A range, unless it ends the class.
                ('-', false) if class.len() > begin && !self.rest().starts_with(']') => {
                    class.push('-');
                }
                ('\n', false) => return Err(self.fault("a class is not closed")),
                (c, _) => push_char(&mut class, c),
            }
        }
    }

    /// The next character, and whether it was escaped.
    fn char(&mut self) -> Result<(char, bool), GuideError> {
        let next = |parser: &mut Self| {
            let c = parser.rest().chars().next();
            parser.at += c.map_or(0, char::len_utf8);
            c.ok_or_else(|| parser.fault("the grammar ends in a text"))
        };
        let c = next(self)?;
        if c != '\\' {
            return Ok((c, false));
        }
        let escaped = match next(self)? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'x' => self.code(2)?,
            'u' => self.code(4)?,
            'U' => self.code(8)?,
            c => c,
        };
        Ok((escaped, true))
    }

    /// A character by this number of hexadecimal digits.
    fn code(&mut self, digits: usize) -> Result<char, GuideError> {
        let code = self.rest().get(..digits).and_then(|text| u32::from_str_radix(text, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return Err(self.fault("an escape is no character"));
        };
        self.at += digits;
        Ok(c)
    }
}

#[cfg(test)]
#[path = "ebnf_tests.rs"]
mod tests;
