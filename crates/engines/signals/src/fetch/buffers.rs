//! Shared buffers for responses on connections that are idle most of the time.

use super::{FetchError, Io, READ_BYTES};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

/// Most idle buffers that are kept.
const SPARE_MAX: usize = 4;

/// Pool of idle buffers.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A connection's buffer, without memory until bytes arrive.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) bytes: Vec<u8>,
    shared: Arc<Buffers>,
}

impl Buffer {
    /// Starts without memory.
    pub(super) fn of(shared: Arc<Buffers>) -> Self {
        Self { bytes: Vec::new(), shared }
    }

    /// Reads at least one byte. Holds no memory while it waits for the first.
    pub(super) async fn more(&mut self, io: &mut Box<dyn Io>) -> Result<(), FetchError> {
        let read = poll_fn(|context| {
            self.ready();
            // The future is made anew for each look: one that is dropped has read nothing.
            let polled = pin!(io.read_buf(&mut self.bytes)).poll(context);
            if polled.is_pending() && self.bytes.is_empty() {
                self.give_back();
            }
            polled
        });
        match read.await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }

    /// Returns the memory to the pool, emptied.
    pub(super) fn give_back(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut spare = self.shared.0.lock();
        if bytes.capacity() > 0 && spare.len() < SPARE_MAX {
            bytes.clear();
            spare.push(bytes);
        }
    }

    /// Ensures room for a read.
    fn ready(&mut self) {
        if self.bytes.capacity() == 0 {
            self.bytes = self.shared.0.lock().pop().unwrap_or_default();
        }
        if self.bytes.capacity() - self.bytes.len() < READ_BYTES / 4 {
            self.bytes.reserve(READ_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn who_waits_for_the_first_byte_has_no_buffer() {
        let shared = Arc::new(Buffers::default());
        let (near, mut far) = tokio::io::duplex(64);
        let mut io: Box<dyn Io> = Box::new(near);
        let mut buffer = Buffer::of(shared.clone());
        {
            let mut reading = pin!(buffer.more(&mut io));
            let once = poll_fn(|context| std::task::Poll::Ready(reading.as_mut().poll(context)));
            assert!(once.await.is_pending());
            assert_eq!(shared.0.lock().len(), 1);
            far.write_all(b"abc").await.expect("room");
            reading.await.expect("bytes");
        }
        assert_eq!((&buffer.bytes[..], shared.0.lock().len()), (&b"abc"[..], 0));
        buffer.give_back();
        let capacities: Vec<_> = shared.0.lock().iter().map(Vec::capacity).collect();
        assert!(capacities.len() == 1 && capacities[0] >= READ_BYTES);
        drop(far);
        assert!(matches!(buffer.more(&mut io).await, Err(FetchError::Io(_))));
    }

    #[test]
    fn few_buffers_are_kept() {
        let shared = Arc::new(Buffers::default());
        for _ in 0..SPARE_MAX + 3 {
            let bytes = Vec::with_capacity(10);
            Buffer { bytes, shared: shared.clone() }.give_back();
        }
        assert_eq!(shared.0.lock().len(), SPARE_MAX);
    }
}
