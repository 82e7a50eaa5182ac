//! Bodies that come compressed.

use super::Exchange;
use bytes::{Buf, Bytes, BytesMut};
use http::{StatusCode, header};
use stator_api::openai::error::ApiError;
use std::io::Read;

/// Bytes that are unpacked at a time; other requests have their turn in between.
const PIECE_BYTES: usize = 64 << 10;
/// Largest window of zstd, as the logarithm of its bytes: 8 MiB, which its usual levels keep to.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// A coding of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyCoding {
    Gzip,
    Deflate,
    Zstd,
}

impl BodyCoding {
    fn of(name: &str) -> Option<Self> {
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
            Self::Deflate => Box::new(flate2::read::ZlibDecoder::new(body)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(body)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
        })
    }
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
        let faulty = |error: std::io::Error| {
            ApiError::bad_request(format!("the body is not in its content-encoding: {error}"))
                .with_code("invalid_content_encoding")
        };
        let mut reader = coding.reader(body).map_err(faulty)?;
        let (mut plain, mut piece) = (BytesMut::new(), vec![0; PIECE_BYTES]);
        loop {
            let count = reader.read(&mut piece).map_err(faulty)?;
            if count == 0 {
                return Ok(plain.freeze());
            }
            let length = plain.len() + count;
            if length > limit {
                return Err(ApiError::body_too_large(length, limit));
            }
            self.make_room(count).await?;
            plain.extend_from_slice(&piece[..count]);
            tokio::task::yield_now().await;
        }
    }
}
