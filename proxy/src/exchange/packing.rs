//! Answers that go out compressed: whole ones that are large, to clients that take them so.
//!
//! Events are never compressed: they would wait in the encoder, and many clients unpack only what
//! has ended.

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pingora::http::ResponseHeader;
use std::io::Write;
use zstd::stream::write::Encoder as ZstdEncoder;

/// Smallest body that is compressed, in bytes: a shorter one fits a few packets anyway.
const LARGE_BYTES: usize = 8 << 10;
/// Parts up to this size are packed where they are written, in bytes.
const INLINE_MAX_BYTES: usize = 64 << 10;
const TAKES_ALL: &str = "a vector takes all";
/// Level of both codings: the fastest, because embeddings hardly get smaller with more work.
const LEVEL: u32 = 1;

/// A coding of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerCoding {
    Gzip,
    Zstd,
}

/// Compresses one answer.
pub(crate) enum Packer {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
}

impl AnswerCoding {
    /// The coding that a client likes best, if it takes any; of two that it likes alike, zstd,
    /// which takes less time.
    ///
    /// Source: RFC 9110, section 12.5.3.
    pub(crate) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let Weights { gzip, zstd, plain } = Weights::of(headers);
        let weights = [(gzip, Self::Gzip), (zstd, Self::Zstd)];
        let (weight, coding) = weights.into_iter().max_by_key(|(weight, _)| *weight)?;
        (weight > 0 && weight >= plain).then_some(coding)
    }

    /// The coding's name in a head.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// Whether a client takes a body that is there in gzip only.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    Weights::of(headers).gzip > 0
}

/// How much a client likes each coding, in thousandths; zero is not at all.
struct Weights {
    gzip: u32,
    zstd: u32,
    plain: u32,
}

impl Weights {
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT_ENCODING);
        let listed = values.iter().filter_map(|value| value.to_str().ok());
        let listed = listed.flat_map(|value| value.split(',')).filter_map(weighed);
        let (mut gzip, mut zstd, mut any, mut plain) = (None, None, None, None);
        for (name, weight) in listed {
            let place = match name.to_ascii_lowercase().as_str() {
                "gzip" | "x-gzip" => &mut gzip,
                "zstd" => &mut zstd,
                "*" => &mut any,
                "identity" => &mut plain,
                _ => continue,
            };
            *place = Some(weight);
        }
        let [gzip, zstd] = [gzip, zstd].map(|weight| weight.or(any).unwrap_or(0));
        Self { gzip, zstd, plain: plain.unwrap_or(0) }
    }
}

/// A coding's name and its weight in thousandths; `None` for what is no coding.
fn weighed(item: &str) -> Option<(&str, u32)> {
    let (name, parameters) = item.split_once(';').unwrap_or((item, "q=1"));
    let weight = parameters.trim().strip_prefix(['q', 'Q'])?.trim_start().strip_prefix('=')?;
    let weight: f32 = weight.trim().parse().ok()?;
    (0.0..=1.0).contains(&weight).then(|| (name.trim(), (weight * 1000.0) as u32))
}

impl Packer {
    /// Compresses the answer with this head, where that is worth it and the client takes it: the
    /// head then says so, and has no length.
    pub(crate) fn of(
        method: &Method,
        request: &HeaderMap,
        head: &mut ResponseHeader,
    ) -> Option<Self> {
        let length = head.headers.get(CONTENT_LENGTH)?.to_str().ok()?;
        let is_large = length.parse().is_ok_and(|length: usize| length >= LARGE_BYTES);
        let packs =
            is_large && *method != Method::HEAD && head.status != StatusCode::PARTIAL_CONTENT;
        if !packs || head.headers.contains_key(CONTENT_ENCODING) || !is_text(&head.headers) {
            return None;
        }
        // Whoever keeps the answer for others keeps it for those who sent the same.
        let vary = head.append_header(VARY, HeaderValue::from_static("accept-encoding"));
        let coding = AnswerCoding::accepted(request).filter(|_| vary.is_ok())?;
        head.insert_header(CONTENT_ENCODING, HeaderValue::from_static(coding.name())).ok()?;
        head.remove_header(&CONTENT_LENGTH);
        Some(Self::new(coding))
    }

