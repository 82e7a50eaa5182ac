//! Output of an answer on a screen.

use crate::answer::{AnswerSoFar, Piece};
use crate::control::harmless;
use std::io::{self, Write};

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Parts of an answer that a screen shows, and their form.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shows {
    /// Whether reasoning is printed.
    pub reasoning: bool,
    /// Whether it is printed in a dim colour.
    pub colour: bool,
    /// Whether a person's terminal reads it: control characters of a model would act on it.
    pub is_terminal: bool,
}

/// Prints one answer.
pub(crate) struct Screen<W: Write> {
    out: W,
    shows: Shows,
    /// Whether reasoning was printed last.
    thinks: bool,
    /// Whether the last line is unfinished.
    within_line: bool,
}

impl<W: Write> Screen<W> {
    pub(crate) fn new(out: W, shows: Shows) -> Self {
        Self { out, shows, thinks: false, within_line: false }
    }

    /// Prints a part of the answer at once.
    ///
    /// # Errors
    ///
    /// When nobody reads any more.
    pub(crate) fn show(&mut self, piece: &Piece) -> io::Result<()> {
        match piece {
            Piece::Reasoning(_) if !self.shows.reasoning => return Ok(()),
            Piece::Reasoning(text) => {
                if !self.thinks {
                    self.end_line()?;
                    self.out
                        .write_all(if self.shows.colour { DIM } else { "thinks: " }.as_bytes())?;
                    self.thinks = true;
                }
                self.print(text)?;
            }
            Piece::Text(text) => {
                self.end_reasoning()?;
                self.print(text)?;
            }
        }
        self.out.flush()
    }

    /// Prints calls and the end of the answer's last line.
    ///
    /// # Errors
    ///
    /// When nobody reads any more.
    pub(crate) fn end(&mut self, answer: &AnswerSoFar) -> io::Result<()> {
        self.end_reasoning()?;
        self.end_line()?;
        for call in &answer.calls {
            let line = format!("{}({})", call.name, call.arguments);
            self.print(&line)?;
            self.end_line()?;
        }
        self.out.flush()
    }

    fn end_reasoning(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.thinks) {
            if self.shows.colour {
                self.out.write_all(PLAIN.as_bytes())?;
            }
            self.end_line()?;
        }
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.within_line) {
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn print(&mut self, text: &str) -> io::Result<()> {
        self.within_line = !text.ends_with('\n');
        if !self.shows.is_terminal {
            return self.out.write_all(text.as_bytes());
        }
        self.out.write_all(harmless(text).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::CalledTool;

    fn check(shows: Shows, pieces: &[(bool, &str)], calls: &[(&str, &str)]) -> String {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, shows);
        for (thinks, text) in pieces {
            let text = (*text).to_owned();
            let piece = if *thinks { Piece::Reasoning(text) } else { Piece::Text(text) };
            screen.show(&piece).unwrap();
        }
        let call = |(name, arguments): &(&str, &str)| CalledTool {
            id: String::new(),
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
        };
        let calls = calls.iter().map(call).collect();
        screen.end(&AnswerSoFar { calls, ..AnswerSoFar::default() }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_pipe_gets_the_answer_alone() {
        let pieces = [(true, "hm"), (false, "a"), (false, "\x1b[31mb")];
        assert_eq!(check(Shows::default(), &pieces, &[]), "a\x1b[31mb\n");
        assert_eq!(check(Shows::default(), &[(false, "a\n")], &[]), "a\n");
        assert_eq!(check(Shows::default(), &[], &[("f", "{}"), ("g", "1")]), "f({})\ng(1)\n");
    }

    #[test]
    fn a_terminal_gets_reasoning_apart_and_no_control_characters() {
        let shows = Shows { reasoning: true, colour: true, is_terminal: true };
        let pieces = [(true, "h"), (true, "m"), (false, "a\x1b[31m\x07\tb")];
        assert_eq!(check(shows, &pieces, &[("f", "{}")]), "\x1b[2mhm\x1b[0m\na[31m\tb\nf({})\n");
        let shows = Shows { colour: false, ..shows };
        assert_eq!(check(shows, &[(true, "hm")], &[]), "thinks: hm\n");
        let shows = Shows { reasoning: false, ..shows };
        assert_eq!(check(shows, &[(true, "hm")], &[]), "");
    }
}
