//! Texts and regular expressions in Lark's notation.

use super::grammar::{GrammarFault, Term};
use super::lark::Reader;
use super::regex;

impl Reader<'_> {
    /// `"text"`, `"text"i` or `"a".."z"`.
    pub(super) fn string(&mut self) -> Result<Term, GrammarFault> {
        let at = self.at;
        let text = self.quoted()?;
        if !self.take("..") {
            let flags = if self.take("i") { "i" } else { "" };
            let expression = regex_syntax::escape(&text);
            return self.parsed(&expression, flags, at);
        }
        if !self.rest().starts_with('"') {
            return Err(self.means_nothing());
        }
        let last = self.quoted()?;
        let only = |text: &str| text.chars().next().filter(|c| text.len() == c.len_utf8());
        match (only(&text), only(&last)) {
            (Some(first), Some(last)) if first <= last => {
                let expression = format!("[\\x{{{:x}}}-\\x{{{:x}}}]", first as u32, last as u32);
                self.parsed(&expression, "", at)
            }
            _ => {
                let what = "a range has two single characters in order";
                Err(GrammarFault::at(self.text, at, what))
            }
        }
    }

    /// A text between quotes, with the escapes of Python.
    fn quoted(&mut self) -> Result<String, GrammarFault> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.rest().chars().next().filter(|c| *c != '\n') else {
                return Err(GrammarFault::at(self.text, begin, "a text is not closed"));
            };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(text),
                '\\' => self.escape(&mut text)?,
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Result<(), GrammarFault> {
        let Some(c) = self.rest().chars().next() else { return Ok(()) };
        self.at += c.len_utf8();
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c => {
                match c {
                    'n' => text.push('\n'),
                    'r' => text.push('\r'),
                    't' => text.push('\t'),
                    'f' => text.push('\x0c'),
                    '"' | '\\' | '/' => text.push(c),
                    // As in Python, the sign stays where it escapes nothing.
                    c => text.extend(['\\', c]),
                }
                return Ok(());
            }
        };
        let code = self.rest().get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return Err(self.fault("an escape is no character"));
        };
        self.at += digits;
        text.push(c);
        Ok(())
    }

    /// `/expression/flags`.
    pub(super) fn expression(&mut self) -> Result<Term, GrammarFault> {
        let begin = self.at + 1;
        let mut end = begin;
        loop {
            let rest = &self.text[end..];
            let Some(at) = rest.find(['/', '\\', '\n']) else {
                return Err(self.fault("an expression is not closed"));
            };
            end += at;
            match self.text.as_bytes()[end] {
                b'/' => break,
                b'\\' => {
                    let escaped = self.text[end + 1..].chars().next();
                    end += 1 + escaped.map_or(0, char::len_utf8);
                }
                _ => return Err(self.fault("an expression is not closed")),
            }
        }
        let expression = &self.text[begin..end];
        self.at = end + 1;
        let flags = self.rest().len() - self.rest().trim_start_matches(char::is_alphabetic).len();
        let flags = &self.text[self.at..self.at + flags];
        self.at += flags.len();
        self.parsed(expression, flags, begin)
    }

    /// A regular expression that stands at `begin`.
    fn parsed(&self, expression: &str, flags: &str, begin: usize) -> Result<Term, GrammarFault> {
        let text = regex::parse(expression, flags).and_then(regex::without_looks);
        text.map(Term::Text)
            .map_err(|fault| GrammarFault::at(self.text, begin + fault.at, fault.what))
    }
}
