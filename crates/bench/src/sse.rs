//! Server-sent events: finds the data of each event in bytes that arrive in pieces.
//!
//! Source: WHATWG HTML, "Server-sent events", section "Parsing an event stream". Only the field
//! `data` matters to a load generator; every other field is skipped.

use thiserror::Error;

/// Largest data of one event, 1 MiB: an answer in one piece fits many times over.
pub const EVENT_MAX_BYTES: usize = 1 << 20;

/// Byte order mark of UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// An event was larger than [`EVENT_MAX_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("event of more than {EVENT_MAX_BYTES} bytes")]
pub struct TooLong;

/// Splits a stream into events. Data that arrives in one piece is handed on without a copy.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    /// Data lines of the event so far, joined by line feeds; used by events of several lines.
    data: Vec<u8>,
    /// Whether the event has a data line at all: empty data is data.
    has_data: bool,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    /// Whether the first line has come, before which a byte order mark may stand.
    has_begun: bool,
}

impl SseParser {
    /// Takes the next bytes and calls `on_event` with the data of every event that they complete.
    ///
    /// # Errors
    ///
    /// [`TooLong`]; the parser must not be used after it.
    pub fn feed(&mut self, bytes: &[u8], mut on_event: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, terminator) = (&rest[..end], rest[end]);
            rest = &rest[end + 1..];
            if terminator == b'\n' && std::mem::take(&mut self.after_return) && line.is_empty() {
                continue;
            }
            self.after_return = terminator == b'\r';
            if self.line.is_empty() {
                self.line(line, rest, &mut on_event)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                append(&mut whole, line)?;
                self.line(&whole, rest, &mut on_event)?;
                whole.clear();
                self.line = whole;
            }
        }
        if !rest.is_empty() {
            self.after_return = false;
        }
        append(&mut self.line, rest)
    }

    /// Takes one whole line; an empty one ends the event.
    fn line(
        &mut self,
        line: &[u8],
        rest: &[u8],
        on_event: &mut impl FnMut(&[u8]),
    ) -> Result<(), TooLong> {
        if line.len() > EVENT_MAX_BYTES {
            return Err(TooLong);
        }
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        let line = if has_begun { line } else { line.strip_prefix(BOM).unwrap_or(line) };
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                on_event(&self.data);
                self.data.clear();
            }
            return Ok(());
        }
        let Some(data) = data_of(line) else {
            return Ok(());
        };
        if self.has_data {
            append(&mut self.data, b"\n")?;
        }
        // Nearly every event is one data line and the empty line right after it: no copy then.
        // The empty line is still parsed, and finds nothing left to hand on.
        if !self.has_data && matches!(rest, [b'\n', ..] | [b'\r', ..]) && !self.splits_return(rest)
        {
            on_event(data);
            return Ok(());
        }
        self.has_data = true;
        append(&mut self.data, data)
    }

    /// Whether the line feed that `rest` starts with is the second half of this line's end, and
    /// not an empty line.
    fn splits_return(&self, rest: &[u8]) -> bool {
        self.after_return && rest[0] == b'\n'
    }
}

/// The value of a `data` line; `None` for comments and other fields.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    match line.strip_prefix(b"data")? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn append(buffer: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TooLong> {
    if buffer.len() + bytes.len() > EVENT_MAX_BYTES {
        return Err(TooLong);
    }
    buffer.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        for piece in pieces {
            let collect = |data: &[u8]| events.push(String::from_utf8_lossy(data).into_owned());
            parser.feed(piece, collect).unwrap();
        }
        events
    }

    #[track_caller]
    fn check(stream: &str, expected: &[&str]) {
        assert_eq!(events(&[stream.as_bytes()]), expected, "in one piece");
        let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(events(&bytes), expected, "byte by byte");
    }

    #[test]
    fn events_end_at_an_empty_line() {
        check("data: one\n\ndata: two\n\ndata: cut", &["one", "two"]);
    }

    #[test]
    fn the_space_after_the_colon_is_optional() {
        check("data:a\n\ndata:  b\n\n", &["a", " b"]);
    }

    #[test]
    fn every_line_ending_is_understood() {
        check("data: a\r\n\r\ndata: b\r\rdata: c\n\n", &["a", "b", "c"]);
    }

    #[test]
    fn data_lines_of_one_event_are_joined() {
        check("data: a\ndata\ndata: b\n\n", &["a\n\nb"]);
    }

    #[test]
    fn comments_and_other_fields_are_skipped() {
        check(": ping\n\nevent: x\nid: 3\ndata: a\n\ndatabase: b\n\n", &["a"]);
    }

    #[test]
    fn empty_data_is_an_event() {
        check("data:\n\n\n\n", &[""]);
    }

    #[test]
    fn a_byte_order_mark_stands_before_the_first_line_alone() {
        check("\u{feff}data: a\n\n\u{feff}data: b\n\ndata: c\n\n", &["a", "c"]);
        check("\u{feff}\u{feff}data: a\n\n", &[]);
        check("\n\u{feff}data: a\n\n", &[]);
    }

    #[test]
    fn a_long_line_is_refused_in_one_piece_too() {
        let line = [b"data: ", &*vec![b'x'; EVENT_MAX_BYTES], b"\n\n"].concat();
        assert_eq!(SseParser::default().feed(&line, |_| ()), Err(TooLong));
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = SseParser::default();
        let piece = vec![b'x'; EVENT_MAX_BYTES];
        assert_eq!(parser.feed(&piece, |_| ()), Ok(()));
        assert_eq!(parser.feed(b"x", |_| ()), Err(TooLong));
    }

    /// The obvious parser: the whole stream at once, line by line.
    fn model(stream: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\r', "\n");
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let (mut events, mut data) = (Vec::new(), Vec::new());
        for line in whole.split_terminator('\n') {
            if line.is_empty() {
                if !data.is_empty() {
                    events.push(std::mem::take(&mut data).join("\n"));
                }
            } else if let Some(value) = line.strip_prefix("data:") {
                data.push(value.strip_prefix(' ').unwrap_or(value).to_owned());
            } else if line == "data" {
                data.push(String::new());
            }
        }
        events
    }

    fn any_stream() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            Just("data: "),
            Just("data:"),
            Just("data"),
            Just("\n"),
            Just("\n\n"),
            Just("\r\n"),
            Just("\r"),
            Just(": c"),
            Just("{\"a\":1}"),
            Just("é"),
            Just("event: x"),
            Just(" "),
        ];
        vec(word, 0..40).prop_map(|words| words.concat().into_bytes())
    }

    proptest! {
        /// However the stream is cut, the events are those of the obvious parser.
        #[test]
        fn any_chunking_gives_the_same_events(stream in any_stream(), cuts in vec(1_usize..9, 0..60)) {
            let (mut pieces, mut rest) = (Vec::new(), stream.as_slice());
            for cut in cuts {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = tail;
            }
            pieces.push(rest);
            // A carriage return at the very end may be half of a line end; the model cannot know.
            prop_assume!(stream.last() != Some(&b'\r'));
            prop_assert_eq!(events(&pieces), model(&stream));
        }

        /// Bytes that are no event stream at all do not panic.
        #[test]
        fn arbitrary_bytes_are_harmless(bytes in vec(any::<u8>(), 0..500)) {
            let _ = SseParser::default().feed(&bytes, |_| ());
        }
    }
}
