//! Host memory for blocks: one arena of fixed slots, which engine processes map, too.

mod file;
mod mapping;

use crate::checksum::ChecksumStream;
use crate::{Checksum, SlotId};
use mapping::Mapping;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use stator_protos::name::BlockName;
use std::io;
use std::ops::Range;

/// Slots begin at multiples of this many bytes, as direct I/O wants.
pub const SLOT_ALIGNMENT: usize = 4096;

/// Bytes that a copy with a checksum takes at a time, so that both work in the nearest cache.
const PIECE: usize = 16 << 10;

/// Memory for the KV of blocks, in slots of one size.
///
/// The memory is a file without a name that engine processes map as well. The system takes pages
/// from its free memory as slots are first written, and gives them back when the last process that
/// has the file is gone.
///
/// Every slot has one writer at a time, and nobody reads a slot that is being written: the
/// [`store`](crate::store) says whose turn it is. Other processes may break that rule, and then the
/// bytes of the slot are anything; checksums find out.
#[derive(Debug)]
pub struct Arena {
    file: OwnedFd,
    mapping: Mapping,
    slots: u32,
    block_bytes: usize,
}

impl Arena {
    /// An arena of `slots` blocks of `block_bytes` each, in huge pages if enough are reserved.
    ///
    /// # Errors
    ///
    /// The system has not as many addresses, or no memory files at all (other systems than Linux).
    pub fn new(slots: u32, block_bytes: usize) -> io::Result<Self> {
        let bytes = size(slots, block_bytes)?;
        let (file, mapping) = file::create(bytes)?;
        Ok(Self { file, mapping, slots, block_bytes })
    }

    /// The arena of another process, from the file that it passed on.
    ///
    /// # Errors
    ///
    /// The file is smaller than said, or could become so.
    pub fn open(file: OwnedFd, slots: u32, block_bytes: usize) -> io::Result<Self> {
        let bytes = size(slots, block_bytes)?;
        file::check(&file, bytes)?;
        let mapping = Mapping::new(&file, bytes)?;
        Ok(Self { file, mapping, slots, block_bytes })
    }

    /// Slots in all.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes from one slot to the next: a block's, rounded up to [`SLOT_ALIGNMENT`].
    pub fn stride(&self) -> usize {
        self.block_bytes.next_multiple_of(SLOT_ALIGNMENT)
    }

    /// The file to pass to engine processes. It neither shrinks nor grows.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The first byte of a slot, for I/O. Whoever writes through it must be the slot's one writer.
    ///
    /// # Panics
    ///
    /// The arena has no such slot.
    pub fn address(&self, slot: SlotId) -> *mut u8 {
        self.mapping.address(self.offset(slot), self.stride())
    }

    /// Copies a block into a slot.
    ///
    /// # Panics
    ///
    /// The arena has no such slot, or `kv` has not the size of a block.
    pub fn write(&self, slot: SlotId, kv: &[u8]) {
        assert_eq!(kv.len(), self.block_bytes, "bytes of a block");
        self.mapping.write(self.offset(slot), kv);
    }

    /// Copies the block in a slot.
    ///
    /// # Panics
    ///
    /// The arena has no such slot, or `kv` has not the size of a block.
    pub fn read(&self, slot: SlotId, kv: &mut [u8]) {
        assert_eq!(kv.len(), self.block_bytes, "bytes of a block");
        self.mapping.read(self.offset(slot), kv);
    }

    /// Copies a block into a slot, and returns the checksum of the bytes that were copied.
    ///
    /// # Panics
    ///
    /// The conditions of [`Arena::write`].
    pub fn write_checked(&self, slot: SlotId, name: BlockName, kv: &[u8]) -> Checksum {
        assert_eq!(kv.len(), self.block_bytes, "bytes of a block");
        let mut stream = ChecksumStream::new(name);
        let mut offset = self.offset(slot);
        for piece in kv.chunks(PIECE) {
            self.mapping.write(offset, piece);
            stream.update(piece);
            offset += piece.len();
        }
        stream.finish()
    }

    /// Copies the block in a slot, and returns the checksum of the bytes that were copied.
    ///
    /// # Panics
    ///
    /// The conditions of [`Arena::read`].
    pub fn read_checked(&self, slot: SlotId, name: BlockName, kv: &mut [u8]) -> Checksum {
        assert_eq!(kv.len(), self.block_bytes, "bytes of a block");
        let mut stream = ChecksumStream::new(name);
        let mut offset = self.offset(slot);
        for piece in kv.chunks_mut(PIECE) {
            self.mapping.read(offset, piece);
            stream.update(piece);
            offset += piece.len();
        }
        stream.finish()
    }

    /// The checksum of the block in a slot.
    ///
    /// # Panics
    ///
    /// The arena has no such slot.
    pub fn checksum(&self, slot: SlotId, name: BlockName) -> Checksum {
        let mut stream = ChecksumStream::new(name);
        let start = self.offset(slot);
        // The bytes are copied first: other processes can write here, and a slice must not change.
        let mut piece = [0; PIECE];
        for at in (0..self.block_bytes).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(self.block_bytes - at)];
            self.mapping.read(start + at, piece);
            stream.update(piece);
        }
        stream.finish()
    }

    /// Writes a part of the block in a slot to a socket or a file, without a copy of it in between.
    /// Returns the number of bytes that were written.
    ///
    /// # Errors
    ///
    /// The system's errors of `write`.
    pub(crate) fn send(
        &self,
        slot: SlotId,
        part: Range<usize>,
        to: impl AsFd,
    ) -> io::Result<usize> {
        self.mapping.write_to(self.place(slot, &part), part.len(), to)
    }

    /// Reads a part of the block in a slot from a socket or a file. The caller is the slot's one
    /// writer. Returns the number of bytes that were read.
    ///
    /// # Errors
    ///
    /// The system's errors of `read`.
    pub(crate) fn receive(
        &self,
        slot: SlotId,
        part: Range<usize>,
        from: impl AsFd,
    ) -> io::Result<usize> {
        self.mapping.read_from(self.place(slot, &part), part.len(), from)
    }

    /// Copies bytes to `start` of the block in a slot. The caller is the slot's one writer.
    pub(crate) fn write_part(&self, slot: SlotId, start: usize, kv: &[u8]) {
        self.mapping.write(self.place(slot, &(start..start + kv.len())), kv);
    }

    /// Copies bytes from `start` of the block in a slot.
    ///
    /// # Panics
    ///
    /// The arena has no such slot, or the block no such bytes.
    pub fn read_part(&self, slot: SlotId, start: usize, kv: &mut [u8]) {
        self.mapping.read(self.place(slot, &(start..start + kv.len())), kv);
    }

    /// Offset of a part of the block in a slot.
    fn place(&self, slot: SlotId, part: &Range<usize>) -> usize {
        assert!(part.start <= part.end && part.end <= self.block_bytes, "{part:?} of a block");
        self.offset(slot) + part.start
    }

    fn offset(&self, slot: SlotId) -> usize {
        assert!(slot.0 < self.slots, "slot {} of {}", slot.0, self.slots);
        slot.0 as usize * self.stride()
    }
}

/// Bytes of an arena's file.
fn size(slots: u32, block_bytes: usize) -> io::Result<usize> {
    let stride = block_bytes.checked_next_multiple_of(SLOT_ALIGNMENT);
    let bytes = stride.and_then(|stride| stride.checked_mul(slots as usize));
    // Pointers into one allocation may be as far apart as `isize` counts.
    bytes.filter(|&bytes| bytes > 0 && isize::try_from(bytes).is_ok()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("an arena of {slots} x {block_bytes} bytes"),
        )
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
