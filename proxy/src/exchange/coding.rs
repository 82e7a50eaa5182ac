//! Bodies that come compressed.

use super::Exchange;
use bytes::{Buf, Bytes, BytesMut};
use flate2::{Decompress, FlushDecompress, Status};
use http::{StatusCode, header};
use stator_api::openai::error::ApiError;
use std::io::{ErrorKind, Read};

/// Bytes that are unpacked at a time; other requests have their turn in between.
const PIECE_BYTES: usize = 64 << 10;
/// Largest window of zstd, as the logarithm of its bytes: 8 MiB, which its usual levels keep to.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// A coding of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyCoding {
    Gzip,
    Deflate,
    Zstd,
}

impl BodyCoding {
    /// The coding of this name, in lower case.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Unpacks as it is read.
    fn reader(self, body: Bytes) -> std::io::Result<Box<dyn Read + Send>> {
        let body = body.reader();
        Ok(match self {
            Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(body)),
            Self::Deflate => Box::new(ZlibReader::new(body.into_inner())),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(body)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
        })
    }
}

/// A body in `deflate`, which is one zlib stream from its first byte to its last. The reader of `flate2`
/// takes the beginning of a stream for all of it.
struct ZlibReader {
    rest: Bytes,
    stream: Decompress,
    has_ended: bool,
}

impl ZlibReader {
    fn new(body: Bytes) -> Self {
        Self { rest: body, stream: Decompress::new(true), has_ended: false }
    }
}

impl Read for ZlibReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let odd = |kind, why: &str| Err(std::io::Error::new(kind, why));
        if out.is_empty() {
            return Ok(0);
        }
        while !self.has_ended {
            let (read, written) = (self.stream.total_in(), self.stream.total_out());
            let status = self.stream.decompress(&self.rest, out, FlushDecompress::None)?;
            let read = (self.stream.total_in() - read) as usize;
            let written = (self.stream.total_out() - written) as usize;
            self.rest.advance(read);
            self.has_ended = status == Status::StreamEnd;
            if written > 0 {
                return Ok(written);
            }
            if read == 0 && !self.has_ended {
                return odd(ErrorKind::UnexpectedEof, "the stream has no end");
            }
        }
        if !self.rest.is_empty() {
            return odd(ErrorKind::InvalidData, "bytes follow the end of the stream");
        }
        Ok(0)
    }
}

/// A body that is unpacked piece by piece, within a limit.
pub(crate) struct Unpacking {
    reader: Box<dyn Read + Send>,
    piece: Vec<u8>,
    plain: BytesMut,
    limit: usize,
}

impl Unpacking {
    /// Begins with a body whose plain form may have `limit` bytes; pieces have `piece_bytes` at most.
    ///
    /// # Errors
    ///
    /// When there is no memory for the coding.
    pub(crate) fn new(
        coding: BodyCoding,
        body: Bytes,
        limit: usize,
        piece_bytes: usize,
    ) -> Result<Self, ApiError> {
        let reader = coding.reader(body).map_err(|error| faulty(&error))?;
        Ok(Self { reader, piece: vec![0; piece_bytes], plain: BytesMut::new(), limit })
    }

    /// Unpacks the next piece; returns its bytes, none at the end. [`Unpacking::keep`] appends it.
    ///
    /// # Errors
    ///
    /// 400 for bytes that are not in their coding, 413 past the limit.
    pub(crate) fn next(&mut self) -> Result<usize, ApiError> {
        let count = self.reader.read(&mut self.piece).map_err(|error| faulty(&error))?;
        let length = self.plain.len() + count;
        match length > self.limit {
            true => Err(ApiError::body_too_large(length, self.limit)),
            false => Ok(count),
        }
    }

    /// Appends the first `count` bytes of the piece.
    pub(crate) fn keep(&mut self, count: usize) {
        self.plain.extend_from_slice(&self.piece[..count]);
    }

