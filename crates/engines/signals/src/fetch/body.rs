//! A chunked body, joined in the buffer that it arrives in.

use super::FetchError;

/// Longest line with a chunk's size.
const LINE_BYTES_MAX: usize = 4096;

/// Progress through a chunked body.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Start of the unread bytes.
    read: usize,
    /// End of the body so far.
    written: usize,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Size,
    Data { left: usize },
    DataEnd,
    Trailer,
    Done,
}

impl Chunks {
    /// Starts at `start`.
    pub(super) fn new(start: usize) -> Self {
        Self { read: start, written: start, state: State::Size }
    }

    /// End of the body so far.
    pub(super) fn end(&self) -> usize {
        self.written
    }

    /// End of the bytes read.
    pub(super) fn consumed(&self) -> usize {
        self.read
    }

    /// Joins the chunks that have arrived; true at the end of the body.
    pub(super) fn advance(&mut self, buffer: &mut [u8]) -> Result<bool, FetchError> {
        loop {
            match self.state {
                State::Size => {
                    let Some(line) = self.line(buffer)? else { return Ok(false) };
                    self.state = match size(line)? {
                        0 => State::Trailer,
                        left => State::Data { left },
                    };
                }
                State::Data { left } => {
                    let here = left.min(buffer.len() - self.read);
                    buffer.copy_within(self.read..self.read + here, self.written);
                    self.read += here;
                    self.written += here;
                    if here < left {
                        self.state = State::Data { left: left - here };
                        return Ok(false);
                    }
                    self.state = State::DataEnd;
                }
                State::DataEnd => match self.line(buffer)? {
                    None => return Ok(false),
                    Some(b"") => self.state = State::Size,
                    Some(_) => return Err(FetchError::Malformed("a chunk is too long")),
                },
                State::Trailer => match self.line(buffer)? {
                    None => return Ok(false),
                    Some(b"") => self.state = State::Done,
                    Some(_) => {}
                },
                State::Done => return Ok(true),
            }
        }
    }

    fn line<'a>(&mut self, buffer: &'a [u8]) -> Result<Option<&'a [u8]>, FetchError> {
        let rest = &buffer[self.read..];
        let Some(length) = memchr::memmem::find(&rest[..rest.len().min(LINE_BYTES_MAX)], b"\r\n")
        else {
            return match rest.len() < LINE_BYTES_MAX {
                true => Ok(None),
                false => Err(FetchError::Malformed("a chunk's size line")),
            };
        };
        self.read += length + 2;
        Ok(Some(&rest[..length]))
    }
}

fn size(line: &[u8]) -> Result<usize, FetchError> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let malformed = FetchError::Malformed("a chunk's size");
    // Seven digits are 256 MiB, more than any limit here.
    if digits.is_empty() || digits.len() > 7 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(malformed);
    }
    let text = std::str::from_utf8(digits).map_err(|_| FetchError::Malformed("a chunk's size"))?;
    usize::from_str_radix(text, 16).map_err(|_| malformed)
}
