//! gRPC bodies: frames, the fields of protobuf messages, and the counts of vLLM's answers.
//!
//! Messages are read field by field, without generated types: the picker needs few of them.

use crate::span::Span;
use crate::usage::Usage;

/// The compressed flag and the length, before each message.
pub(crate) const HEADER_BYTES: usize = 5;
/// The longest answer that is looked at; it has 200,000 token ids and more.
const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// Why a body is no gRPC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame's header is cut off.
    #[error("invalid gRPC frame: expected at least 5 bytes for header, got {0}")]
    Header(usize),
    /// The message is compressed.
    #[error("compressed gRPC payload is not supported")]
    Compressed,
    /// The message is cut off.
    #[error(
        "incomplete gRPC payload: header indicates {length} bytes, but only {available} bytes are available"
    )]
    Incomplete {
        /// Bytes that the header promises.
        length: usize,
        /// Bytes that follow it.
        available: usize,
    },
    /// More follows the message of a call that has one.
    #[error("{0} bytes follow the gRPC message")]
    Further(usize),
    /// The message is not sound protobuf.
    #[error("invalid protobuf at byte {0}")]
    Protobuf(usize),
}

/// Position of the first frame's message in `body`.
pub(crate) fn message_in(body: &[u8]) -> Result<Span, FrameError> {
    let (compressed, length) = header(body).ok_or(FrameError::Header(body.len()))?;
    if compressed {
        return Err(FrameError::Compressed);
    }
    let available = body.len() - HEADER_BYTES;
    if available < length {
        return Err(FrameError::Incomplete { length, available });
    }
    Ok(Span { start: HEADER_BYTES, end: HEADER_BYTES + length })
}

fn header(frame: &[u8]) -> Option<(bool, usize)> {
    let [flag, length @ ..] = frame.first_chunk::<HEADER_BYTES>()?;
    Some((flag & 1 == 1, u32::from_be_bytes(*length) as usize))
}

/// A field's value as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Varint(u64),
    /// A string, bytes, a message or packed numbers.
    Bytes(Span),
    /// Four or eight bytes, of which the picker reads none.
    Fixed,
}

/// The fields of a message, in the order of the wire; ends after the first error.
pub(crate) struct Message<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Message<'a> {
    /// The message at `span`, which lies within `bytes`.
    pub(crate) fn at(bytes: &'a [u8], span: Span) -> Self {
        let bytes = bytes.get(..span.end).unwrap_or_default();
        Self { bytes, at: span.start.min(bytes.len()) }
    }

    /// The offset of the next field.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn skip(&mut self, count: usize) -> Option<Span> {
        let start = self.at;
        let end = start.checked_add(count).filter(|&end| end <= self.bytes.len())?;
        self.at = end;
        Some(Span { start, end })
    }

    fn field(&mut self) -> Option<(u64, Wire)> {
        let key = self.varint()?;
        let wire = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.skip(8).map(|_| Wire::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Wire::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, wire))
    }
}

impl Iterator for Message<'_> {
    type Item = Result<(u64, Wire), FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let start = self.at;
        let field = self.field().filter(|(number, _)| *number > 0);
        if field.is_none() {
            self.at = self.bytes.len();
        }
        Some(field.ok_or(FrameError::Protobuf(start)))
    }
}

/// Appends a `repeated uint32` that is packed or stands alone.
pub(crate) fn push_numbers(bytes: &[u8], wire: Wire, out: &mut Vec<u32>) -> Result<(), FrameError> {
    match wire {
        // Longer numbers lose their upper bits, as protobuf wants it.
        Wire::Varint(value) => out.push(value as u32),
        Wire::Bytes(span) => {
            out.reserve(span.len() / 2);
            let mut packed = Message::at(bytes, span);
            while packed.at < packed.bytes.len() {
                let start = packed.at;
                out.push(packed.varint().ok_or(FrameError::Protobuf(start))? as u32);
            }
        }
        Wire::Fixed => {}
    }
    Ok(())
}

/// The counts of a vLLM gRPC answer, read frame by frame while it goes by.
///
/// It keeps at most one message of up to 1 MiB; longer ones are passed over.
///
/// Source: `GenerateResponse` and `EmbedResponse` of the `vllm.grpc.engine` package.
#[derive(Debug, Default)]
pub struct GrpcUsage {
    /// The frame that is arriving, header included.
    frame: Vec<u8>,
    /// Bytes still to pass over of a frame that is not kept.
    skip: usize,
    last: Option<Usage>,
}

impl GrpcUsage {
    /// Starts with nothing seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sees the next chunk of the response.
    pub fn push(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let skipped = self.skip.min(chunk.len());
            self.skip -= skipped;
            chunk = &chunk[skipped..];
            let wanted = match header(&self.frame) {
                None => HEADER_BYTES,
                Some((_, length)) => HEADER_BYTES + length,
            };
            let taken = (wanted - self.frame.len()).min(chunk.len());
            self.frame.extend_from_slice(&chunk[..taken]);
            chunk = &chunk[taken..];
            self.close_frame();
        }
    }

    /// The last counts that the response had.
    pub fn finish(&self) -> Option<Usage> {
        self.last
    }

    /// Reads and drops the frame once it is complete, or once it turns out not to be of use.
    fn close_frame(&mut self) {
        let Some((compressed, length)) = header(&self.frame) else { return };
        let arrived = self.frame.len() - HEADER_BYTES;
        if compressed || length > MESSAGE_MAX_BYTES {
            self.skip = length - arrived;
        } else if arrived < length {
            return;
        } else if let Some(usage) = counts(&self.frame[HEADER_BYTES..]) {
            self.last = Some(usage);
        }
        self.frame.clear();
    }
}

/// The counts of a `GenerateResponse` or an `EmbedResponse`.
fn counts(message: &[u8]) -> Option<Usage> {
    let whole = Span { start: 0, end: message.len() };
    let usage = Message::at(message, whole).flatten().find_map(|field| match field {
        (1, Wire::Bytes(chunk)) => usage(message, chunk, 2),
        (2, Wire::Bytes(complete)) => usage(message, complete, 3),
        (2, Wire::Varint(prompt)) => Some(total(prompt, 0, None)),
        _ => None,
    })?;
    (usage.total_tokens > 0).then_some(usage)
}

/// The counts of a part, whose prompt, completion and cached tokens are numbered from `first`.
fn usage(message: &[u8], part: Span, first: u64) -> Option<Usage> {
    let mut values = [0; 3];
    for field in Message::at(message, part) {
        if let (number, Wire::Varint(value)) = field.ok()?
            && let Some(slot) =
                number.checked_sub(first).and_then(|at| values.get_mut(usize::try_from(at).ok()?))
        {
            *slot = value;
        }
    }
    let [prompt, completion, cached] = values;
    Some(total(prompt, completion, Some(cached as u32)))
}

fn total(prompt: u64, completion: u64, cached_tokens: Option<u32>) -> Usage {
    let (prompt_tokens, completion_tokens) = (prompt as u32, completion as u32);
    let total_tokens = prompt_tokens.saturating_add(completion_tokens);
    Usage { prompt_tokens, completion_tokens, cached_tokens, total_tokens }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
pub(crate) mod tests;