    /// The plain body.
    pub(crate) fn finish(self) -> Bytes {
        self.plain.freeze()
    }
}

fn faulty(error: &std::io::Error) -> ApiError {
    ApiError::bad_request(format!("the body is not in its content-encoding: {error}"))
        .with_code("invalid_content_encoding")
}

impl Exchange {
    /// Reads the whole body, unpacked if it comes compressed. What it unpacks to is bounded as a
    /// body is, while it is unpacked.
    ///
    /// # Errors
    ///
    /// As [`Exchange::body`]; 415 for a coding that is not known, and 400 for bytes that are not in
    /// their coding.
    pub(crate) async fn unpacked_body(&mut self) -> Result<Bytes, ApiError> {
        let coding = self.coding()?;
        let body = self.body().await?;
        let Some(coding) = coding else { return Ok(body) };
        let plain = self.unpack(coding, body).await?;
        // Whoever gets the body next gets it as it is now.
        self.session.req_header_mut().remove_header(&header::CONTENT_ENCODING);
        Ok(plain)
    }

    fn coding(&self) -> Result<Option<BodyCoding>, ApiError> {
        let Some(value) = self.header_bytes(header::CONTENT_ENCODING.as_str()) else {
            return Ok(None);
        };
        let name = String::from_utf8_lossy(value).trim().to_ascii_lowercase();
        if name.is_empty() || name == "identity" {
            return Ok(None);
        }
        BodyCoding::of(&name).map(Some).ok_or_else(|| {
            let name: String = name.chars().take(40).collect();
            let message = format!(
                "the content-encoding {name:?} is not supported, only gzip, deflate and zstd"
            );
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            ApiError::new(status, "invalid_request_error", message)
                .with_code("unsupported_content_encoding")
        })
    }

    async fn unpack(&mut self, coding: BodyCoding, body: Bytes) -> Result<Bytes, ApiError> {
        let limit = self.door.limits().body_bytes;
        let mut unpacking = Unpacking::new(coding, body, limit, PIECE_BYTES)?;
        loop {
            let count = unpacking.next()?;
            if count == 0 {
                return Ok(unpacking.finish());
            }
            self.make_room(count).await?;
            unpacking.keep(count);
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use std::io::Write;

    /// The plain body, or the status of the refusal.
    fn unpacked(name: &str, body: &[u8], limit: usize, piece: usize) -> Result<Vec<u8>, u16> {
        let status = |error: ApiError| error.status.as_u16();
        let coding = BodyCoding::of(name).expect("a coding");
        let body = Bytes::copy_from_slice(body);
        let mut unpacking = Unpacking::new(coding, body, limit, piece).map_err(status)?;
        loop {
            match unpacking.next().map_err(status)? {
                0 => return Ok(unpacking.finish().to_vec()),
                count => unpacking.keep(count),
            }
        }
    }

    #[test]
    fn a_body_that_breaks_off_or_goes_on_is_refused_in_every_coding() {
        let text = b"a body, a body, a body".repeat(50);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&text).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&text).unwrap();
        let bodies = [
            ("gzip", gzip.finish().unwrap()),
            ("deflate", zlib.finish().unwrap()),
            ("zstd", zstd::encode_all(&*text, 3).unwrap()),
        ];
        for (name, packed) in bodies {
            for piece in [1, 7, PIECE_BYTES] {
                assert_eq!(unpacked(name, &packed, text.len(), piece), Ok(text.clone()), "{name}");
            }
            assert_eq!(unpacked(name, &packed, text.len() - 1, 64), Err(413), "{name}");
            for end in 1..packed.len() {
                assert_eq!(unpacked(name, &packed[..end], 1 << 20, 64), Err(400), "{name} {end}");
            }
            let longer = [&packed[..], b"x"].concat();
            assert_eq!(unpacked(name, &longer, 1 << 20, 64), Err(400), "{name}");
        }
    }
}
