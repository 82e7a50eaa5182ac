//! Grammars in Lark's notation.
//!
//! A grammar means texts of characters: no lexer divides a text into words first, so priorities and
//! lazy repetitions say nothing. `%import` has the terminals of Lark's `common`.
//!
//! Source: the reference of Lark's grammars, and the "Custom tools" guide of the OpenAI API, which has
//! no look-around, no templates and no other imports either.

use super::grammar::{GrammarFault, REPEATS_MAX, Term, ebnf};
use super::{common, regex};
use std::collections::HashMap;

/// Deepest nesting of brackets.
const BRACKETS_MAX: usize = 64;
/// Most rules and terminals.
const RULES_MAX: usize = 4096;
/// Rule at which an input begins.
const START: &str = "start";
/// Number of the rule of what is ignored.
const IGNORED: usize = 0;

/// The grammar in EBNF.
///
/// # Errors
///
/// [`GrammarFault`] for a grammar that is none, or that uses what is not supported.
pub(super) fn of_lark(definition: &str) -> Result<String, GrammarFault> {
    let mut reader = Reader::new(definition);
    reader.items()?;
    reader.finish()
}

/// A rule or a terminal.
struct NamedTerm {
    /// None for a name that is only used so far.
    term: Option<Term>,
    /// The first byte that has its name.
    at: usize,
}