    /// Compresses an answer in this coding.
    pub(crate) fn new(coding: AnswerCoding) -> Self {
        match coding {
            AnswerCoding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::new(LEVEL))),
            AnswerCoding::Zstd => {
                let encoder = ZstdEncoder::new(Vec::new(), LEVEL.cast_signed());
                Self::Zstd(encoder.expect("the level is one of zstd's"))
            }
        }
    }

    /// Takes a part of the body; returns what is packed of it and of those before.
    pub(crate) fn push(&mut self, part: &[u8]) -> Bytes {
        beside(part, || match self {
            Self::Gzip(encoder) => {
                encoder.write_all(part).expect(TAKES_ALL);
                std::mem::take(encoder.get_mut()).into()
            }
            Self::Zstd(encoder) => {
                encoder.write_all(part).expect(TAKES_ALL);
                std::mem::take(encoder.get_mut()).into()
            }
        })
    }

    /// Takes the last part; returns the rest of what is packed.
    pub(crate) fn end(mut self, part: &[u8]) -> Bytes {
        let packed = self.push(part);
        let end = match self {
            Self::Gzip(encoder) => encoder.finish().expect(TAKES_ALL),
            Self::Zstd(encoder) => encoder.finish().expect(TAKES_ALL),
        };
        if packed.is_empty() { end.into() } else { [&packed[..], &end].concat().into() }
    }
}

/// Packs a part so that a large one does not keep other requests waiting.
fn beside<T>(part: &[u8], pack: impl FnOnce() -> T) -> T {
    match part.len() > INLINE_MAX_BYTES {
        true => tokio::task::block_in_place(pack),
        false => pack(),
    }
}

/// Whether an answer is text of a kind that gets smaller, and no stream.
fn is_text(head: &HeaderMap) -> bool {
    let kind = head.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let is = |name: &str| {
        kind.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
    };
    !is("text/event-stream")
        && (is("application/json") || is("text/") || is("application/openmetrics-text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn accepted(value: &str) -> Option<AnswerCoding> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
        AnswerCoding::accepted(&headers)
    }

    #[test]
    fn the_client_says_which_codings_it_takes() {
        use AnswerCoding::{Gzip, Zstd};
        for (value, coding) in [
            ("gzip, deflate", Some(Gzip)),
            ("gzip, deflate, br, zstd", Some(Zstd)),
            ("GZIP;q=1.0, zstd; Q=0.5", Some(Gzip)),
            ("gzip;q=0", None),
            ("gzip;q=0, *", Some(Zstd)),
            ("*;q=0.1", Some(Zstd)),
            ("identity, gzip;q=0.5", None),
            ("identity;q=0.5, gzip", Some(Gzip)),
            ("br", None),
            ("", None),
            ("gzip;q=2", None),
            ("gzip;level=1", None),
        ] {
            assert_eq!(accepted(value), coding, "{value}");
        }
        assert_eq!(AnswerCoding::accepted(&HeaderMap::new()), None);
    }

    /// The head of a whole answer, and whether its body is packed.
    fn check(kind: &str, bytes: usize, method: Method) -> (HeaderMap, bool) {
        let mut request = HeaderMap::new();
        request.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let mut head = ResponseHeader::build(200, None).unwrap();
        head.insert_header(CONTENT_TYPE, kind.to_owned()).unwrap();
        head.insert_header(CONTENT_LENGTH, bytes).unwrap();
        let packs = Packer::of(&method, &request, &mut head).is_some();
        (head.headers.clone(), packs)
    }

    #[test]
    fn whole_answers_that_are_large_are_packed() {
        let (head, packs) = check("application/json", LARGE_BYTES, Method::POST);
        assert!(packs && !head.contains_key(CONTENT_LENGTH));
        assert_eq!(
            (&head[CONTENT_ENCODING], &head[VARY]),
            (&"gzip".parse().unwrap(), &"accept-encoding".parse().unwrap())
        );
        for (kind, bytes, method) in [
            ("application/json", LARGE_BYTES - 1, Method::POST),
            ("application/json", LARGE_BYTES, Method::HEAD),
            ("text/event-stream", LARGE_BYTES, Method::POST),
            ("image/png", LARGE_BYTES, Method::GET),
        ] {
            let (head, packs) = check(kind, bytes, method);
            assert!(!packs && head.contains_key(CONTENT_LENGTH), "{kind} {bytes}");
        }
    }

    #[test]
    fn what_is_packed_in_parts_unpacks_to_the_whole() {
        let text = "0.0123456789, ".repeat(10_000);
        for coding in [AnswerCoding::Gzip, AnswerCoding::Zstd] {
            let mut packer = Packer::new(coding);
            let mut packed = Vec::new();
            for part in text.as_bytes().chunks(777) {
                packed.extend_from_slice(&packer.push(part));
            }
            packed.extend_from_slice(&packer.end(b""));
            assert!(packed.len() < text.len() / 10, "{coding:?}: {}", packed.len());
            let mut unpacked = String::new();
            match coding {
                AnswerCoding::Gzip => {
                    flate2::read::GzDecoder::new(&*packed).read_to_string(&mut unpacked).unwrap();
                }
                AnswerCoding::Zstd => {
                    let bytes = zstd::stream::decode_all(&*packed).unwrap();
                    unpacked = String::from_utf8(bytes).unwrap();
                }
            }
            assert_eq!(unpacked, text, "{coding:?}");
        }
    }
}
