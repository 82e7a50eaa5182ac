//! The head of a response.

use super::FetchError;
use std::ops::Range;

/// The parts of a head that the client needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) length: Length,
    pub(super) keep_alive: bool,
    /// Position of the `location` value in the buffer.
    pub(super) location: Option<Range<usize>>,
    /// Bytes of the head, its empty line included.
    pub(super) size: usize,
}

/// Length of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Exact(usize),
    Chunked,
    UntilClose,
}

impl Head {
    /// Reads the head at the start of `buffer`, whose end is at or after `searched`; `None` while
    /// the head is incomplete.
    pub(super) fn parse(buffer: &[u8], searched: usize) -> Result<Option<Self>, FetchError> {
        let Some(end) = memchr::memmem::find(&buffer[searched..], b"\r\n\r\n") else {
            return Ok(None);
        };
        let end = searched + end;
        let mut lines = Lines { buffer: &buffer[..end], at: 0 };
        let (status_line, _) = lines.next().ok_or(FetchError::Malformed("no status line"))?;
        let (status, http_1_0) = status(status_line)?;
        let mut head = Self {
            status,
            length: Length::UntilClose,
            keep_alive: !http_1_0,
            location: None,
            size: end + 4,
        };
        for (line, start) in lines {
            head.header(line, start)?;
        }
        if matches!(status, 204 | 304) {
            head.length = Length::Exact(0);
        }
        head.keep_alive &= head.length != Length::UntilClose;
        Ok(Some(head))
    }

    fn header(&mut self, line: &[u8], start: usize) -> Result<(), FetchError> {
        let colon = memchr::memchr(b':', line).ok_or(FetchError::Malformed("a header"))?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        if is("content-length") && self.length != Length::Chunked {
            let digits = std::str::from_utf8(value).ok();
            let length = digits.and_then(|digits| digits.parse().ok());
            self.length = Length::Exact(length.ok_or(FetchError::Malformed("content-length"))?);
        } else if is("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(FetchError::Malformed("an unknown transfer-encoding"));
            }
            self.length = Length::Chunked;
        } else if is("connection") {
            let close = value.eq_ignore_ascii_case(b"close");
            self.keep_alive =
                !close && (self.keep_alive || value.eq_ignore_ascii_case(b"keep-alive"));
        } else if is("location") {
            let skipped = line.len() - colon - 1 - line[colon + 1..].trim_ascii_start().len();
            let from = start + colon + 1 + skipped;
            self.location = Some(from..from + value.len());
        }
        Ok(())
    }
}

/// The status, and whether the server speaks HTTP/1.0.
fn status(line: &[u8]) -> Result<(u16, bool), FetchError> {
    let malformed = FetchError::Malformed("the status line");
    let rest = match line {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ (b'0' | b'1'), b' ', rest @ ..] => {
            (rest, *minor == b'0')
        }
        _ => return Err(malformed),
    };
    let digits = rest.0.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
    match digits.and_then(|digits| digits.parse().ok()) {
        // An interim response answers nothing, and nobody here asks for one.
        Some(status @ 200..=599) => Ok((status, rest.1)),
        _ => Err(malformed),
    }
}

/// Iterator over lines and their positions.
struct Lines<'a> {
    buffer: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (&'a [u8], usize);

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.buffer.len() {
            return None;
        }
        let start = self.at;
        let rest = &self.buffer[start..];
        let length = memchr::memmem::find(rest, b"\r\n").unwrap_or(rest.len());
        self.at = start + length + 2;
        Some((&rest[..length], start))
    }
}
