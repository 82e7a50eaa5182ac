//! One connection to an engine: a request out, its answer in, and then perhaps the next.

use super::framing::{self, AnswerHead, Framing};
use bytes::Buf;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// Bytes of one read: a token with its metadata takes a few hundred.
const READ_BYTES: usize = 8 << 10;
/// Largest head of an answer.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// A connection. Dropping it closes it.
pub(super) struct Wire {
    stream: TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>,
    buffer: Box<[u8]>,
    /// The part of the buffer that was read and not used.
    unused: Range<usize>,
}

/// Error of a request that was not sent as a whole.
pub(super) struct SendError {
    pub(super) error: Error,
    /// Nothing was sent, so that another connection may take the request.
    pub(super) entirely: bool,
}

impl Wire {
    pub(super) fn new(stream: MaybeHttpsStream<TokioIo<TcpStream>>) -> Self {
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Self { stream: TokioIo::new(stream), buffer, unused: 0..0 }
    }

    /// Writes a request.
    pub(super) async fn write(&mut self, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        let mut request = head.chain(body);
        let written = async {
            self.stream.write_all_buf(&mut request).await?;
            self.stream.flush().await
        };
        let written = written.await;
        let entirely = request.remaining() == head.len() + body.len();
        written.map_err(|error| SendError { error, entirely })
    }

    /// Reads the head of an answer and keeps the bytes behind it.
    pub(super) async fn read_head(&mut self) -> Result<AnswerHead, Error> {
        let mut bytes = Vec::new();
        while bytes.len() <= MAX_HEAD_BYTES {
            if self.unused.is_empty() && poll_fn(|context| self.poll_fill(context)).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let before = bytes.len();
            bytes.extend_from_slice(&self.buffer[self.unused.clone()]);
            match framing::head(&bytes)? {
                None => self.unused = 0..0,
                Some((head, length)) => {
                    self.unused.start += length - before;
                    // What an engine says in between is not the answer.
                    if !head.status.is_informational() {
                        if matches!(head.framing, Framing::Chunks(_)) {
                            self.acknowledge_late();
                        }
                        return Ok(head);
                    }
                    bytes.clear();
                }
            }
        }
        let why = format!("the head is larger than {MAX_HEAD_BYTES} bytes");
        Err(Error::new(ErrorKind::InvalidData, why))
    }

    /// Delays acknowledgements until the next read, which halves the cost of reading an answer in
    /// many small pieces. A piece that nothing follows is acknowledged after 40 ms; from then on
    /// the system acknowledges at once again, so that an engine that waits for it waits once.
    fn acknowledge_late(&self) {
        // Where this fails, or the system does not have it, reading is only dearer.
        #[cfg(target_os = "linux")]
        let _ = match self.stream.inner() {
            MaybeHttpsStream::Http(tcp) => tcp.inner(),
            MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner().inner(),
        }
        .set_quickack(false);
    }

    /// Hands on the body's bytes and returns their number, which is 0 where the connection ended.
    pub(super) fn poll_body(
        &mut self,
        context: &mut Context<'_>,
        framing: &mut Framing,
        mut hand_on: impl FnMut(&[u8]),
    ) -> Poll<Result<usize, Error>> {
        let mut handed = 0;
        while handed == 0 && !framing.is_over() {
            if self.unused.is_empty() && ready!(self.poll_fill(context))? == 0 {
                break;
            }
            let bytes = &self.buffer[self.unused.clone()];
            self.unused.start += framing.take(bytes, |part| {
                handed += part.len();
                hand_on(part);
            })?;
        }
        Poll::Ready(Ok(handed))
    }

    /// Whether the connection is idle: no stray bytes, and still open.
    pub(super) fn is_quiet(&mut self, context: &mut Context<'_>) -> bool {
        self.unused.is_empty() && self.poll_fill(context).is_pending()
    }

    /// Refills the buffer, all of which was used; returns the number of bytes, 0 at the end.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        let mut read = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        self.unused = 0..read.filled().len();
        Poll::Ready(Ok(self.unused.end))
    }
}
