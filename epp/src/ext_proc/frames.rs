//! gRPC messages on a body of HTTP/2, in both directions, without copying what can be passed on.
//!
//! Source: "Length-Prefixed-Message" of gRPC over HTTP/2: a byte that tells of compression, the
//! length in 4 bytes, big-endian, then the message.

use super::wire::Sink;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::codegen::Body as _;

const PREFIX_BYTES: usize = 5;

/// Pieces below this size are copied next to what is around them: a frame of HTTP/2 and a slot in
/// a vectored write cost more than copying so few bytes.
const COPY_MAX_BYTES: usize = 4 << 10;

/// First size of a write buffer: the answer to a head and to a short body fit.
const WRITE_BUFFER_BYTES: usize = 4 << 10;

/// The messages that come on a body.
pub(crate) struct Frames {
    body: tonic::body::Body,
    /// Bytes that came and are not read yet: at most one message and one frame of HTTP/2.
    chunks: VecDeque<Bytes>,
    buffered: usize,
    max_message_bytes: usize,
}

impl Frames {
    /// The messages on `body`, each of at most `max_message_bytes`.
    pub(crate) fn new(body: tonic::body::Body, max_message_bytes: usize) -> Self {
        Self { body, chunks: VecDeque::new(), buffered: 0, max_message_bytes }
    }

    /// The next message; `None` when the data plane will send no more.
    ///
    /// # Errors
    ///
    /// When what comes is no message, or a larger one than is taken, or the connection breaks.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            match self.take_message() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers of a request mean nothing in gRPC.
                    if let Ok(data) = frame.into_data() {
                        self.buffered += data.len();
                        self.chunks.push_back(data);
                    }
                }
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None if self.buffered > 0 => {
                    let what = format!("the stream ends {} bytes into a message", self.buffered);
                    return Poll::Ready(Some(Err(Status::invalid_argument(what))));
                }
                None => return Poll::Ready(None),
            }
        }
    }

    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        if self.buffered < PREFIX_BYTES {
            return Ok(None);
        }
        let mut prefix = [0; PREFIX_BYTES];
        let bytes = self.chunks.iter().flatten();
        prefix.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let [compressed, length @ ..] = prefix;
        let (length, limit) = (u32::from_be_bytes(length) as usize, self.max_message_bytes);
        if compressed != 0 {
            return Err(Status::unimplemented("compressed messages are not supported"));
        }
        if length > limit {
            let what = format!("the message has {length} bytes, the limit is {limit}");
            return Err(Status::resource_exhausted(what));
        }
        if self.buffered < PREFIX_BYTES + length {
            return Ok(None);
        }
        self.take(PREFIX_BYTES);
        Ok(Some(self.take(length)))
    }

    /// The next `length` bytes, which are there: a slice where they came in one frame.
    fn take(&mut self, length: usize) -> Bytes {
        self.buffered -= length;
        while self.chunks.front().is_some_and(Bytes::is_empty) {
            self.chunks.pop_front();
        }
        match self.chunks.front_mut() {
            Some(first) if first.len() >= length => return first.split_to(length),
            _ => {}
        }
        let mut whole = BytesMut::with_capacity(length);
        while whole.len() < length {
            let Some(first) = self.chunks.front_mut() else { break };
            let count = first.len().min(length - whole.len());
            whole.put_slice(&first[..count]);
            first.advance(count);
            if first.is_empty() {
                self.chunks.pop_front();
            }
        }
        whole.freeze()
    }
}

/// Messages that are on their way out, as frames of HTTP/2.
#[derive(Default)]
pub(crate) struct Writer {
    ready: VecDeque<Bytes>,
    buffer: Vec<u8>,
    size_bytes: usize,
}

impl Writer {
    /// Bytes that wait.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The next frame, if anything waits.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        if self.ready.is_empty() && !self.buffer.is_empty() {
            self.flush();
        }
        let frame = self.ready.pop_front()?;
        self.size_bytes -= frame.len();
        Some(frame)
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.buffer).into());
        }
    }
}

