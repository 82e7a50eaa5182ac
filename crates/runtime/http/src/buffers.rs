//! Buffers shared by connections that are idle most of the time.

use parking_lot::Mutex;

/// Bytes of one read: a token with its metadata takes a few hundred.
pub(crate) const READ_BYTES: usize = 8 << 10;
/// Most idle buffers of a kind that are kept.
const SPARE_MAX: usize = 4;

/// Pool of idle buffers. Of many connections few hold a buffer at once, and those few stay in the
/// processor's cache.
#[derive(Debug, Default)]
pub struct Buffers {
    reads: Mutex<Vec<Box<[u8]>>>,
    bodies: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// A buffer for reads, of [`READ_BYTES`].
    pub(crate) fn read(&self) -> Box<[u8]> {
        self.reads.lock().pop().unwrap_or_else(|| vec![0; READ_BYTES].into())
    }

    /// Takes a buffer for reads back.
    pub(crate) fn give_read(&self, buffer: Box<[u8]>) {
        let mut spare = self.reads.lock();
        if !buffer.is_empty() && spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    }

    /// An empty buffer for a body.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.bodies.lock().pop().unwrap_or_default()
    }

    /// Takes a buffer for a body back.
    pub(crate) fn give_body(&self, mut buffer: Vec<u8>) {
        let mut spare = self.bodies.lock();
        if buffer.capacity() > 0 && spare.len() < SPARE_MAX {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// Spare buffers for reads and for bodies.
    #[cfg(test)]
    pub(crate) fn spare(&self) -> (usize, usize) {
        (self.reads.lock().len(), self.bodies.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_buffers_are_kept() {
        let buffers = Buffers::default();
        for _ in 0..SPARE_MAX + 3 {
            buffers.give_read(vec![0; READ_BYTES].into());
            buffers.give_body(Vec::with_capacity(10));
        }
        buffers.give_read(Box::default());
        buffers.give_body(Vec::new());
        assert_eq!(buffers.spare(), (SPARE_MAX, SPARE_MAX));
        assert_eq!((buffers.read().len(), buffers.body().capacity()), (READ_BYTES, 10));
    }
}
