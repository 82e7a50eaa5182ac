//! KV in an object store: a bucket that speaks S3, or a directory that nodes share.
//!
//! Blocks that are written together become one extent, an object of up to 16 MiB. An extent is
//! named after its blocks and is written once: whoever has the same blocks finds it there. A read
//! is one ranged request for one block, or for several that follow each other, and goes straight
//! into slots of the arena. Every block is verified by its checksum; if the fleet has a secret, also
//! by a tag that nobody else can make, because others may write to a bucket.
//!
//! # Index
//!
//! A map in memory says which block is in which extent. No request lists the bucket. The map learns
//! from what this agent writes, and from small index objects in which every writer tells what it
//! has written. What the index costs, and its bounds:
//!
//! - Memory: about 64 bytes for each block, at most `index_blocks`. Older extents are forgotten.
//! - A writer rewrites its index object at most every 5 s, and only if it has written extents. The
//!   object has at most 16,384 blocks and 700 KB; then the writer begins another. An agent that is
//!   killed loses what it wrote in its last 5 s: the extents lie there, and nobody finds them.
//! - At start and then every 60 s an agent lists the index objects, 1,000 in one request, and reads
//!   those that have changed, at most the newest 4,096. So that is how long an agent takes to see
//!   what another has written, and each writer costs each reader up to 700 KB a minute.
//! - Index objects become as old as their extents. In a directory the sweep deletes both. In S3 a
//!   lifecycle rule on the prefix must, and there is no other limit on what a bucket holds.
//!
//! # Trouble
//!
//! This is a cache, so trouble is a miss: requests are tried three times within 5 s in all, a read
//! whose first byte is later than 95 of 100 is asked for twice, and after three failures in a row
//! nothing is asked for 30 s. Whatever was asked of the tier ends in a report, also when the tier
//! is dropped or its runtime ends.
//!
//! # Clearing
//!
//! [`Tier::clear`] forgets what is known, and says so in the index object: other agents, and this one
//! after a restart, forget all extents that were written before. The objects stay until they are
//! overwritten or too old.
//!
//! [`Tier::forget`] forgets blocks in this agent alone and until its restart: an extent has others'
//! blocks, too, and is written once.

mod breaker;
mod bucket;
mod catalog;
mod counts;
mod dispatch;
mod extent;
mod failure;
mod fetch;
mod hedge;
mod index;
mod journal;
mod keeper;
mod lanes;
mod read;
mod record;
mod seal;
mod settings;
mod shared;
mod sweep;
mod write;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::arena::Arena;
use crate::tier::{Tier, TierError, TierRead, TierReport, TierWrite};
use crate::{BlockForm, SlotId};
use keeper::IndexKeeper;
use lanes::{ReadTicket, ReportSink, WriteTicket};
use shared::{Edges, Shared, unix_ms};

pub use counts::ObjectCounts;
pub use settings::{
    ObjectCredentials, ObjectLimits, ObjectOpenError, ObjectSettings, ObjectTimes, ObjectUrl,
};

/// Formats of the bucket's objects, in bytes.
pub mod format {
    pub use super::extent::{ExtentEntry, ExtentHeader, ExtentId};
    pub use super::extent::{TRAILER_BYTES, open_frame, put_trailer, read_trailer, seal_frame};
    pub use super::index::{IndexObject, IndexedExtent};
    pub use super::seal::{BlockTag, Seal};
}

/// Largest extent that the settings allow.
const EXTENT_BYTES_MAX: usize = 1 << 30;

