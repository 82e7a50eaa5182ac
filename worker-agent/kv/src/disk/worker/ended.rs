//! Work that has ended, and what follows from it.

use super::{Transfer, Work, Worker};
use crate::Checksum;
use crate::disk::device::{Done, Job, JobMemory};
use crate::disk::format::PAGE_BYTES;
use crate::disk::queue::DiskRequest;
use crate::disk::system;
use crate::disk::tables::{TablePage, WrittenPayload};
use crate::tier::{TierError, TierRead, TierReport, TierWrite};
use std::io::{self, ErrorKind};

impl Worker {
    /// Takes back what the device has done.
    pub(super) fn complete(&mut self, ended: Done) {
        let Done { job, result } = ended;
        if !self.parts.folder.is_direct() {
            system::drop_cached(&job.file, job.offset, job.memory.bytes());
        }
        match self.under_way.remove(&job.ticket) {
            Some(Work::Block(transfer)) => self.transfer_ended(transfer, result, job.memory),
            Some(Work::Page(at)) => self.page_ended(at, whole(&job, result)),
            Some(Work::Table(segment)) => self.table_ended(segment, whole(&job, result)),
            None => debug_assert!(false, "no work has the ticket {}", job.ticket),
        }
    }

    fn transfer_ended(
        &mut self,
        mut transfer: Transfer,
        result: io::Result<usize>,
        memory: JobMemory,
    ) {
        let slot_bytes = self.parts.folder.geometry().slot_bytes();
        let result = match result {
            Ok(moved) => {
                transfer.moved += moved;
                // A part is as good as the whole if the rest is whole pages. Every part brings the
                // block nearer to its end, so this ends.
                // What is encrypted makes sense as a whole only.
                let goes_on = moved > 0 && transfer.moved < slot_bytes && !self.is_sealed();
                if goes_on && transfer.moved.is_multiple_of(PAGE_BYTES) {
                    return self.move_rest(transfer);
                }
                Ok(transfer.moved == slot_bytes)
            }
            Err(error) => Err(error),
        };
        self.transfers -= 1;
        match transfer.request {
            DiskRequest::Read(read) => {
                let found = result.map(|is_whole| self.found(&transfer, &read, &memory, is_whole));
                self.read_ended(&transfer, read, found);
            }
            DiskRequest::Write(write) => self.payload_ended(&transfer, write, result),
        }
        self.reuse(memory);
    }

    /// The checksum of what is in the slot after a read; none if it is no block.
    fn found(
        &mut self,
        transfer: &Transfer,
        read: &TierRead,
        memory: &JobMemory,
        is_whole: bool,
    ) -> Option<Checksum> {
        match memory {
            // A file that ends too early has lost the block, too.
            _ if !is_whole => None,
            JobMemory::Slot { .. } => Some(self.parts.arena.checksum(read.slot, read.name)),
            JobMemory::Pages(_) => self.open_payload(read, &transfer.seal, memory),
        }
    }

    fn read_ended(
        &mut self,
        transfer: &Transfer,
        read: TierRead,
        found: io::Result<Option<Checksum>>,
    ) {
        let TierRead { name, slot, .. } = read;
        let checksum = transfer.checksum;
        let result = match found {
            Ok(found) if found == Some(checksum) => Ok(checksum),
            Ok(_) => Err(TierError::Corrupt),
            Err(error) => Err(failure(&error)),
        };
        self.log.end_read(transfer.place);
        // A block that failed once is not offered again, not even after a restart: whoever asks
        // for it would wait for another failure.
        let lost = result.err().and_then(|_| self.log.forget(transfer.place));
        if let Err(error) = result {
            tracing::warn!(?name, place = ?transfer.place, %error, "a block on disk is lost");
        }
        self.parts.outlet.send(TierReport::Read { name, slot, result });
        if let Some(name) = lost {
            self.tables.erase(transfer.place);
            self.gone(vec![name]);
        }
    }

    fn payload_ended(&mut self, transfer: &Transfer, write: TierWrite, moved: io::Result<bool>) {
        let place = transfer.place;
        let result = match moved {
            Ok(true) => Ok(()),
            Ok(false) => Err(TierError::Full),
            Err(error) => Err(failure(&error)),
        };
        if result.is_err() {
            self.log.abandon(place);
            self.written(&write, result);
        } else if self.log.payload_written(place) {
            // Only now: a descriptor on disk says that the payload is there.
            self.tables.add(WrittenPayload { place, write });
        } else {
            self.written(&write, Err(TierError::Missing));
        }
    }

    fn page_ended(&mut self, at: TablePage, result: Result<(), TierError>) {
        for WrittenPayload { place, write } in self.tables.ended(at) {
            let result = match result {
                Ok(()) if self.log.commit(place) => Ok(()),
                Ok(()) => Err(TierError::Missing),
                Err(error) => {
                    self.log.abandon(place);
                    Err(error)
                }
            };
            self.written(&write, result);
        }
    }

    fn table_ended(&mut self, segment: u32, result: Result<(), TierError>) {
        self.reopening = None;
        // Blocks of a segment that was taken before the tier was cleared would not count.
        let is_cleared = self.log.epoch(segment) < self.parts.folder.first_epoch();
        match result {
            Ok(()) if !is_cleared => self.log.reopened(segment),
            Ok(()) => self.gone_with(segment),
            Err(error) => {
                tracing::warn!(segment, %error, "a disk segment cannot be used again");
                self.gone_with(segment);
                // One attempt a write: a disk that takes none is not to be tried for ever.
                if let Some(write) = self.held_back.take() {
                    self.written(&write, Err(error));
                }
            }
        }
    }

    fn gone_with(&mut self, segment: u32) {
        let names = self.log.unusable(segment);
        self.gone(names);
    }
}

/// The end of a write that makes sense as a whole only.
fn whole(job: &Job, result: io::Result<usize>) -> Result<(), TierError> {
    match result {
        Ok(moved) if moved == job.memory.bytes() => Ok(()),
        Ok(_) => Err(TierError::Full),
        Err(error) => Err(failure(&error)),
    }
}

fn failure(error: &io::Error) -> TierError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => TierError::Full,
        _ => TierError::Failed,
    }
}
