//! Payloads on their way through encryption. In plain, blocks go straight between arena and disk.

use super::Worker;
use crate::Checksum;
use crate::cipher::CipherTag;
use crate::disk::device::JobMemory;
use crate::disk::format::PAGE_BYTES;
use crate::tier::{TierRead, TierWrite};

impl Worker {
    /// Whether payloads are encrypted.
    pub(super) fn is_sealed(&self) -> bool {
        self.codec.cipher().is_some()
    }

    /// Encrypts the block of a write, and notes its tag where the descriptor will have it.
    pub(super) fn seal_payload(&mut self, write: &TierWrite) -> Option<(CipherTag, JobMemory)> {
        let cipher = self.codec.cipher()?;
        let (slot, name) = (write.slot, write.block.name);
        let block = &mut self.staging.block;
        block.resize(self.parts.arena.block_bytes(), 0);
        self.parts.arena.read(slot, block);
        let tag = cipher.seal_block(name, block);
        let mut pages = self.staging.pages(self.parts.folder.geometry().slot_bytes());
        for (page, part) in pages.iter_mut().zip(self.staging.block.chunks(PAGE_BYTES)) {
            page.0[..part.len()].copy_from_slice(part);
        }
        Some((tag, JobMemory::Pages(pages)))
    }

    /// Memory that an encrypted block is read into.
    pub(super) fn sealed_memory(&mut self) -> JobMemory {
        JobMemory::Pages(self.staging.pages(self.parts.folder.geometry().slot_bytes()))
    }

    /// Decrypts a block that was read, into its slot. Its checksum; none if the bytes are not what
    /// was encrypted.
    pub(super) fn open_payload(
        &mut self,
        read: &TierRead,
        tag: &CipherTag,
        memory: &JobMemory,
    ) -> Option<Checksum> {
        let (cipher, JobMemory::Pages(pages)) = (self.codec.cipher()?, memory) else { return None };
        let block = &mut self.staging.block;
        block.resize(self.parts.arena.block_bytes(), 0);
        for (part, page) in block.chunks_mut(PAGE_BYTES).zip(pages) {
            part.copy_from_slice(&page.0[..part.len()]);
        }
        let is_open = cipher.open_block(read.name, tag, block);
        is_open.then(|| self.parts.arena.write_checked(read.slot, read.name, block))
    }

    /// Takes the memory of ended work back.
    pub(super) fn reuse(&mut self, memory: JobMemory) {
        let wanted = self.parts.folder.geometry().slot_bytes();
        if let JobMemory::Pages(pages) = memory
            && self.is_sealed()
            && pages.len() * PAGE_BYTES == wanted
        {
            self.staging.keep(pages, self.parts.depth);
        }
    }
}
