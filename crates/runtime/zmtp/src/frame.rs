//! Messages and commands as bytes.
//!
//! A frame is a byte of flags, its length (one byte, or eight in network order), and its content.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The frames of one message.
pub type Message = Vec<Bytes>;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Limits of a peer's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Frames of a message.
    pub frames: usize,
    /// Bytes of a message's frames together, or of a command.
    pub bytes: usize,
}

/// Bytes that are no frames, or break our bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Flags that nobody defined.
    #[error("a frame has the flags {0:#04x}")]
    Flags(u8),
    /// A message of too many frames.
    #[error("a message of more than {0} frames, the limit")]
    Frames(usize),
    /// A message or command that is too large.
    #[error("a message of more than {0} bytes, the limit")]
    Bytes(usize),
    /// A command that cannot be read.
    #[error("a command cannot be read")]
    Command,
}

/// Unit read from the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// A whole message.
    Message(Message),
    /// A command's name and what follows it.
    Command(Bytes, Bytes),
}

/// Puts messages together from bytes as they come.
#[derive(Debug)]
pub struct FrameDecoder {
    limits: FrameLimits,
    frames: Message,
    bytes: usize,
}

impl FrameDecoder {
    /// For a peer that may send this much.
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, frames: Vec::new(), bytes: 0 }
    }

    /// Takes the next message or command from the front of `input`; `None` before all of it is
    /// there. Frames share the memory of `input`.
    ///
    /// # Errors
    ///
    /// [`FrameError`]; what follows in `input` means nothing then.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Traffic>, FrameError> {
        loop {
            let Some((flags, header, length)) = head(input)? else { return Ok(None) };
            let is_command = flags & COMMAND != 0;
            // Limits first: a length that a peer claims must not make the buffer grow.
            let limit = self.limits.bytes - if is_command { 0 } else { self.bytes };
            let length = usize::try_from(length).ok().filter(|length| *length <= limit);
            let length = length.ok_or(FrameError::Bytes(self.limits.bytes))?;
            if self.frames.len() == self.limits.frames && !is_command {
                return Err(FrameError::Frames(self.limits.frames));
            }
            if input.len() < header + length {
                return Ok(None);
            }
            input.advance(header);
            let content = input.split_to(length).freeze();
            if is_command {
                return command(content).map(Some);
            }
            self.bytes += length;
            self.frames.push(content);
            if flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Some(Traffic::Message(std::mem::take(&mut self.frames))));
            }
        }
    }
}

/// The flags of the frame at the front, and how long its head and its content are.
fn head(input: &[u8]) -> Result<Option<(u8, usize, u64)>, FrameError> {
    let Some((&flags, rest)) = input.split_first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(FrameError::Flags(flags));
    }
    Ok(match flags & LONG {
        0 => rest.first().map(|length| (flags, 2, u64::from(*length))),
        _ => rest.first_chunk().map(|length| (flags, 9, u64::from_be_bytes(*length))),
    })
}

fn command(mut content: Bytes) -> Result<Traffic, FrameError> {
    let length = content.first().map(|length| usize::from(*length)).ok_or(FrameError::Command)?;
    content.advance(1);
    if content.len() < length {
        return Err(FrameError::Command);
    }
    Ok(Traffic::Command(content.split_to(length), content))
}

/// Appends a message as it goes over the wire.
///
/// # Panics
///
/// When there is no frame.
pub fn encode(frames: &[Bytes], out: &mut BytesMut) {
    let (last, others) = frames.split_last().expect("a message has a frame");
    for frame in others {
        put(MORE, &[frame], out);
    }
    put(0, &[last], out);
}

/// Appends a command as it goes over the wire. Its name has 255 bytes at most.
pub fn encode_command(name: &str, data: &[u8], out: &mut BytesMut) {
    let length = u8::try_from(name.len()).expect("commands have short names");
    put(COMMAND, &[&[length], name.as_bytes(), data], out);
}

/// Appends a frame whose content is these parts.
fn put(flags: u8, parts: &[&[u8]], out: &mut BytesMut) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    match u8::try_from(length) {
        Ok(length) => out.put_slice(&[flags, length]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(length as u64);
        }
    }
    parts.iter().for_each(|part| out.put_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: FrameLimits = FrameLimits { frames: 4, bytes: 1000 };

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    /// Everything that comes of bytes that arrive in pieces.
    fn decode_all(pieces: &[&[u8]]) -> Result<Vec<Traffic>, FrameError> {
        let (mut decoder, mut input, mut found) =
            (FrameDecoder::new(LIMITS), BytesMut::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            while let Some(incoming) = decoder.decode(&mut input)? {
                found.push(incoming);
            }
        }
        Ok(found)
    }

    #[test]
    fn frames_have_the_protocols_bytes() {
        let mut out = BytesMut::new();
        encode(&[bytes("ab"), Bytes::from(vec![7; 256])], &mut out);
        assert_eq!(out[..13], [1, 2, b'a', b'b', 2, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(out.len(), 13 + 256);
        let mut out = BytesMut::new();
        encode_command("PONG", b"x", &mut out);
        assert_eq!(out, &b"\x04\x06\x04PONGx"[..]);
    }

    #[test]
    fn what_breaks_the_protocol_or_its_bounds_is_refused() {
        assert_eq!(decode_all(&[&[8, 0]]), Err(FrameError::Flags(8)));
        assert_eq!(decode_all(&[&[5, 0]]), Err(FrameError::Flags(5)));
        assert_eq!(decode_all(&[&[1, 0].repeat(5)]), Err(FrameError::Frames(4)));
        assert_eq!(decode_all(&[&[4, 0]]), Err(FrameError::Command));
        assert_eq!(decode_all(&[&[4, 2, 2, b'A']]), Err(FrameError::Command));
        let huge = [2, 255, 255, 255, 255, 255, 255, 255, 255];
        assert_eq!(decode_all(&[&huge]), Err(FrameError::Bytes(1000)));
        let mut two = BytesMut::new();
        encode(&[Bytes::from(vec![0; 600]), Bytes::from(vec![0; 401])], &mut two);
        assert_eq!(decode_all(&[&two]), Err(FrameError::Bytes(1000)));
    }

    #[test]
    fn a_command_may_come_between_the_frames_of_a_message() {
        let found = decode_all(&[b"\x01\x01a", b"\x04\x05\x04PING", b"\x00\x01b"]);
        let ping = Traffic::Command(bytes("PING"), Bytes::new());
        assert_eq!(found, Ok(vec![ping, Traffic::Message(vec![bytes("a"), bytes("b")])]));
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire_however_it_is_cut(
            messages in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..4), 0..6),
            size in 1usize..400,
        ) {
            let messages: Vec<Message> = messages
                .into_iter()
                .map(|frames| frames.into_iter().map(Bytes::from).collect())
                .collect();
            let mut wire = BytesMut::new();
            messages.iter().for_each(|frames| encode(frames, &mut wire));
            let pieces: Vec<&[u8]> = wire.chunks(size).collect();
            let expected = messages.into_iter().map(Traffic::Message).collect();
            prop_assert_eq!(decode_all(&pieces), Ok(expected));
        }

        #[test]
        fn any_bytes_are_read_or_refused_alike_however_they_are_cut(
            wire in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..200),
            size in 1usize..20,
        ) {
            let pieces: Vec<&[u8]> = wire.chunks(size).collect();
            prop_assert_eq!(decode_all(&pieces), decode_all(&[&wire]));
        }
    }
}