/// A tier of blocks in an object store. Dropping it writes what is queued, in the background.
pub struct ObjectTier {
    shared: Arc<Shared>,
    closed: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl ObjectTier {
    /// Opens the tier for KV of one form, whose slots are in `arena`. The bucket is asked in the
    /// background: it may be away, and [`TierReport::Found`] tells what it has.
    ///
    /// # Errors
    ///
    /// The settings are wrong, or there is no such directory.
    pub fn open(
        settings: ObjectSettings,
        form: BlockForm,
        arena: Arc<Arena>,
        report: Arc<dyn Fn(TierReport) + Send + Sync>,
    ) -> Result<Self, ObjectOpenError> {
        let (extent_bytes, block_bytes) = (settings.extent_bytes, form.block_bytes);
        if !(block_bytes.max(1)..=EXTENT_BYTES_MAX).contains(&extent_bytes) {
            return Err(ObjectOpenError::Extent { extent_bytes, block_bytes });
        }
        let store = bucket::open(&settings)?;
        Ok(Self::start(settings, form, Edges { store, arena, report }))
    }

    fn start(settings: ObjectSettings, form: BlockForm, edges: Edges) -> Self {
        let handle = settings.handle.clone();
        let shared = Arc::new(Shared::new(settings, form, edges));
        let (closed, is_closed) = watch::channel(false);
        let task = handle.spawn(work(CloseOnDrop(Arc::clone(&shared)), is_closed));
        Self { shared, closed, task: Mutex::new(Some(task)) }
    }

    /// Counters of the tier since it opened.
    pub fn counts(&self) -> ObjectCounts {
        self.shared.counters.counts()
    }

    /// Takes no more work, and waits until all that is queued is done and the index is written.
    /// How long that takes is bounded by the times of the settings.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to be done in the background.
    pub async fn close(&self) {
        self.stop();
        let task = self.task.lock().take();
        if let Some(task) = task {
            // An error means that the runtime has ended, and the task with it.
            let _ = task.await;
        }
    }

    fn stop(&self) {
        self.shared.lanes.lock().close();
        self.shared.queued.notify_one();
        self.closed.send_replace(true);
    }

    /// Ends what came after the tier was closed. Not here and now: the caller may hold a lock that
    /// the report needs.
    fn refuse(&self, ticket: impl Send + 'static) {
        self.shared.settings.handle.spawn(async move { drop(ticket) });
    }

    fn sink(&self) -> ReportSink {
        Arc::clone(&self.shared.edges.report)
    }
}

impl Tier for ObjectTier {
    fn medium(&self) -> Medium {
        Medium::Remote
    }

    fn read(&self, read: TierRead) {
        let refused = self.shared.lanes.lock().push_read(ReadTicket::new(read, self.sink()));
        if let Some(ticket) = refused {
            self.refuse(ticket);
        }
        self.shared.queued.notify_one();
    }

    fn write(&self, write: TierWrite) {
        let ticket = WriteTicket::new(write, self.sink());
        let refused = self.shared.lanes.lock().push_write(ticket, Instant::now());
        if let Some(ticket) = refused {
            self.refuse(ticket);
        }
        self.shared.queued.notify_one();
    }

    fn cancel(&self, name: BlockName, slot: SlotId) {
        let dropped = self.shared.lanes.lock().take_read(name, slot);
        if let Some(ticket) = dropped {
            let report = async move { ticket.end(Err(TierError::Cancelled)) };
            self.shared.settings.handle.spawn(report);
        }
        // Writes wait for reads.
        self.shared.queued.notify_one();
    }

    fn forget(&self, names: &[BlockName]) {
        let refused = self.shared.lanes.lock().take_writes(names);
        for ticket in refused {
            self.refuse(ticket);
        }
        let mut catalog = self.shared.catalog.lock();
        for name in names {
            if let Some(place) = catalog.place(*name) {
                catalog.remove_block(*name, place);
            }
        }
    }

    fn clear(&self) {
        let shared = &self.shared;
        let at = unix_ms().max(shared.cleared_unix_ms.load(Relaxed) + 1);
        shared.cleared_unix_ms.fetch_max(at, Relaxed);
        shared.catalog.lock().clear();
        shared.journal.lock().clear(at);
        shared.written.notify_one();
    }
}

impl Drop for ObjectTier {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The tier's task: everything that it starts ends before it does.
async fn work(shared: CloseOnDrop, closed: watch::Receiver<bool>) {
    let mut keeper = IndexKeeper::new(Arc::clone(&shared.0));
    tokio::join!(dispatch::run(&shared.0), keeper.run(closed));
    // After the last extent.
    keeper.write().await;
}

/// If the runtime ends before the tier, what is queued has failed.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let left = self.0.lanes.lock().abandon();
        drop(left);
    }
}

#[cfg(test)]
pub(crate) mod tests;
