//! Output of an engine: cut into lines, logged under the engine's name, with the last lines kept.

use crate::cause;
use crate::phase::Phase;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Level;

/// Lines kept to explain an end.
const TAIL_LINES: usize = 50;
/// Longest time between a line about memory and an end that it explains. A dying engine prints an
/// account for each of its requests, together longer than any tail; an engine that survives the
/// shortage ends for another reason.
const MEMORY_WITHIN: Duration = Duration::from_secs(60);
/// Longest line that is logged and kept, in bytes; the rest of it is dropped.
const LINE_MAX: usize = 4096;
/// Marks a line whose rest was dropped.
const CUT: char = '…';
/// Stands for a secret.
const MASK: &str = "***";
/// Bytes of one read.
const READ: usize = 16 * 1024;
/// Length of a line's start that may name its level, in characters.
const LEVEL_WITHIN: usize = 64;

/// Output of one process, shared by its two streams.
#[derive(Debug)]
pub(crate) struct Output {
    name: Arc<str>,
    /// Texts to mask in the log.
    secrets: Vec<String>,
    tail: Mutex<VecDeque<String>>,
    /// The last line about memory, and its time.
    out_of_memory: Mutex<Option<(Instant, String)>>,
    phase: watch::Sender<Phase>,
}

impl Output {
    pub(crate) fn new(name: Arc<str>, mut secrets: Vec<String>) -> Self {
        secrets.retain(|secret| !secret.is_empty());
        let tail = Mutex::new(VecDeque::with_capacity(TAIL_LINES));
        let (out_of_memory, phase) = (Mutex::default(), watch::Sender::new(Phase::default()));
        Self { name, secrets, tail, out_of_memory, phase }
    }

    /// Watch on the phase of the start.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The last lines, the oldest first.
    pub(crate) fn tail(&self) -> Vec<String> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The last line about memory, if it is recent.
    pub(crate) fn out_of_memory(&self) -> Option<String> {
        let said = self.out_of_memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        said.filter(|(at, _)| at.elapsed() < MEMORY_WITHIN).map(|(_, line)| line)
    }

    /// Reads a stream to its end. The engine's output waits for nothing else.
    pub(crate) async fn follow(self: Arc<Self>, mut stream: impl AsyncRead + Unpin) {
        let (mut buffer, mut lines) = (vec![0; READ], Lines::default());
        // A stream that cannot be read any more has ended.
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            lines.push(&buffer[..read], |line| self.line(line));
        }
        lines.finish(|line| self.line(line));
    }

    fn line(&self, mut line: String) {
        for secret in &self.secrets {
            mask(&mut line, secret);
        }
        let (engine, level) = (&*self.name, level(&line));
        // The level of an event is fixed where it is written.
        match level {
            Level::ERROR => tracing::error!(target: "engine", engine, "{line}"),
            Level::WARN => tracing::warn!(target: "engine", engine, "{line}"),
            Level::INFO => tracing::info!(target: "engine", engine, "{line}"),
            _ => tracing::debug!(target: "engine", engine, "{line}"),
        }
        if let Some(phase) = Phase::of(&line) {
            self.phase.send_if_modified(|now| {
                let further = *now < phase;
                *now = phase.max(*now);
                further
            });
        }
        if cause::tells_of_memory(&line) {
            let said = Some((Instant::now(), line.clone()));
            *self.out_of_memory.lock().unwrap_or_else(PoisonError::into_inner) = said;
        }
        // What a server logs of each request explains no end.
        if level <= Level::INFO {
            let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
            if tail.len() == TAIL_LINES {
                tail.pop_front();
            }
            tail.push_back(line);
        }
    }
}

/// Masks a secret, even one cut off at the end of a line: SGLang logs all of its settings.
fn mask(line: &mut String, secret: &str) {
    if line.contains(secret) {
        *line = line.replace(secret, MASK);
    }
    let Some(rest) = line.strip_suffix(CUT) else { return };
    let parts = secret.char_indices().rev().map(|(end, _)| &secret[..end]);
    if let Some(part) = parts.filter(|part| !part.is_empty()).find(|part| rest.ends_with(part)) {
        line.truncate(rest.len() - part.len());
        line.push_str(MASK);
        line.push(CUT);
    }
}

/// The level that a line names itself; access lines of successful requests are debug.
fn level(line: &str) -> Level {
    if line.contains(" HTTP/1.1\" 2") {
        return Level::DEBUG;
    }
    let start = line.char_indices().nth(LEVEL_WITHIN).map_or(line, |(end, _)| &line[..end]);
    let words = start.split(|c: char| !c.is_ascii_alphabetic());
    let mut levels = words.filter_map(|word| match word {
        "ERROR" | "CRITICAL" | "FATAL" => Some(Level::ERROR),
        "WARNING" | "WARN" => Some(Level::WARN),
        "INFO" => Some(Level::INFO),
        "DEBUG" | "TRACE" => Some(Level::DEBUG),
        _ => None,
    });
    levels.next().unwrap_or(Level::INFO)
}

/// Cuts bytes into lines. A carriage return ends a line too: progress bars use it.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    cut: bool,
}

