//! The few messages of ext-proc that a load generator needs, as bytes: a library would cost more
//! than the picker that is measured.
//!
//! Source: `ProcessingRequest` and `ProcessingResponse` of Envoy's `external_processor.proto`,
//! "Length-Prefixed-Message" of gRPC over HTTP/2.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes before each message of gRPC: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// Headers as Envoy sends them for a request of `body_bytes`.
fn headers(body_bytes: usize) -> Vec<(&'static str, String)> {
    let fixed = [
        (":authority", "gateway"),
        (":path", "/v1/chat/completions"),
        (":method", "POST"),
        (":scheme", "http"),
        ("user-agent", "OpenAI/Python 3.52.0"),
        ("accept", "application/json"),
        ("content-type", "application/json"),
        ("authorization", "Bearer secret"),
        ("x-forwarded-proto", "http"),
        ("x-request-id", "0e1c9b5e-8f5c-4f1b-9d2f-6a1b7c3d4e5f"),
    ];
    let mut all: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).into();
    all.push(("content-length", body_bytes.to_string()));
    all
}

/// A request as a data plane sends it in full duplex: its head, then its body in pieces of at most
/// `chunk_bytes`, the last of which ends it.
pub(crate) fn request(body: &[u8], chunk_bytes: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(body.len() + 2048);
    let mut map = Vec::new();
    for (name, value) in headers(body.len()) {
        let mut header = Vec::new();
        field(&mut header, 1, name.as_bytes());
        field(&mut header, 3, value.as_bytes());
        field(&mut map, 1, &header);
    }
    let (mut head, mut message) = (Vec::new(), Vec::new());
    field(&mut head, 1, &map);
    field(&mut message, 2, &head);
    frame(&mut out, &[&message]);
    let pieces = body.chunks(chunk_bytes);
    let last = pieces.len().saturating_sub(1);
    for (index, piece) in pieces.enumerate() {
        let end: &[u8] = if index == last { &[2 << 3, 1] } else { &[] };
        let (mut inner, mut outer) = (Vec::new(), Vec::new());
        key(&mut inner, 1, piece.len());
        key(&mut outer, 4, inner.len() + piece.len() + end.len());
        frame(&mut out, &[&outer, &inner, piece, end]);
    }
    out.freeze()
}

fn frame(out: &mut BytesMut, parts: &[&[u8]]) {
    out.put_u8(0);
    out.put_u32(parts.iter().map(|part| part.len() as u32).sum());
    parts.iter().for_each(|part| out.put_slice(part));
}

/// Key and length of a field that consists of bytes.
fn key(out: &mut Vec<u8>, number: u8, mut length: usize) {
    out.push(number << 3 | 2);
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    key(out, number, bytes.len());
    out.extend_from_slice(bytes);
}

/// Answers of a picker, as they come.
#[derive(Default)]
pub(crate) struct Answers {
    buffer: BytesMut,
    /// Whether the head has been answered.
    head: bool,
}

/// What is known after some bytes.
pub(crate) enum Progress {
    /// More must come.
    Going,
    /// Head and whole body have been answered: a data plane would send the request on.
    Picked,
    /// The picker answered the client itself.
    Refused,
}

impl Answers {
    /// Takes bytes of the answer.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Progress {
        self.buffer.extend_from_slice(bytes);
        while let Some(message) = self.message() {
            if bytes_of(&message, 7).is_some() {
                return Progress::Refused;
            }
            self.head |= bytes_of(&message, 1).is_some();
            if self.head && ends_body(&message) {
                return Progress::Picked;
            }
        }
        Progress::Going
    }

    fn message(&mut self) -> Option<BytesMut> {
        let mut prefix = self.buffer.get(1..PREFIX_BYTES)?;
        let length = prefix.get_u32() as usize;
        if self.buffer.len() < PREFIX_BYTES + length {
            return None;
        }
        self.buffer.advance(PREFIX_BYTES);
        Some(self.buffer.split_to(length))
    }
}

/// Whether this is the last piece of a request's body, which comes back as a `BodyResponse` with a
/// `CommonResponse` with a `BodyMutation` with a `StreamedBodyResponse`.
fn ends_body(message: &[u8]) -> bool {
    let streamed = [3, 1, 3, 3].into_iter().try_fold(message, bytes_of);
    streamed.is_some_and(|streamed| fields(streamed).any(|found| found == Field::Number(2, 1)))
}

fn bytes_of(message: &[u8], wanted: u64) -> Option<&[u8]> {
    fields(message).find_map(|found| match found {
        Field::Bytes(number, bytes) if number == wanted => Some(bytes),
        _ => None,
    })
}

/// A field's number and value.
#[derive(PartialEq)]
enum Field<'a> {
    Number(u64, u64),
    Bytes(u64, &'a [u8]),
}

/// The fields of a message, up to the first that it cannot have.
fn fields(mut message: &[u8]) -> impl Iterator<Item = Field<'_>> {
    std::iter::from_fn(move || {
        let key = varint(&mut message)?;
        let value = varint(&mut message)?;
        match key & 7 {
            0 => Some(Field::Number(key >> 3, value)),
            2 => {
                let (bytes, rest) = message.split_at_checked(usize::try_from(value).ok()?)?;
                message = rest;
                Some(Field::Bytes(key >> 3, bytes))
            }
            _ => None,
        }
    })
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
