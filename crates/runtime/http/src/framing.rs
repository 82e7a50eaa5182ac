//! Where an answer's head ends and which bytes after it are its body. Pure: it does no I/O.
//!
//! Source: RFC 9112, sections 4 (status line), 6 (message body) and 7 (chunks).

use crate::HttpError;
use http::StatusCode;

/// Most header lines of an answer.
const MAX_HEADERS: usize = 96;
/// Most bytes of a chunk's extensions, and of the lines after the last chunk.
const MAX_IGNORED_BYTES: u32 = 16 << 10;
/// Largest chunk, far above any that an engine sends; smaller sizes cannot overflow.
const MAX_CHUNK_BYTES: u64 = 1 << 40;

/// The parts of an answer's head that the client needs.
#[derive(Debug, PartialEq)]
pub(crate) struct AnswerHead {
    pub(crate) status: StatusCode,
    pub(crate) framing: Framing,
    /// Whether the connection can be used again.
    pub(crate) keeps: bool,
    /// Whether the body is a stream of events.
    pub(crate) is_event_stream: bool,
    /// The target of a redirection.
    pub(crate) location: Option<String>,
}

/// Rest of a body that is still to come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Framing {
    /// A number of bytes; 0 is the end.
    Length(u64),
    /// Chunks, at this position within one.
    Chunks(ChunkPosition),
    /// Everything until the connection closes.
    UntilClosed,
}

/// A position in a chunk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChunkPosition {
    /// In its size, with the value so far; `None` before the first digit.
    Size(Option<u64>),
    /// In the extension after its size; the second number counts the ignored bytes so far.
    Extension(u64, u32),
    /// Before the line feed after its size.
    SizeEnd(u64),
    /// In its bytes; the number is the rest.
    Data(u64),
    /// Before the carriage return after its bytes.
    DataReturn,
    /// Before the line feed after its bytes.
    DataEnd,
    /// Behind the last chunk: bytes of the current line, and of all ignored lines.
    Trailer(u32, u32),
}

/// Reads the head at the start of `bytes` and its length; `None` while the head is incomplete.
///
/// # Errors
///
/// [`HttpError::Malformed`] where the bytes are no HTTP/1 head.
pub(crate) fn head(bytes: &[u8]) -> Result<Option<(AnswerHead, usize)>, HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(bytes).map_err(|error| malformed(error.to_string()))?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let status = StatusCode::from_u16(response.code.unwrap_or_default());
    let status = status.map_err(|error| malformed(error.to_string()))?;
    let mut keeps = response.version == Some(1);
    let (mut framing, mut chunked) = (None, None);
    let (mut is_event_stream, mut location) = (false, None);
    for header in response.headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("connection") {
            keeps &= tokens(header.value).all(|token| !token.eq_ignore_ascii_case(b"close"));
        } else if is("transfer-encoding") {
            let last = tokens(header.value).last();
            chunked = Some(last.is_some_and(|token| token.eq_ignore_ascii_case(b"chunked")));
        } else if is("content-length") {
            let length = Framing::Length(number(header.value)?);
            if framing.replace(length.clone()).is_some_and(|before| before != length) {
                return Err(malformed("two lengths of one body"));
            }
        } else if is("content-type") {
            is_event_stream = header.value.starts_with(b"text/event-stream");
        } else if is("location") {
            location = std::str::from_utf8(header.value).ok().map(|value| value.trim().to_owned());
        }
    }
    // Chunks win over a length; without either the body ends with its connection.
    let framing = match (status.as_u16(), chunked) {
        (100..200 | 204 | 304, _) => Framing::Length(0),
        (_, Some(true)) => Framing::Chunks(ChunkPosition::Size(None)),
        (_, Some(false)) => Framing::UntilClosed,
        (_, None) => framing.unwrap_or(Framing::UntilClosed),
    };
    keeps &= framing != Framing::UntilClosed;
    Ok(Some((AnswerHead { status, framing, keeps, is_event_stream, location }, length)))
}

fn tokens(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn number(digits: &[u8]) -> Result<u64, HttpError> {
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'));
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| malformed("a length that is no number"))
}