pub(super) struct Reader<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    depth: usize,
    /// Whether a rule is being read, behind whose words may stand what is ignored.
    in_rule: bool,
    names: HashMap<String, usize>,
    terms: Vec<NamedTerm>,
    ignored: Vec<Term>,
    /// Whether anything is.
    ignores: bool,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Self {
        // The first rule is what is ignored.
        let skipped = NamedTerm { term: None, at: 0 };
        Self {
            text,
            at: 0,
            depth: 0,
            in_rule: false,
            names: HashMap::new(),
            terms: vec![skipped],
            ignored: Vec::new(),
            ignores: text.contains("%ignore"),
        }
    }

    fn items(&mut self) -> Result<(), GrammarFault> {
        loop {
            self.skip_lines();
            let Some(first) = self.rest().chars().next() else { return Ok(()) };
            match first {
                '%' => self.statement()?,
                _ => self.definition()?,
            }
            self.skip();
            if !self.rest().is_empty() && !self.rest().starts_with(['\n', '\r']) {
                return Err(self.means_nothing());
            }
        }
    }

    /// The grammar of all that was read.
    fn finish(self) -> Result<String, GrammarFault> {
        let fault = |at: usize, what: String| GrammarFault::at(self.text, at, what);
        let Some(start) = self.names.get(START) else {
            return Err(fault(self.text.len(), format!("the grammar has no rule {START:?}")));
        };
        let mut undefined: Vec<_> =
            self.names.iter().filter(|(_, number)| self.terms[**number].term.is_none()).collect();
        undefined.sort_by_key(|(_, number)| self.terms[**number].at);
        if let Some((name, number)) = undefined.first() {
            return Err(fault(self.terms[**number].at, format!("nothing defines {name:.64}")));
        }
        let mut start = *start;
        let nothing = || Term::Sequence(Vec::new());
        let mut terms: Vec<_> =
            self.terms.into_iter().map(|it| it.term.unwrap_or_else(nothing)).collect();
        if !self.ignored.is_empty() {
            terms[IGNORED] = Term::Repeat(Box::new(Term::Choice(self.ignored)), 0, None);
            terms.push(Term::Sequence(vec![Term::Rule(IGNORED), Term::Rule(start)]));
            start = terms.len() - 1;
        }
        ebnf(&terms, start).map_err(|what| GrammarFault::at(self.text, 0, what))
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    pub(super) fn fault(&self, what: impl Into<String>) -> GrammarFault {
        GrammarFault::at(self.text, self.at, what)
    }

    pub(super) fn means_nothing(&self) -> GrammarFault {
        match self.rest().chars().next() {
            Some(c) => self.fault(format!("{c:?} means nothing here")),
            None => self.fault("the grammar ends here"),
        }
    }

    pub(super) fn take(&mut self, sign: &str) -> bool {
        let is_there = self.rest().starts_with(sign);
        if is_there {
            self.at += sign.len();
        }
        is_there
    }

    /// Skips blanks and comments, and within brackets the ends of lines.
    fn skip(&mut self) {
        loop {
            let blank = |c: char| matches!(c, ' ' | '\t') || self.depth > 0 && c.is_whitespace();
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start_matches(blank).len();
            if !self.rest().starts_with("//") && !self.rest().starts_with('#') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn skip_lines(&mut self) {
        loop {
            self.skip();
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            if blank == 0 {
                return;
            }
            self.at += blank;
        }
    }

    fn word(&mut self) -> Option<&'t str> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let is_name = !rest.starts_with(|c: char| c.is_ascii_digit());
        (end > 0 && is_name).then(|| {
            self.at += end;
            &rest[..end]
        })
    }

    fn name(&mut self, what: &str) -> Result<&'t str, GrammarFault> {
        self.skip();
        self.word().ok_or_else(|| self.fault(format!("{what} is expected here")))
    }

    /// The number of a name that is used or defined at `at`.
    fn number(&mut self, name: &str, at: usize) -> Result<usize, GrammarFault> {
        if let Some(number) = self.names.get(name) {
            return Ok(*number);
        }
        if self.terms.len() >= RULES_MAX {
            return Err(self.fault(format!("the grammar has more than {RULES_MAX} names")));
        }
        self.names.insert(name.to_owned(), self.terms.len());
        self.terms.push(NamedTerm { term: None, at });
        Ok(self.terms.len() - 1)
    }

    fn define(&mut self, name: &str, at: usize, term: Term) -> Result<(), GrammarFault> {
        let number = self.number(name, at)?;
        let known = &mut self.terms[number];
        if known.term.is_some() {
            return Err(GrammarFault::at(self.text, at, format!("{name:.64} is there twice")));
        }
        known.term = Some(term);
        Ok(())
    }

    /// `name: …` or `NAME: …`.
    fn definition(&mut self) -> Result<(), GrammarFault> {
        // How a parse tree is shaped says nothing of the text.
        while self.take("?") || self.take("!") {}
        let at = self.at;
        let name = self.name("a rule, as in `start: …`,")?;
        if self.take(".") {
            self.take("-");
            self.digits();
        }
        self.skip();
        if self.rest().starts_with('{') {
            return Err(self.fault("templates are not supported"));
        }
        if self.rest().starts_with('[') {
            return Err(self.fault("attributes of rules are not supported"));
        }
        if !self.take(":") {
            return Err(self.fault("a colon is expected here"));
        }
        self.in_rule = !is_terminal(name);
        // Rules are numbered as they stand.
        self.number(name, at)?;
        let term = self.choice()?;
        self.define(name, at, term)
    }

    fn statement(&mut self) -> Result<(), GrammarFault> {
        let at = self.at;
        self.at += 1;
        match self.word() {
            Some("ignore") => {
                self.in_rule = false;
                let ignored = self.choice()?;
                self.ignored.push(ignored);
                Ok(())
            }
            Some("import") => self.import(),
            _ => {
                let what = "only %import and %ignore are supported";
                Err(GrammarFault::at(self.text, at, what))
            }
        }
    }

    /// `common.NAME`, `common.NAME -> OWN` or `common (NAME, …)`, behind `%import`.
    fn import(&mut self) -> Result<(), GrammarFault> {
        let at = self.at + 1;
        if self.name("a library")? != "common" {
            return Err(GrammarFault::at(self.text, at, "only common can be imported from"));
        }
        if self.take(".") {
            let at = self.at;
            let name = self.name("a terminal")?;
            self.skip();
            let own = if self.take("->") { self.name("a terminal")? } else { name };
            return self.common(name, own, at);
        }
        self.skip();
        if !self.take("(") {
            return Err(self.means_nothing());
        }
        loop {
            self.skip();
            let at = self.at;
            let name = self.name("a terminal")?;
            self.common(name, name, at)?;
            self.skip();
            if self.take(")") {
                return Ok(());
            }
            if !self.take(",") {
                return Err(self.means_nothing());
            }
        }
    }

    fn common(&mut self, name: &str, own: &str, at: usize) -> Result<(), GrammarFault> {
        let text = common::expression(name).and_then(|known| regex::parse(known, "").ok());
        match text {
            Some(text) => self.define(own, at, Term::Text(text)),
            None => Err(GrammarFault::at(self.text, at, format!("common has no {name:.64} here"))),
        }
    }

    fn choice(&mut self) -> Result<Term, GrammarFault> {
        let mut terms = vec![self.sequence()?];
        while self.another() {
            terms.push(self.sequence()?);
        }
        Ok(single(terms).unwrap_or_else(Term::Choice))
    }

    /// Takes the sign of an alternative, which may stand on a later line.
    fn another(&mut self) -> bool {
        let before = self.at;
        self.skip_lines();
        let is_there = self.take("|");
        if !is_there {
            self.at = before;
        }
        is_there
    }

    fn sequence(&mut self) -> Result<Term, GrammarFault> {
        let mut terms = Vec::new();
        loop {
            self.skip();
            let Some(term) = self.atom()? else { break };
            let term = self.counted(term)?;
            terms.push(term);
        }
        if self.take("->") {
            // The name of a branch in a parse tree.
            self.name("a name")?;
            self.skip();
        }
        Ok(single(terms).unwrap_or_else(Term::Sequence))
    }

    fn atom(&mut self) -> Result<Option<Term>, GrammarFault> {
        let Some(first) = self.rest().chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '(' => self.brackets(")")?,
            '[' => Term::Repeat(Box::new(self.brackets("]")?), 0, Some(1)),
            '"' => {
                let term = self.string()?;
                self.followed(term)
            }
            '/' => {
                let term = self.expression()?;
                self.followed(term)
            }
            c if c.is_alphabetic() || c == '_' => {
                let at = self.at;
                let Some(name) = self.word() else { return Err(self.means_nothing()) };
                let term = Term::Rule(self.number(name, at)?);
                match is_terminal(name) {
                    true => self.followed(term),
                    false if !self.in_rule => {
                        let what = format!("a terminal cannot hold the rule {name:.64}");
                        return Err(GrammarFault::at(self.text, at, what));
                    }
                    false => term,
                }
            }
            _ => return Ok(None),
        }))
    }

    /// A word of the text: what is ignored may stand behind it.
    fn followed(&self, term: Term) -> Term {
        match self.in_rule && self.ignores {
            true => Term::Sequence(vec![term, Term::Rule(IGNORED)]),
            false => term,
        }
    }

    fn brackets(&mut self, closer: &str) -> Result<Term, GrammarFault> {
        let begin = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > BRACKETS_MAX {
            return Err(self.fault(format!("brackets are nested more than {BRACKETS_MAX} deep")));
        }
        let inner = self.choice()?;
        self.skip();
        self.depth -= 1;
        match self.take(closer) {
            true => Ok(inner),
            false if self.rest().is_empty() => {
                Err(GrammarFault::at(self.text, begin, "a bracket is not closed"))
            }
            false => Err(self.means_nothing()),
        }
    }

    /// The term, repeated as the signs behind it say.
    fn counted(&mut self, term: Term) -> Result<Term, GrammarFault> {
        let repeat = |term, least, most| Ok(Term::Repeat(Box::new(term), least, most));
        if self.take("*") {
            return repeat(term, 0, None);
        }
        if self.take("+") {
            return repeat(term, 1, None);
        }
        if self.take("?") {
            return repeat(term, 0, Some(1));
        }
        self.skip();
        if self.rest().starts_with('{') {
            return Err(self.fault("templates are not supported"));
        }
        if !self.take("~") {
            return Ok(term);
        }
        self.skip();
        let at = self.at;
        let least = self.digits();
        let most = if self.take("..") { self.digits() } else { least };
        match (least, most) {
            (Some(least), Some(most)) if least <= most && most <= REPEATS_MAX => {
                repeat(term, least, Some(most))
            }
            _ => {
                let what = format!("a count is expected here, 0 to {REPEATS_MAX}");
                Err(GrammarFault::at(self.text, at, what))
            }
        }
    }

    fn digits(&mut self) -> Option<u32> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += end;
        rest[..end].parse().ok()
    }
}

/// Whether a name is a terminal's.
fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(char::is_uppercase)
}

/// The only term of a list, or the list.
fn single(mut terms: Vec<Term>) -> Result<Term, Vec<Term>> {
    match terms.len() {
        1 => Ok(terms.remove(0)),
        _ => Err(terms),
    }
}
