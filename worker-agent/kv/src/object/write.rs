//! Writes blocks that were queued together as one extent.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures::TryFutureExt;
use object_store::path::Path;
use object_store::{PutMode, PutPayload};
use tokio::time::timeout;

use super::counts::Counters;
use super::extent::{ExtentEntry, ExtentHeader, ExtentId, put_trailer, seal_frame};
use super::failure::BucketFailure;
use super::fetch::fetch;
use super::index::IndexedExtent;
use super::lanes::WriteTicket;
use super::shared::Shared;
use crate::Block;
use crate::tier::{TierError, TierWrite};

/// Writes the blocks of these tickets, and reports each of them.
pub(crate) async fn write(shared: Arc<Shared>, tickets: Vec<WriteTicket>) {
    // What another agent has written since is there: nothing to do.
    let is_there =
        |ticket: &WriteTicket| shared.catalog.lock().place(ticket.write.block.name).is_some();
    let (there, tickets): (Vec<_>, Vec<_>) = tickets.into_iter().partition(is_there);
    there.into_iter().for_each(|ticket| ticket.end(Ok(())));
    if tickets.is_empty() || !shared.may_ask() {
        return; // The tickets report that the writes have failed.
    }
    let cleared = shared.cleared_unix_ms.load(Relaxed);
    let writes: Vec<_> = tickets.iter().map(|ticket| ticket.write).collect();
    // Copying and hashing an extent takes milliseconds.
    let built = tokio::task::spawn_blocking({
        let shared = Arc::clone(&shared);
        move || Built::new(&shared, &writes)
    });
    let Ok(built) = built.await else { return };
    let limit = shared.settings.times.write;
    let ended = timeout(limit, built.put(&shared)).await.unwrap_or_else(|_| Err(shared.late()));
    shared.learn(ended.err());
    // What was cleared meanwhile is not to be found again.
    let is_kept = ended.is_ok() && shared.cleared_unix_ms.load(Relaxed) == cleared;
    if is_kept {
        built.record(&shared);
    }
    for ticket in tickets {
        let is_good = built.blocks().any(|block| block == ticket.write.block);
        ticket.end(match ended {
            _ if !is_good => Err(TierError::Corrupt),
            Ok(()) if is_kept => Ok(()),
            Ok(()) => Err(TierError::Failed),
            Err(failure) => Err(failure.tier_error()),
        });
    }
}

/// An extent in memory.
struct Built {
    header: ExtentHeader,
    id: ExtentId,
    path: Path,
    payload: PutPayload,
}

impl Built {
    /// Copies the blocks. A block whose slot does not have its checksum is left out.
    fn new(shared: &Shared, writes: &[TierWrite]) -> Self {
        let arena = &shared.edges.arena;
        let frame_bytes = shared.layout(0).frame_bytes();
        let mut entries = Vec::with_capacity(writes.len());
        let mut frames = Vec::with_capacity(writes.len() * frame_bytes);
        for write in writes {
            let (name, start) = (write.block.name, frames.len());
            frames.resize(start + arena.block_bytes(), 0);
            let kv = &mut frames[start..];
            if arena.read_checked(write.slot, name, kv) != write.checksum {
                frames.truncate(start);
                continue;
            }
            match shared.seal.cipher() {
                Some(cipher) => seal_frame(&mut frames, start, (name, write.checksum), cipher),
                None => {
                    let mut tag = shared.seal.block(name);
                    tag.update(kv);
                    put_trailer(&mut frames, name, write.checksum, tag);
                }
            }
            entries.push(ExtentEntry { block: write.block, checksum: write.checksum });
        }
        let names = entries.iter().map(|entry| entry.block.name);
        let id = ExtentId::of(&shared.form, &shared.seal, names);
        let header = ExtentHeader { written_unix_ms: shared.writes_at_unix_ms(), entries };
        let head = Bytes::from(header.encode(&shared.form, &shared.seal));
        let payload = PutPayload::from_iter([head, Bytes::from(frames)]);
        Self { path: shared.paths.extent(id), header, id, payload }
    }

    fn blocks(&self) -> impl Iterator<Item = Block> {
        self.header.entries.iter().map(|entry| entry.block)
    }

    /// Puts the extent into the bucket, or finds it there.
    async fn put(&self, shared: &Shared) -> Result<(), BucketFailure> {
        if self.header.entries.is_empty() {
            return Ok(());
        }
        // If it was found to be bad, the extent that is there is no good.
        let mode = match shared.is_overwritten(self.id) {
            true => PutMode::Overwrite,
            false => PutMode::Create,
        };
        match self.put_as(shared, mode).await {
            Err(BucketFailure::Present) if self.is_present(shared).await? => Ok(()),
            Err(BucketFailure::Present) => self.put_as(shared, PutMode::Overwrite).await,
            ended => ended,
        }
    }

    async fn put_as(&self, shared: &Shared, mode: PutMode) -> Result<(), BucketFailure> {
        let store = &shared.edges.store;
        let put = store.put_opts(&self.path, self.payload.clone(), mode.into());
        put.map_ok(|_| ()).map_err(|error| shared.judge(&error)).await
    }

    /// Whether what is in the bucket under this name is such an extent: with the same blocks, of
    /// this fleet, and not to be forgotten. Its KV may differ in bits that do not matter.
    async fn is_present(&self, shared: &Shared) -> Result<bool, BucketFailure> {
        let layout = shared.layout(self.header.entries.len());
        let range = 0..layout.header_bytes() as u64;
        let mut body = match fetch(shared, &self.path, range, layout.bytes()).await {
            Err(BucketFailure::Wrong | BucketFailure::Missing) => return Ok(false),
            body => body?,
        };
        let mut bytes = Vec::with_capacity(layout.header_bytes());
        while let Some(more) = body.next().await
            && bytes.len() < layout.header_bytes()
        {
            bytes.extend_from_slice(&more?);
        }
        let header = ExtentHeader::decode(&bytes, &shared.form, &shared.seal);
        let cleared = shared.cleared_unix_ms.load(Relaxed);
        Ok(header.is_some_and(|header| {
            let names = header.entries.iter().map(|entry| entry.block.name);
            header.written_unix_ms > cleared && names.eq(self.blocks().map(|block| block.name))
        }))
    }

    /// Notes that the bucket has the extent.
    fn record(&self, shared: &Shared) {
        if self.header.entries.is_empty() {
            return;
        }
        shared.restore(self.id);
        let names = self.blocks().map(|block| block.name).collect();
        let gone = {
            let mut catalog = shared.catalog.lock();
            // It may be known, without the block whose frame was bad.
            let mut gone = catalog.remove_id(self.id);
            gone.extend(catalog.insert(self.id, names).gone);
            gone.retain(|name| catalog.place(*name).is_none());
            gone
        };
        shared.journal.lock().record(IndexedExtent {
            id: self.id,
            written_unix_ms: self.header.written_unix_ms,
            blocks: self.blocks().collect(),
        });
        Counters::add(&shared.counters.extents_written, 1);
        Counters::add(&shared.counters.bytes_written, self.payload.content_length() as u64);
        Counters::add(&shared.counters.blocks_written, self.header.entries.len() as u64);
        shared.written.notify_one();
        shared.report_gone(gone);
    }
}
