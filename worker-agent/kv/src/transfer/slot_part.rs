//! A part of a block in the arena, as sockets and hashes see it.

use crate::SlotId;
use crate::arena::Arena;
use std::io;
use std::ops::Range;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes that are copied out of the arena at a time to be hashed, within the nearest cache.
pub(super) const PIECE: usize = 16 << 10;

/// A part of the block in a slot. Whoever has it holds the slot.
pub(crate) struct SlotPart<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) slot: SlotId,
    /// Bytes of the block.
    pub(crate) range: Range<usize>,
}

impl SlotPart<'_> {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Sends what follows the first `from` bytes, as far as the socket takes it at once.
    pub(crate) fn try_send(&self, from: usize, stream: &TcpStream) -> io::Result<usize> {
        let rest = self.range.start + from..self.range.end;
        stream.try_io(Interest::WRITABLE, || self.arena.send(self.slot, rest, stream))
    }

    /// Receives what follows the first `from` bytes, as far as the socket has it.
    pub(crate) fn try_receive(&self, from: usize, stream: &TcpStream) -> io::Result<usize> {
        let rest = self.range.start + from..self.range.end;
        stream.try_io(Interest::READABLE, || self.arena.receive(self.slot, rest, stream))
    }

    /// Writes the first bytes.
    pub(crate) fn write_start(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len(), "bytes of a part stay within it");
        self.arena.write_part(self.slot, self.range.start, bytes);
    }

    /// Copies all bytes to `kv`, which is as long as the part.
    pub(crate) fn read(&self, kv: &mut [u8]) {
        self.arena.read_part(self.slot, self.range.start, kv);
    }

    /// Shows all bytes in order, in copies, which may be changed: engine processes may write to the
    /// arena whenever they like, and bytes that a hash reads must not change meanwhile.
    pub(crate) fn each_piece(&self, mut look: impl FnMut(&mut [u8])) {
        let mut piece = [0; PIECE];
        for start in self.range.clone().step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(self.range.end - start)];
            self.arena.read_part(self.slot, start, piece);
            look(piece);
        }
    }
}
