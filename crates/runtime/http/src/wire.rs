//! One connection: a request out, its answer in, and then perhaps the next.

use crate::HttpError;
use crate::buffers::{Buffers, READ_BYTES};
use crate::framing::{self, AnswerHead, Framing};
use crate::origin::Io;
use bytes::{Buf, BufMut};
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

/// Largest head of an answer.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Most bytes of a body for which room is made at once.
const MAX_ROOM_BYTES: usize = 256 << 10;

/// When the kernel acknowledges what arrives. Only Linux has the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// As the kernel likes.
    #[default]
    AsUsual,
    /// Before every read: a server that waits for it before it writes on shows no delay.
    AtOnce,
    /// After the answer's next piece, if the answer comes in chunks. Reading an answer in many
    /// small pieces then costs half. A piece that nothing follows is acknowledged after 40 ms, and
    /// from then on the kernel acknowledges at once again: a server that waits for it waits once.
    Late,
}

/// A connection. Dropping it closes it.
pub(crate) struct Wire {
    io: Box<dyn Io>,
    acknowledge: Acknowledge,
    buffers: Arc<Buffers>,
    /// Empty while nothing of an answer has come.
    buffer: Box<[u8]>,
    /// The part of the buffer that was read and not used.
    unused: Range<usize>,
    /// Whether the next byte is the first of an answer.
    rests: bool,
}

/// Error of a request that was not sent as a whole.
pub(crate) struct SendError {
    pub(crate) error: Error,
    /// Nothing was sent, so that another connection may take the request.
    pub(crate) entirely: bool,
}

impl Wire {
    pub(crate) fn new(io: Box<dyn Io>, acknowledge: Acknowledge, buffers: Arc<Buffers>) -> Self {
        let (buffer, unused) = (Box::default(), 0..0);
        Self { io, acknowledge, buffers, buffer, unused, rests: true }
    }

    /// Writes a request.
    pub(crate) async fn write(&mut self, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        let mut request = Buf::chain(head, body);
        let written = async {
            self.io.write_all_buf(&mut request).await?;
            self.io.flush().await
        };
        let written = written.await;
        let entirely = request.remaining() == head.len() + body.len();
        written.map_err(|error| SendError { error, entirely })
    }

    /// Reads the head of an answer and keeps the bytes behind it.
    pub(crate) async fn read_head(&mut self) -> Result<AnswerHead, HttpError> {
        let mut bytes = Vec::new();
        while bytes.len() <= MAX_HEAD_BYTES {
            if self.unused.is_empty() {
                let filled = poll_fn(|context| self.poll_fill(context)).await;
                if let Err(error) = filled.and_then(some) {
                    return Err(match self.rests {
                        true => HttpError::Unanswered(error),
                        false => HttpError::Broken(error),
                    });
                }
            }
            let before = bytes.len();
            bytes.extend_from_slice(&self.buffer[self.unused.clone()]);
            match framing::head(&bytes)? {
                None => self.unused = 0..0,
                Some((head, length)) => {
                    self.unused.start += length - before;
                    // What a server says in between is not the answer.
                    if !head.status.is_informational() {
                        if matches!(head.framing, Framing::Chunks(_)) {
                            self.set_quick(Acknowledge::Late, false);
                        }
                        return Ok(head);
                    }
                    bytes.clear();
                }
            }
        }
        Err(HttpError::TooLarge { limit: MAX_HEAD_BYTES })
    }

    /// Sets the kernel's mode if that is how this connection acknowledges.
    fn set_quick(&self, acknowledge: Acknowledge, quick: bool) {
        // Where this fails, answers are only dearer or later.
        #[cfg(target_os = "linux")]
        if self.acknowledge == acknowledge {
            let _ = self.io.tcp().set_quickack(quick);
        }
    }

    /// Hands on the body's bytes and returns their number, which is 0 where the connection ended.
    pub(crate) fn poll_body(
        &mut self,
        context: &mut Context<'_>,
        framing: &mut Framing,
        mut hand_on: impl FnMut(&[u8]),
    ) -> Poll<Result<usize, HttpError>> {
        let mut handed = 0;
        while handed == 0 && !framing.is_over() {
            if self.unused.is_empty() {
                match ready!(self.poll_fill(context)) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => return Poll::Ready(Err(HttpError::Broken(error))),
                }
            }
            let bytes = &self.buffer[self.unused.clone()];
            self.unused.start += framing.take(bytes, |part| {
                handed += part.len();
                hand_on(part);
            })?;
        }
        Poll::Ready(Ok(handed))
    }

    /// As [`Self::poll_body`], but a body without chunks is read straight into `bytes`.
    pub(crate) fn poll_body_into(
        &mut self,
        context: &mut Context<'_>,
        framing: &mut Framing,
        bytes: &mut Vec<u8>,
    ) -> Poll<Result<usize, HttpError>> {
        let Some(left) = framing.left().filter(|left| *left > 0 && self.unused.is_empty()) else {
            return self.poll_body(context, framing, |part| bytes.extend_from_slice(part));
        };
        let room = left.clamp(READ_BYTES as u64, MAX_ROOM_BYTES as u64) as usize;
        bytes.reserve(room);
        self.set_quick(Acknowledge::AtOnce, true);
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        // The future is made anew for each look: one that is dropped has read nothing.
        let read = pin!(self.io.read_buf(&mut (&mut *bytes).limit(most))).poll(context);
        let count = ready!(read).map_err(HttpError::Broken)?;
        framing.skip(count);
        Poll::Ready(Ok(count))
    }

    /// Whether the connection is idle: no stray bytes, and still open.
    pub(crate) fn is_quiet(&mut self, context: &mut Context<'_>) -> bool {
        self.unused.is_empty() && self.poll_fill(context).is_pending()
    }

    /// The answer is over: the next byte belongs to another. False where bytes came that nobody
    /// asked for: they would be taken for the next answer.
    pub(crate) fn rest(&mut self) -> bool {
        self.rests = true;
        self.give_buffer_back();
        self.unused.is_empty()
    }

    fn give_buffer_back(&mut self) {
        if self.rests && self.unused.is_empty() {
            self.buffers.give_read(std::mem::take(&mut self.buffer));
        }
    }

    /// Refills the buffer, all of which was used; returns the number of bytes, 0 at the end. Holds
    /// no buffer while it waits for the first byte of an answer.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        if self.buffer.is_empty() {
            self.buffer = self.buffers.read();
        }
        self.unused = 0..0;
        self.set_quick(Acknowledge::AtOnce, true);
        let mut read = ReadBuf::new(&mut self.buffer);
        let polled = Pin::new(&mut self.io).poll_read(context, &mut read);
        let count = read.filled().len();
        if polled.is_pending() {
            self.give_buffer_back();
            return Poll::Pending;
        }
        ready!(polled)?;
        self.unused = 0..count;
        self.rests &= count == 0;
        Poll::Ready(Ok(count))
    }
}

/// No bytes are an end.
fn some(count: usize) -> Result<(), Error> {
    if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
