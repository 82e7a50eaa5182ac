//! Reading a message of a data plane.

use crate::ext_proc::message::{Direction, HeadFields, Incoming, Part};
use crate::ext_proc::settings::{BodyMode, Modes};
use crate::ext_proc::{prefix_hashes, subset};
use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::google::protobuf::value::Kind;
use prost::Message;
use stator_protos::header::{LB_NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE};

/// Reason for which bytes are no message.
#[derive(Debug, thiserror::Error, PartialEq)]
pub(crate) enum WireError {
    #[error("the message ends within a field")]
    Truncated,
    #[error("a number has more than 64 bits")]
    Overlong,
    #[error("a field has number 0")]
    NoField,
    #[error("wire type {0} is not known")]
    WireType(u8),
    #[error("the name of a header is not UTF-8")]
    HeaderName,
    #[error("metadata: {0}")]
    Metadata(#[from] prost::DecodeError),
}

/// Reads a `ProcessingRequest`. Bodies are slices of `frame`.
///
/// # Errors
///
/// When it is none. Fields that we do not know are passed over.
pub(crate) fn decode(frame: &Bytes) -> Result<Incoming, WireError> {
    let mut message = Incoming::default();
    let mut fields = Reader(frame);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (2, Value::Bytes(b)) => message.part = Some(headers(Direction::Request, b)?),
            (3, Value::Bytes(b)) => message.part = Some(headers(Direction::Response, b)?),
            (4, Value::Bytes(b)) => message.part = Some(body(frame, Direction::Request, b)?),
            (5, Value::Bytes(b)) => message.part = Some(body(frame, Direction::Response, b)?),
            (6, Value::Bytes(_)) => message.part = Some(trailers(Direction::Request)),
            (7, Value::Bytes(_)) => message.part = Some(trailers(Direction::Response)),
            (8, Value::Bytes(b)) => {
                metadata(&frame.slice_ref(b), &mut message)?;
            }
            (10, Value::Number(flag)) => message.observing = flag != 0,
            (11, Value::Bytes(b)) => message.modes = Some(modes(b)?),
            _ => {}
        }
    }
    Ok(message)
}

fn trailers(direction: Direction) -> Part {
    Part::Trailers { direction }
}

/// `HttpHeaders`.
fn headers(direction: Direction, bytes: &[u8]) -> Result<Part, WireError> {
    let (mut fields, mut end) = (HeadFields::default(), false);
    let mut message = Reader(bytes);
    while let Some((number, value)) = message.next()? {
        match (number, value) {
            (1, Value::Bytes(map)) => {
                fields.headers.reserve(16);
                let mut entries = Reader(map);
                while let Some((number, value)) = entries.next()? {
                    if let (1, Value::Bytes(entry)) = (number, value) {
                        header(entry, &mut fields)?;
                    }
                }
            }
            (3, Value::Number(flag)) => end = flag != 0,
            _ => {}
        }
    }
    Ok(Part::Headers { direction, fields, end })
}

/// `HeaderValue`. A data plane fills `raw_value` or `value`, and some do one for this header and
/// the other for that.
fn header(bytes: &[u8], fields: &mut HeadFields) -> Result<(), WireError> {
    let (mut name, mut text, mut raw): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
    let mut entry = Reader(bytes);
    while let Some((number, value)) = entry.next()? {
        match (number, value) {
            (1, Value::Bytes(b)) => name = b,
            (2, Value::Bytes(b)) => text = b,
            (3, Value::Bytes(b)) => raw = b,
            _ => {}
        }
    }
    let value = if raw.is_empty() { text } else { raw };
    fields.size_bytes += name.len() + value.len();
    match name {
        b":method" => fields.method = String::from_utf8_lossy(value).into_owned(),
        b":path" => fields.path = String::from_utf8_lossy(value).into_owned(),
        b":status" => {
            let status = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            fields.status = status.unwrap_or(0);
        }
        // Other pseudo-headers decide nothing here.
        [b':', ..] => {}
        _ => {
            let name = std::str::from_utf8(name).map_err(|_| WireError::HeaderName)?;
            fields.headers.push(name, value);
        }
    }
    Ok(())
}

/// `HttpBody`.
fn body(frame: &Bytes, direction: Direction, bytes: &[u8]) -> Result<Part, WireError> {
    let (mut piece, mut end) = (Bytes::new(), false);
    let mut message = Reader(bytes);
    while let Some((number, value)) = message.next()? {
        match (number, value) {
            (1, Value::Bytes(b)) => piece = frame.slice_ref(b),
            (2, Value::Number(flag)) => end = flag != 0,
            _ => {}
        }
    }
    Ok(Part::Body { direction, bytes: piece, end })
}

/// `ProtocolConfiguration`.
fn modes(bytes: &[u8]) -> Result<Modes, WireError> {
    // A mode of 0 is not written: what is not there is `NONE`.
    let mut modes = Modes { request: BodyMode::None, response: BodyMode::None, eager: false };
    let mut message = Reader(bytes);
    while let Some((number, value)) = message.next()? {
        match (number, value) {
            (1, Value::Number(mode)) => modes.request = body_mode(mode),
            (2, Value::Number(mode)) => modes.response = body_mode(mode),
            (3, Value::Number(flag)) => modes.eager = flag != 0,
            _ => {}
        }
    }
    Ok(modes)
}

fn body_mode(number: u64) -> BodyMode {
    match number {
        0 => BodyMode::None,
        1 => BodyMode::Streamed,
        2 => BodyMode::Buffered,
        3 => BodyMode::BufferedPartial,
        4 => BodyMode::FullDuplex,
        // Enums are 32 bits wide, however many were written.
        other => BodyMode::Unknown(other as i32),
    }
}

/// The entries of `Metadata` that concern us.
fn metadata(bytes: &Bytes, message: &mut Incoming) -> Result<(), WireError> {
    let metadata = Metadata::decode(bytes.clone())?.filter_metadata;
    let entry = |namespace: &str, key: &str| metadata.get(namespace)?.fields.get(key);
    message.served = match entry(LB_NAMESPACE, SERVED).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StringValue(address)) => Some(address.clone()),
        _ => None,
    };
    message.subset = entry(SUBSET_NAMESPACE, SUBSET).map(subset::parse);
    let hashes = entry(prefix_hashes::NAMESPACE, prefix_hashes::KEY);
    message.prefix_hashes = hashes.map(prefix_hashes::parse);
    Ok(())
}

/// The fields of one message, one after the other.
struct Reader<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// 32 or 64 bits, which no field of ours is.
    Fixed,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            other => return Err(WireError::WireType(other as u8)),
        };
        match key >> 3 {
            0 => Err(WireError::NoField),
            number => Ok(Some((number, value))),
        }
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], WireError> {
        let length = usize::try_from(length).map_err(|_| WireError::Truncated)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(WireError::Truncated)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(WireError::Overlong)
    }
}
