//! Reads blocks that follow each other in an extent into their slots, in one request.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::timeout;

use super::catalog::BlockPlace;
use super::counts::Counters;
use super::extent::{ExtentId, TRAILER_BYTES, open_frame, read_trailer};
use super::failure::BucketFailure;
use super::fetch::fetch;
use super::lanes::{ReadRun, ReadTicket};
use super::seal::BlockTag;
use super::shared::Shared;
use crate::Checksum;
use crate::checksum::ChecksumStream;
use crate::cipher::KvCipher;
use crate::tier::{TierError, TierRead};

/// Reads the blocks of a run, and reports each of them as it arrives.
pub(crate) async fn read(shared: Arc<Shared>, run: ReadRun) {
    let extent = shared.catalog.lock().extent(run.first.extent);
    let Some((id, blocks)) = extent else {
        // It was forgotten since the run left the queue.
        run.tickets.into_iter().for_each(|ticket| ticket.end(Err(TierError::Missing)));
        return;
    };
    if !shared.may_ask() {
        return; // The tickets report that the reads have failed.
    }
    let mut frames =
        FrameSink { shared: &shared, next: run.first, tickets: run.tickets, frame: None };
    let limit = shared.settings.times.read;
    let ended = timeout(limit, frames.fill(id, blocks)).await;
    let failure = ended.unwrap_or_else(|_| Err(shared.late())).err();
    shared.learn(failure);
    if let Some(failure) = failure {
        // Missing or not ours: nothing that this extent is said to hold is there.
        if matches!(failure, BucketFailure::Missing | BucketFailure::Wrong) {
            Counters::add(
                &shared.counters.blocks_corrupt,
                (failure == BucketFailure::Wrong).into(),
            );
            shared.forget_extent(id);
        }
        frames.tickets.into_iter().for_each(|ticket| ticket.end(Err(failure.tier_error())));
    }
}

/// Takes the frames of a run apart.
struct FrameSink<'a> {
    shared: &'a Shared,
    /// Place of the block whose bytes come next.
    next: BlockPlace,
    tickets: VecDeque<ReadTicket>,
    frame: Option<Frame>,
}

/// The frame that is arriving.
struct Frame {
    /// Bytes of the KV that are in the slot.
    kv: usize,
    checksum: ChecksumStream,
    tag: BlockTag,
    trailer: Vec<u8>,
}

impl FrameSink<'_> {
    /// Fetches all frames and ends their tickets.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, nothing writes to the slots any more.
    async fn fill(&mut self, id: ExtentId, blocks: usize) -> Result<(), BucketFailure> {
        let layout = self.shared.layout(blocks);
        let first = usize::from(self.next.position);
        let range = layout.frames(first..first + self.tickets.len());
        let path = self.shared.paths.extent(id);
        let mut body = fetch(self.shared, &path, range, layout.bytes()).await?;
        while let Some(bytes) = body.next().await {
            self.take(&bytes?);
        }
        // The body ended before its range did.
        if self.tickets.is_empty() { Ok(()) } else { Err(BucketFailure::Outage) }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        let arena = &self.shared.edges.arena;
        while let Some(ticket) = self.tickets.front()
            && !bytes.is_empty()
        {
            let read = ticket.read;
            let frame = self.frame.get_or_insert_with(|| Frame {
                kv: 0,
                checksum: ChecksumStream::new(read.name),
                tag: self.shared.seal.block(read.name),
                trailer: Vec::with_capacity(TRAILER_BYTES),
            });
            let kv = bytes.split_off(..bytes.len().min(arena.block_bytes() - frame.kv));
            let kv = kv.unwrap_or_default();
            arena.write_part(read.slot, frame.kv, kv);
            // What is encrypted is looked at when all of it is there.
            if self.shared.seal.cipher().is_none() {
                frame.checksum.update(kv);
                frame.tag.update(kv);
            }
            frame.kv += kv.len();
            let trailer = bytes.split_off(..bytes.len().min(TRAILER_BYTES - frame.trailer.len()));
            frame.trailer.extend(trailer.unwrap_or_default());
            if frame.trailer.len() == TRAILER_BYTES {
                self.end_frame();
            }
        }
    }

    /// The frame is complete: its block is ready, or it is not what it should be.
    fn end_frame(&mut self) {
        let (Some(frame), Some(ticket)) = (self.frame.take(), self.tickets.pop_front()) else {
            return;
        };
        let (shared, name) = (self.shared, ticket.read.name);
        let trailer = frame.trailer.first_chunk::<TRAILER_BYTES>().expect("it is complete");
        let (told, found) = match shared.seal.cipher() {
            Some(cipher) => open_in_slot(shared, &ticket.read, trailer, cipher).unzip(),
            None => (read_trailer(trailer, name, frame.tag), Some(frame.checksum.finish())),
        };
        if let Some(found) = found.filter(|_| told == found) {
            Counters::add(&shared.counters.blocks_read, 1);
            ticket.end(Ok(found));
        } else {
            Counters::add(&shared.counters.blocks_corrupt, 1);
            shared.forget_block(name, self.next);
            ticket.end(Err(TierError::Corrupt));
        }
        self.next.position += 1;
    }
}

/// Decrypts the block in a slot. The checksum that it must have, and the one that it has; none if it
/// is not what was encrypted.
fn open_in_slot(
    shared: &Shared,
    read: &TierRead,
    trailer: &[u8; TRAILER_BYTES],
    cipher: &KvCipher,
) -> Option<(Checksum, Checksum)> {
    let arena = &shared.edges.arena;
    let mut kv = Vec::with_capacity(arena.block_bytes() + TRAILER_BYTES);
    kv.resize(arena.block_bytes(), 0);
    arena.read(read.slot, &mut kv);
    let told = open_frame(&mut kv, trailer, read.name, cipher)?;
    Some((told, arena.write_checked(read.slot, read.name, &kv)))
}