impl Sink for Writer {
    fn message(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.begin(0);
        let start = self.buffer.len();
        write(&mut self.buffer);
        let length = self.buffer.len() - start;
        self.size_bytes += length;
        // Until now it said that nothing follows.
        self.buffer[start - 4..start].copy_from_slice(&(length as u32).to_be_bytes());
    }

    fn begin(&mut self, length: usize) {
        if self.buffer.capacity() == 0 {
            self.buffer.reserve(WRITE_BUFFER_BYTES);
        }
        self.buffer.put_u8(0);
        // The limits on bodies keep every message below 4 GiB.
        self.buffer.put_u32(length as u32);
        self.size_bytes += PREFIX_BYTES;
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
        self.size_bytes += bytes.len();
    }

    fn piece(&mut self, piece: Bytes) {
        if piece.len() < COPY_MAX_BYTES {
            return self.copy(&piece);
        }
        self.flush();
        self.size_bytes += piece.len();
        self.ready.push_back(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::future::poll_fn;
    use tonic::Code;

    fn frames(chunks: Vec<Bytes>, limit: usize) -> Frames {
        let chunks = chunks.into_iter().map(|chunk| Ok::<_, Status>(Frame::data(chunk)));
        Frames::new(tonic::body::Body::new(StreamBody::new(stream::iter(chunks))), limit)
    }

    fn read(mut frames: Frames) -> (Vec<Bytes>, Option<Code>) {
        let mut messages = Vec::new();
        loop {
            let next = poll_fn(|cx| frames.poll_next(cx)).now_or_never();
            match next.expect("all is there from the start") {
                Some(Ok(message)) => messages.push(message),
                Some(Err(status)) => return (messages, Some(status.code())),
                None => return (messages, None),
            }
        }
    }

    /// Messages on the wire, and the same in chunks that end anywhere.
    fn written(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = Writer::default();
        for (at, message) in messages.iter().enumerate() {
            if at % 2 == 1 {
                writer.message(|out| out.extend_from_slice(message));
                continue;
            }
            writer.begin(message.len());
            let (copied, kept) = message.split_at(message.len() / 3);
            writer.copy(copied);
            writer.piece(Bytes::copy_from_slice(kept));
        }
        let (mut bytes, mut left) = (Vec::new(), writer.size_bytes());
        while let Some(frame) = writer.pop() {
            left -= frame.len();
            assert_eq!(left, writer.size_bytes());
            bytes.extend_from_slice(&frame);
        }
        assert_eq!(left, 0);
        bytes
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_however_it_is_cut(
            messages in vec(prop_oneof![vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..20_000)], 0..5),
            cuts in vec(1..9_000_usize, 1..9),
        ) {
            let mut rest = Bytes::from(written(&messages));
            let mut chunks = Vec::new();
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                chunks.push(rest.split_to(cut.min(rest.len())));
            }
            let (found, error) = read(frames(chunks, 20_000));
            prop_assert_eq!(found, messages);
            prop_assert_eq!(error, None);
        }
    }

    fn check(bytes: &'static [u8], code: Code) {
        let (messages, error) = read(frames(vec![Bytes::from_static(bytes)], 10));
        assert_eq!((messages.len(), error), (0, Some(code)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        check(&[0, 0, 0, 0, 11], Code::ResourceExhausted);
        check(&[0, 255, 255, 255, 255], Code::ResourceExhausted);
        check(&[1, 0, 0, 0, 1, 0], Code::Unimplemented);
        check(&[0, 0, 0, 0, 2, 0], Code::InvalidArgument);
        check(&[0, 0], Code::InvalidArgument);
    }

    #[test]
    fn large_pieces_are_not_copied() {
        let piece = Bytes::from(vec![7; COPY_MAX_BYTES]);
        let mut writer = Writer::default();
        writer.begin(piece.len() + 2);
        writer.copy(&[1]);
        writer.piece(piece.clone());
        writer.copy(&[2]);
        let frames: Vec<_> = std::iter::from_fn(|| writer.pop()).collect();
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[1].as_ptr(), piece.as_ptr());
    }
}