impl Lines {
    fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(String)) {
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.take(&bytes[..end]);
            self.finish(&mut each);
            bytes = &bytes[end + 1..];
        }
        self.take(bytes);
    }

    /// Ends the current line, if there is one.
    fn finish(&mut self, mut each: impl FnMut(String)) {
        let mut line = printable(&String::from_utf8_lossy(&self.line));
        if std::mem::take(&mut self.cut) {
            line.push(CUT);
        }
        self.line.clear();
        if !line.trim().is_empty() {
            each(line);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let room = (LINE_MAX - self.line.len()).min(bytes.len());
        self.line.extend_from_slice(&bytes[..room]);
        self.cut |= room < bytes.len();
    }
}

/// Strips colours and other control characters, which would act on the reader's terminal.
fn printable(line: &str) -> String {
    let mut printable = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // `ESC [ parameters letter`; any other escape is one character long.
            if chars.next() == Some('[') {
                let _ = chars.by_ref().find(|c| ('@'..='~').contains(c));
            }
        } else if !c.is_control() || c == '\t' {
            printable.push(c);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::time::advance;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece, |line| all.push(line));
        }
        lines.finish(|line| all.push(line));
        all
    }

    #[test]
    fn progress_bars_and_empty_lines_make_no_empty_lines() {
        assert_eq!(lines(&[b"\r 10%\r 20%\r\n\nend"]), [" 10%", " 20%", "end"]);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_is_whole() {
        let long = [vec![b'x'; LINE_MAX + 1], b"\nnext\n".to_vec()].concat();
        assert_eq!(lines(&[&long]), [format!("{}…", "x".repeat(LINE_MAX)), "next".into()]);
    }

    #[test]
    fn colours_and_control_characters_are_left_out() {
        assert_eq!(lines(&[b"\x1b[1;31mERROR\x1b[0m a\tb\x07\n"]), ["ERROR a\tb"]);
        assert_eq!(lines(&[b"broken \xff text \x1b[31"]), ["broken \u{fffd} text "]);
    }

    #[test]
    fn a_line_has_the_level_that_it_names() {
        let check = |line: &str, expected| assert_eq!(level(line), expected, "{line}");
        check("(EngineCore pid=381) WARNING 11-22 06:45:44 [vllm.py:725] x", Level::WARN);
        check("(APIServer pid=1) ERROR 11-22 06:46:14 [async_llm.py:906] x", Level::ERROR);
        check("INFO:     Started server process [32044]", Level::INFO);
        check("Traceback (most recent call last):", Level::INFO);
        check("INFO: 127.0.0.1:5 - \"GET /health HTTP/1.1\" 200 OK", Level::DEBUG);
        check("INFO: 127.0.0.1:5 - \"GET /health HTTP/1.1\" 503 x", Level::INFO);
        check(&format!("{} ERROR", "é".repeat(100)), Level::INFO);
    }

    #[tokio::test]
    async fn the_last_lines_are_kept_and_the_phase_only_advances() {
        let output = Arc::new(Output::new("w".into(), Vec::new()));
        let phase = output.phase();
        let mut text: String = (0..60).map(|line| format!("line {line}\n")).collect();
        text.push_str("Application startup complete\nLoading weights again\n");
        output.clone().follow(text.as_bytes()).await;
        let tail = output.tail();
        assert_eq!(tail.len(), TAIL_LINES);
        assert_eq!(tail[0], "line 12");
        assert_eq!(tail[49], "Loading weights again");
        assert_eq!(*phase.borrow(), Phase::Serving);
    }

    #[tokio::test(start_paused = true)]
    async fn that_memory_is_out_is_remembered_for_a_while_whatever_is_printed_after_it() {
        let output = Arc::new(Output::new("w".into(), Vec::new()));
        let mut text = "torch.OutOfMemoryError: CUDA out of memory.\n".to_owned();
        text.extend((0..200).map(|line| format!("ERROR of a request, line {line}\n")));
        output.clone().follow(text.as_bytes()).await;
        let said = Some("torch.OutOfMemoryError: CUDA out of memory.".to_owned());
        assert_eq!(output.out_of_memory(), said);
        advance(MEMORY_WITHIN).await;
        assert_eq!(output.out_of_memory(), None);
    }

    #[tokio::test]
    async fn secrets_are_left_out_of_what_is_logged_and_kept() {
        let secrets = vec!["hush".to_owned(), String::new()];
        let output = Arc::new(Output::new("w".into(), secrets));
        output.clone().follow("api_key='hush' and hush\n".as_bytes()).await;
        assert_eq!(output.tail(), ["api_key='***' and ***"]);
        let long = format!("{}hush", "x".repeat(LINE_MAX - 2));
        output.clone().follow(long.as_bytes()).await;
        assert_eq!(output.tail()[1], format!("{}***…", "x".repeat(LINE_MAX - 2)));
    }

    proptest! {
        /// However the bytes are cut into pieces, the lines are those of the whole text.
        #[test]
        fn pieces_make_the_lines_of_the_whole(
            text in "[ab\r\n \u{1b}\\[é]{0,80}",
            cuts in vec(0usize..80, 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let whole = text.split(['\r', '\n']).map(printable);
            let whole: Vec<_> = whole.filter(|line| !line.trim().is_empty()).collect();
            prop_assert_eq!(lines(&pieces), whole);
        }
    }
}
