//! A small HTTP/1.1 client: one request at a time over one kept connection, into one buffer.
//!
//! Metrics pages are fetched up to twenty times a second from each endpoint, where the overhead of
//! a general client (tasks, channels, frames) would dominate. The same client talks to renderers
//! and model hubs.

mod body;
mod buffers;
mod head;
mod replay;
mod tls;
mod url;

pub use buffers::Buffers;
pub use replay::{Replayed, replay};
pub use tls::{TlsError, TlsOptions};
pub use url::{Url, UrlError};

use body::Chunks;
use buffers::Buffer;
use head::{Head, Length};
use rustls::ClientConfig;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Largest head of a response, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Room for one read.
const READ_BYTES: usize = 16 << 10;

/// Reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The connection could not be made, or broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The host cannot be the name on a certificate.
    #[error("{host:?} is not a name that a certificate can have")]
    ServerName {
        /// The host.
        host: String,
    },
    /// The response is not HTTP.
    #[error("malformed response: {0}")]
    Malformed(&'static str),
    /// The response exceeds the limit.
    #[error("response of more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

/// Server to send requests to.
#[derive(Clone, Debug)]
pub struct Origin {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// TLS configuration; `None` speaks plain HTTP.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A bearer token that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(String);

impl Bearer {
    /// Makes a token; `None` for a key with characters that no header may contain.
    pub fn new(key: &str) -> Option<Self> {
        key.bytes().all(|byte| matches!(byte, b' '..=b'~')).then(|| Self(key.to_owned()))
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer(..)")
    }
}

/// A response, in the connection's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The status.
    pub status: u16,
    /// The target of a redirection.
    pub location: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection that is made on first use, kept, and remade after a loss.
pub struct Connection {
    origin: Origin,
    io: Option<Box<dyn Io>>,
    buffer: Buffer,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { origin, io, .. } = self;
        f.debug_struct("Connection").field("to", origin).field("up", &io.is_some()).finish()
    }
}

impl Connection {
    /// Makes a connection object; the connection itself is made on first use.
    pub fn new(origin: Origin) -> Self {
        Self::sharing(origin, Arc::default())
    }

    /// Makes a connection that shares `buffers` with others. It holds a buffer only from the first
    /// byte of a response until [`Connection::done`]: of many connections few hold one at once, and
    /// those stay in the processor's cache.
    pub fn sharing(origin: Origin, buffers: Arc<Buffers>) -> Self {
        Self { origin, io: None, buffer: Buffer::of(buffers) }
    }

    /// Releases the last response.
    pub fn done(&mut self) {
        self.buffer.give_back();
    }

    /// Whether the connection is up for the next request.
    pub fn is_up(&self) -> bool {
        self.io.is_some()
    }

    /// Sends `request`, a whole HTTP/1.1 request as [`request`] writes it, and reads the response,
    /// at most `limit` bytes of body. If the server closed a kept connection meanwhile, the request
    /// is sent again on a new one, once.
    ///
    /// # Errors
    ///
    /// [`FetchError`]; the connection is then closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection; the next request makes a new one.
    pub async fn exchange(
        &mut self,
        request: &[u8],
        limit: usize,
    ) -> Result<Response<'_>, FetchError> {
        let kept = self.io.take();
        let was_kept = kept.is_some();
        let mut io = match kept {
            Some(io) => io,
            None => connect(&self.origin).await?,
        };
        let first = self.attempt(&mut io, request, limit).await;
        let (head, body) = match first {
            // Nothing had come: it was closed while nobody looked.
            Err(FetchError::Io(_)) if was_kept && self.buffer.bytes.is_empty() => {
                io = connect(&self.origin).await?;
                self.attempt(&mut io, request, limit).await?
            }
            first => first?,
        };
        if head.keep_alive {
            self.io = Some(io);
        }
        let location = head.location.map(|range| &self.buffer.bytes[range]);
        Ok(Response {
            status: head.status,
            location: location.and_then(|bytes| std::str::from_utf8(bytes).ok()),
            body: &self.buffer.bytes[body],
        })
    }

    async fn attempt(
        &mut self,
        io: &mut Box<dyn Io>,
        request: &[u8],
        limit: usize,
    ) -> Result<(Head, Range<usize>), FetchError> {
        self.buffer.bytes.clear();
        io.write_all(request).await?;
        io.flush().await?;
        let buffer = &mut self.buffer;
        let mut searched = 0;
        let head = loop {
            if let Some(head) = Head::parse(&buffer.bytes, searched)? {
                break head;
            }
            if buffer.bytes.len() > HEAD_BYTES_MAX {
                return Err(FetchError::TooLarge { limit: HEAD_BYTES_MAX });
            }
            // The end may be cut in two.
            searched = buffer.bytes.len().saturating_sub(3);
            buffer.more(io).await?;
        };
        let (end, consumed) = read_body(io, buffer, &head, limit).await?;
        // What nobody asked for would be taken for the next answer.
        let keep_alive = head.keep_alive && consumed == buffer.bytes.len();
        let body = head.size..end;
        Ok((Head { keep_alive, ..head }, body))
    }
}

