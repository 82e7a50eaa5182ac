//! Bodies that come compressed, and answers that go out so.

use crate::exchange::coding::{BodyCoding, Unpacking};
use crate::exchange::packing::{AnswerCoding, Packer};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};
use std::io::Write;

/// Bytes that a body may unpack to.
const LIMIT_BYTES: usize = 16 << 10;
/// Bytes that are unpacked at a time where nothing else is said.
const PIECE_BYTES: usize = 64 << 10;
const CODINGS: [&str; 3] = ["gzip", "deflate", "zstd"];

/// A body unpacks to the same bytes whatever its pieces, within the limit, or is refused. Bytes that
/// one of the codings' own packers made of it unpack to it, and are refused where they break off.
pub fn packed_body(coding: u8, piece_bytes: u8, body: &[u8]) {
    let name = CODINGS[usize::from(coding) % CODINGS.len()];
    let piece_bytes = usize::from(piece_bytes) + 1;
    let whole = unpacked(name, body, LIMIT_BYTES, PIECE_BYTES);
    let pieces = unpacked(name, body, LIMIT_BYTES, piece_bytes);
    assert_eq!(whole.clone().ok(), pieces.clone().ok(), "pieces of {piece_bytes} bytes");
    for refused in [&whole, &pieces].into_iter().filter_map(|read| read.as_ref().err()) {
        assert!([400, 413].contains(refused), "{refused}");
    }
    if let Some(less) = whole.as_ref().ok().and_then(|plain| plain.len().checked_sub(1)) {
        assert_eq!(unpacked(name, body, less, piece_bytes), Err(413));
    }
    let plain = body.get(..LIMIT_BYTES).unwrap_or(body);
    let packed = packed(name, plain, piece_bytes);
    assert_eq!(unpacked(name, &packed, LIMIT_BYTES, piece_bytes).as_deref(), Ok(plain));
    let end = 1 + (piece_bytes + body.len()) % (packed.len() - 1);
    assert_eq!(unpacked(name, &packed[..end], LIMIT_BYTES, piece_bytes), Err(400), "{name} {end}");
}

/// The coding of an answer is one that the header names, and the same in whatever lines and case the
/// header comes. Parts of an answer unpack to all of it.
pub fn packed_answer(accepted: &[u8], parts: &[Bytes]) {
    let coding = chosen([accepted]);
    assert_eq!(chosen([&*accepted.to_ascii_uppercase()]), coding);
    if is_text(accepted) {
        assert_eq!(chosen(accepted.split(|byte| *byte == b',')), coding);
        let with = |more: &str| chosen([&*[accepted, more.as_bytes()].concat()]);
        assert_eq!(with(", gzip;q=0, zstd;q=0"), None);
        assert_eq!(with(", gzip;q=0, zstd;q=1"), Some(AnswerCoding::Zstd));
        assert_eq!(with(", gzip;q=1, zstd;q=0.5"), Some(AnswerCoding::Gzip));
        assert_eq!(with(", gzip;q=0.5, zstd;q=0.5, identity;q=0.75"), None);
    } else {
        assert_eq!(coding, None, "what is no text is passed over");
    }
    let Some(coding) = coding else { return };
    let named = String::from_utf8_lossy(accepted).to_ascii_lowercase();
    assert!(named.contains(coding.name()) || named.contains('*'), "{named}");
    let mut packer = Packer::new(coding);
    let mut packed: Vec<u8> = parts.iter().flat_map(|part| packer.push(part)).collect();
    packed.extend(packer.end(b""));
    let plain = parts.concat();
    assert_eq!(unpacked(coding.name(), &packed, plain.len(), PIECE_BYTES), Ok(plain));
}

/// The plain body, or the status of the refusal.
fn unpacked(name: &str, body: &[u8], limit: usize, piece_bytes: usize) -> Result<Vec<u8>, u16> {
    let coding = BodyCoding::of(name).expect("the coding is known");
    let body = Bytes::copy_from_slice(body);
    let unpacking = Unpacking::new(coding, body, limit, piece_bytes);
    let mut unpacking = unpacking.expect("there is memory");
    loop {
        match unpacking.next() {
            Ok(0) => return Ok(unpacking.finish().to_vec()),
            Ok(count) => unpacking.keep(count),
            Err(error) => return Err(error.status.as_u16()),
        }
    }
}

fn packed(name: &str, plain: &[u8], part_bytes: usize) -> Vec<u8> {
    let coding = match name {
        "gzip" => AnswerCoding::Gzip,
        "zstd" => AnswerCoding::Zstd,
        _ => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(plain).expect("a vector takes all");
            return encoder.finish().expect("a vector takes all");
        }
    };
    let mut packer = Packer::new(coding);
    let mut packed = Vec::new();
    plain.chunks(part_bytes).for_each(|part| packed.extend(packer.push(part)));
    packed.extend(packer.end(b""));
    packed
}

/// The coding for a header in these lines; none where one of them cannot be a header's.
fn chosen<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Option<AnswerCoding> {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(ACCEPT_ENCODING, HeaderValue::from_bytes(line).ok()?);
    }
    AnswerCoding::accepted(&headers)
}

/// Whether a header's value is read as text; any other value is passed over.
fn is_text(value: &[u8]) -> bool {
    value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
}