impl Framing {
    /// Hands on the body's part of `bytes`; returns the number of bytes used, which is all unless
    /// the body ends among them.
    ///
    /// # Errors
    ///
    /// [`HttpError::Malformed`] where a chunk is malformed; everything before it was handed on.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        mut hand_on: impl FnMut(&[u8]),
    ) -> Result<usize, HttpError> {
        let mut used = 0;
        while used < bytes.len() && !self.is_over() {
            let rest = &bytes[used..];
            used += match self {
                Self::UntilClosed => {
                    hand_on(rest);
                    rest.len()
                }
                Self::Length(left) | Self::Chunks(ChunkPosition::Data(left)) => {
                    let part =
                        &rest[..rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX))];
                    hand_on(part);
                    *left -= part.len() as u64;
                    if let Self::Chunks(place @ ChunkPosition::Data(0)) = self {
                        *place = ChunkPosition::DataReturn;
                    }
                    part.len()
                }
                Self::Chunks(place) => {
                    match place.step(rest[0])? {
                        Some(next) => *place = next,
                        None => *self = Self::Length(0),
                    }
                    1
                }
            };
        }
        Ok(used)
    }

    /// Whether the body is complete.
    pub(crate) fn is_over(&self) -> bool {
        *self == Self::Length(0)
    }

    /// Bytes until the end of a body that is not cut into chunks.
    pub(crate) fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::UntilClosed => Some(u64::MAX),
            Self::Chunks(_) => None,
        }
    }

    /// Counts bytes of such a body that were read elsewhere, at most those that are left.
    pub(crate) fn skip(&mut self, bytes: usize) {
        if let Self::Length(left) = self {
            *left -= bytes as u64;
        }
    }

    /// Whether the body is complete if its connection ends here.
    pub(crate) fn may_end(&self) -> bool {
        self.is_over() || *self == Self::UntilClosed
    }
}

impl ChunkPosition {
    /// The position behind a byte that belongs to no chunk's data; `None` behind the last.
    fn step(&self, byte: u8) -> Result<Option<Self>, HttpError> {
        Ok(Some(match (self, byte) {
            (Self::Size(Some(size)), b'\r') => Self::SizeEnd(*size),
            (Self::Size(Some(size)), b';' | b' ' | b'\t') => Self::Extension(*size, 0),
            (Self::Size(size), digit) => {
                let digit = char::from(digit).to_digit(16);
                let digit = digit.ok_or_else(|| malformed("a chunk without a size"))?;
                let size = size.unwrap_or(0) * 16 + u64::from(digit);
                if size > MAX_CHUNK_BYTES {
                    return Err(malformed("a chunk that is too large"));
                }
                Self::Size(Some(size))
            }
            (Self::Extension(size, _), b'\r') => Self::SizeEnd(*size),
            (Self::Extension(size, before), byte) if byte != b'\n' => {
                Self::Extension(*size, ignored(*before)?)
            }
            (Self::SizeEnd(0), b'\n') => Self::Trailer(0, 0),
            (Self::SizeEnd(size), b'\n') => Self::Data(*size),
            (Self::DataReturn, b'\r') => Self::DataEnd,
            (Self::DataEnd, b'\n') => Self::Size(None),
            (Self::Trailer(0, _), b'\n') => return Ok(None),
            (Self::Trailer(_, before), b'\n') => Self::Trailer(0, ignored(*before)?),
            (Self::Trailer(line, before), b'\r') => Self::Trailer(*line, ignored(*before)?),
            (Self::Trailer(line, before), _) => Self::Trailer(line + 1, ignored(*before)?),
            _ => return Err(malformed("a chunk that ends where it must not")),
        }))
    }
}

fn ignored(before: u32) -> Result<u32, HttpError> {
    if before == MAX_IGNORED_BYTES {
        return Err(malformed("more around its chunks than is read"));
    }
    Ok(before + 1)
}

fn malformed(why: impl Into<String>) -> HttpError {
    HttpError::Malformed(why.into())
}

#[cfg(test)]
mod tests;