/// Reads the body; returns its end in the buffer, and the end of its framing.
async fn read_body(
    io: &mut Box<dyn Io>,
    buffer: &mut Buffer,
    head: &Head,
    limit: usize,
) -> Result<(usize, usize), FetchError> {
    let too_large = || FetchError::TooLarge { limit };
    match head.length {
        Length::Exact(length) => {
            if length > limit {
                return Err(too_large());
            }
            let end = head.size + length;
            buffer.bytes.reserve(end.saturating_sub(buffer.bytes.len()));
            while buffer.bytes.len() < end {
                buffer.more(io).await?;
            }
            Ok((end, end))
        }
        Length::Chunked => {
            let mut chunks = Chunks::new(head.size);
            while !chunks.advance(&mut buffer.bytes)? {
                // The framing counts too: chunks of one byte must not pass the limit unseen.
                let came = buffer.bytes.len() - head.size;
                if came > limit.saturating_mul(2).saturating_add(READ_BYTES)
                    || chunks.end() - head.size > limit
                {
                    return Err(too_large());
                }
                buffer.more(io).await?;
            }
            Ok((chunks.end(), chunks.consumed()))
        }
        Length::UntilClose => loop {
            let bytes = &mut buffer.bytes;
            if bytes.len() - head.size > limit {
                return Err(too_large());
            }
            bytes.reserve(READ_BYTES);
            if io.read_buf(bytes).await? == 0 {
                return Ok((bytes.len(), bytes.len()));
            }
        },
    }
}

async fn connect(origin: &Origin) -> Result<Box<dyn Io>, FetchError> {
    let tcp = TcpStream::connect((origin.host.as_str(), origin.port)).await?;
    tcp.set_nodelay(true)?;
    let Some(config) = &origin.tls else { return Ok(Box::new(tcp)) };
    let name = rustls_pki_types::ServerName::try_from(origin.host.clone())
        .map_err(|_| FetchError::ServerName { host: origin.host.clone() })?;
    Ok(Box::new(TlsConnector::from(config.clone()).connect(name, tcp).await?))
}

/// Writes a request; a body is sent as JSON. `target` is the path with its query.
pub fn request(method: &str, origin: &Origin, target: &str, body: Option<&[u8]>) -> Vec<u8> {
    request_as(None, origin, (method, target), body)
}

/// Writes a request with a bearer token, where there is one.
pub fn request_as(
    bearer: Option<&Bearer>,
    origin: &Origin,
    (method, target): (&str, &str),
    body: Option<&[u8]>,
) -> Vec<u8> {
    let Origin { host, port, .. } = origin;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut out = format!("{method} {target} HTTP/1.1\r\nhost: {host}:{port}\r\naccept: */*\r\n");
    if let Some(Bearer(key)) = bearer {
        out.push_str(&format!("authorization: Bearer {key}\r\n"));
    }
    if let Some(body) = body {
        let length = body.len();
        out.push_str(&format!("content-type: application/json\r\ncontent-length: {length}\r\n"));
    }
    out.push_str("\r\n");
    let mut out = out.into_bytes();
    out.extend_from_slice(body.unwrap_or_default());
    out
}

#[cfg(test)]
mod tests;
