//! Writing a message to a data plane.

use crate::ext_proc::body::total;
use crate::ext_proc::message::{
    BodyChange, Direction, HeadChange, Immediate, MetaValue, Metadatum, Outgoing, PartAnswer,
};
use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;

/// Most bytes of a number as protobuf writes it.
const VARINT_MAX: usize = 10;

/// Destination of a message's bytes.
pub(crate) trait Sink {
    /// A whole message, which `write` appends.
    fn message(&mut self, write: impl FnOnce(&mut Vec<u8>));
    /// The message that follows has this many bytes.
    fn begin(&mut self, length: usize);
    /// Some bytes of it, to be copied.
    fn copy(&mut self, bytes: &[u8]);
    /// A piece of a body, which can be kept as it is.
    fn piece(&mut self, piece: Bytes);
}

/// Writes a `ProcessingResponse`.
pub(crate) fn encode(message: Outgoing, sink: &mut impl Sink) {
    let Outgoing { answer, metadata } = message;
    match answer {
        PartAnswer::Headers(direction, change) => sink.message(|out| {
            let number = direction.choose(1, 2);
            nested(out, number, |out| nested(out, 1, |out| common(out, &change)));
            dynamic_metadata(out, &metadata);
        }),
        PartAnswer::Trailers(direction) => sink.message(|out| {
            nested(out, direction.choose(5, 6), |_| {});
            dynamic_metadata(out, &metadata);
        }),
        PartAnswer::Refuse(refusal) => sink.message(|out| {
            nested(out, 7, |out| immediate(out, &refusal));
            dynamic_metadata(out, &metadata);
        }),
        PartAnswer::Body(direction, change, body) => {
            let mut rest = Vec::new();
            dynamic_metadata(&mut rest, &metadata);
            encode_body(direction.choose(3, 4), &change, body, &rest, sink);
        }
    }
}

/// A `BodyResponse` in field `number`, then `rest`. The bytes of the body are the innermost of
/// four nested messages and stand first in each, so that what is around them is a prefix of
/// lengths and a suffix of other fields.
fn encode_body(
    number: u32,
    change: &HeadChange,
    body: BodyChange,
    rest: &[u8],
    sink: &mut impl Sink,
) {
    let mut suffix = Vec::new();
    let mut prefix = Prefix::default();
    let pieces = match body {
        BodyChange::Keep => Vec::new(),
        BodyChange::Clear => {
            suffix.extend_from_slice(&[key(2, 0) as u8, 1]);
            prefix.wrap(3, suffix.len());
            Vec::new()
        }
        BodyChange::Replace(pieces) => {
            prefix.wrap(1, total(&pieces));
            prefix.wrap(3, prefix.len() + total(&pieces));
            pieces
        }
        BodyChange::Streamed { pieces, end } => {
            if total(&pieces) > 0 {
                prefix.wrap(1, total(&pieces));
            }
            if end {
                suffix.extend_from_slice(&[key(2, 0) as u8, 1]);
            }
            prefix.wrap(3, prefix.len() + total(&pieces) + suffix.len());
            prefix.wrap(3, prefix.len() + total(&pieces) + suffix.len());
            pieces
        }
    };
    // Lengths are written from the inside out: each message counts the bytes of those within it,
    // and the pieces are never copied.
    common(&mut suffix, change);
    prefix.wrap(1, prefix.len() + total(&pieces) + suffix.len());
    prefix.wrap(number, prefix.len() + total(&pieces) + suffix.len());
    sink.begin(prefix.len() + total(&pieces) + suffix.len() + rest.len());
    sink.copy(prefix.bytes());
    pieces.into_iter().for_each(|piece| sink.piece(piece));
    sink.copy(&suffix);
    sink.copy(rest);
}

/// `CommonResponse`, but for its body.
fn common(out: &mut Vec<u8>, change: &HeadChange) {
    if !change.set.is_empty() || !change.remove.is_empty() {
        nested(out, 2, |out| {
            set_headers(out, &change.set);
            change.remove.iter().for_each(|name| bytes_field(out, 2, name.as_bytes()));
        });
    }
    if change.clear_route_cache {
        number_field(out, 5, 1);
    }
}

