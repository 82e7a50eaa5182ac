//! A response without a socket, for fuzz targets.

use super::{Connection, FetchError, Io, Origin};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The status.
    pub status: u16,
    /// The target of a redirection.
    pub location: Option<String>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the connection could serve another request.
    pub keep_alive: bool,
}

/// Parses a response of at most `limit` bytes that comes in these pieces before the peer closes.
///
/// # Errors
///
/// The errors of [`Connection::exchange`].
pub async fn replay(
    pieces: impl IntoIterator<Item = &[u8]>,
    limit: usize,
) -> Result<Replayed, FetchError> {
    let origin = Origin { host: String::new(), port: 0, tls: None };
    let mut connection = Connection::new(origin);
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
    let mut io: Box<dyn Io> = Box::new(Pieces(pieces.map(<[u8]>::to_vec).collect()));
    let (head, body) = connection.attempt(&mut io, b"", limit).await?;
    let bytes = &connection.buffer.bytes;
    let location = head.location.and_then(|range| str::from_utf8(&bytes[range]).ok());
    Ok(Replayed {
        status: head.status,
        location: location.map(str::to_owned),
        body: bytes[body].to_vec(),
        keep_alive: head.keep_alive,
    })
}

/// A socket that yields the peer's bytes piece by piece and discards all writes.
struct Pieces(VecDeque<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(piece) = self.0.front_mut() {
            let rest = piece.split_off(piece.len().min(out.remaining()));
            out.put_slice(piece);
            *piece = rest;
            if piece.is_empty() {
                self.0.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