/// The `set_headers` of a `HeaderMutation`. The action is always written: data planes differ in
/// what they do without one.
fn set_headers(out: &mut Vec<u8>, set: &[(&'static str, String)]) {
    for (name, value) in set {
        nested(out, 1, |out| {
            nested(out, 1, |out| {
                bytes_field(out, 1, name.as_bytes());
                bytes_field(out, 3, value.as_bytes());
            });
            number_field(out, 3, HeaderAppendAction::OverwriteIfExistsOrAdd as u64);
        });
    }
}

/// `ImmediateResponse`.
fn immediate(out: &mut Vec<u8>, refusal: &Immediate) {
    nested(out, 1, |out| number_field(out, 1, refusal.status.into()));
    if !refusal.set.is_empty() {
        nested(out, 2, |out| set_headers(out, &refusal.set));
    }
    bytes_field(out, 3, &refusal.body);
}

/// The field `dynamic_metadata`: a `Struct` with one for each namespace. Of entries that stand
/// twice the last counts, as in all maps of protobuf.
fn dynamic_metadata(out: &mut Vec<u8>, metadata: &[Metadatum]) {
    if metadata.is_empty() {
        return;
    }
    nested(out, 8, |out| {
        for (at, Metadatum { namespace, .. }) in metadata.iter().enumerate() {
            if metadata[..at].iter().any(|before| before.namespace == *namespace) {
                continue;
            }
            let within = metadata[at..].iter().filter(|entry| entry.namespace == *namespace);
            struct_entry(out, namespace, |out| {
                struct_value(out, |out| {
                    within.for_each(|entry| {
                        struct_entry(out, &entry.key, |out| meta_value(out, &entry.value));
                    });
                });
            });
        }
    });
}

/// An entry in the map of a `Struct`.
fn struct_entry(out: &mut Vec<u8>, key: &str, value: impl FnOnce(&mut Vec<u8>)) {
    nested(out, 1, |out| {
        bytes_field(out, 1, key.as_bytes());
        nested(out, 2, value);
    });
}

/// The value of a `Value` that holds a `Struct`.
fn struct_value(out: &mut Vec<u8>, entries: impl FnOnce(&mut Vec<u8>)) {
    nested(out, 5, entries);
}

fn meta_value(out: &mut Vec<u8>, value: &MetaValue) {
    match value {
        MetaValue::Text(text) => bytes_field(out, 3, text.as_bytes()),
        MetaValue::Number(number) => double_field(out, 2, *number),
        MetaValue::Scores(scores) => struct_value(out, |out| {
            for (address, score) in scores {
                struct_entry(out, &address.to_string(), |out| double_field(out, 2, *score));
            }
        }),
    }
}

impl Direction {
    fn choose(self, request: u32, response: u32) -> u32 {
        match self {
            Self::Request => request,
            Self::Response => response,
        }
    }
}

fn key(number: u32, wire_type: u32) -> u32 {
    number << 3 | wire_type
}

/// A number as protobuf writes it, and how many bytes that takes.
fn varint_of(mut number: u64) -> ([u8; VARINT_MAX], usize) {
    let (mut bytes, mut size) = ([0; VARINT_MAX], 1);
    while number >= 0x80 {
        bytes[size - 1] = number as u8 | 0x80;
        number >>= 7;
        size += 1;
    }
    bytes[size - 1] = number as u8;
    (bytes, size)
}

fn varint(out: &mut Vec<u8>, number: u64) {
    let (bytes, size) = varint_of(number);
    out.extend_from_slice(&bytes[..size]);
}

fn number_field(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, key(number, 0).into());
    varint(out, value);
}

fn double_field(out: &mut Vec<u8>, number: u32, value: f64) {
    varint(out, key(number, 1).into());
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes_field(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, key(number, 2).into());
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A message in a field. Its length is known when it is written; where that takes more than the
/// one byte that most need, what was written moves.
fn nested(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    varint(out, key(number, 2).into());
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
    } else {
        let (bytes, size) = varint_of(length as u64);
        out.splice(at..=at, bytes[..size].iter().copied());
    }
}

/// Keys and lengths before a body, written from the innermost outwards.
struct Prefix {
    bytes: [u8; Self::MAX],
    begin: usize,
}

impl Prefix {
    /// Five nested fields, each with a key of one byte and a length.
    const MAX: usize = 5 * (1 + VARINT_MAX);

    /// Puts the key of field `number` and `length` before what there is. Field numbers are below
    /// 16: their keys have one byte.
    fn wrap(&mut self, number: u32, length: usize) {
        let (length, size) = varint_of(length as u64);
        let end = self.begin;
        self.begin = end - (size + 1);
        self.bytes[self.begin] = key(number, 2) as u8;
        self.bytes[self.begin + 1..end].copy_from_slice(&length[..size]);
    }

    fn len(&self) -> usize {
        Self::MAX - self.begin
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self { bytes: [0; Self::MAX], begin: Self::MAX }
    }
}
