//! Keeps the index: tells others what was written here, and learns what others have written.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use stator_protos::name::BlockName;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::index::{INDEX_BYTES_MAX, IndexObject};
use super::shared::{Shared, unix_ms};
use super::sweep;
use crate::Block;
use crate::tier::TierReport;

/// IndexObject objects that are read, the newest of those that there are.
const INDEXES_MAX: usize = 4096;
/// Bytes of them that are read at a time: more than tell of all blocks that a catalog keeps.
const READ_BYTES_MAX: u64 = 512 << 20;
/// IndexObject objects that are asked for at a time.
const FETCHES: usize = 8;
/// Blocks in one report.
const REPORT_BLOCKS: usize = 4096;
/// Largest advance of another agent's clock.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// The task that keeps the index. It alone knows what it has read.
pub(crate) struct IndexKeeper {
    shared: Arc<Shared>,
    /// IndexObject objects that were read, with what tells their versions apart.
    seen: HashMap<Path, Version>,
    next_write: Instant,
    next_read: Instant,
    /// Bytes of extents that were written before the last sweep.
    swept_bytes: u64,
}

type Version = (Option<String>, u64, i64);

impl IndexKeeper {
    /// A keeper that has seen nothing.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Self { shared, seen: HashMap::new(), next_write: now, next_read: now, swept_bytes: 0 }
    }

    /// Works until `closed`.
    pub(crate) async fn run(&mut self, mut closed: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = is_closed(&mut closed) => return,
                () = self.write_due() => self.write().await,
                () = sleep_until(self.next_read) => {
                    // Looking may take long, and is of no use once the tier is closed.
                    tokio::select! {
                        () = is_closed(&mut closed) => return,
                        () = self.look() => {}
                    }
                    self.next_read = Instant::now() + self.shared.settings.times.index_read;
                }
            }
        }
    }

    /// Looks at what others have written and at how full a directory is.
    async fn look(&mut self) {
        self.read().await;
        self.sweep().await;
    }

    /// Waits until something is to be told and may be told.
    async fn write_due(&self) {
        while !self.shared.journal.lock().is_dirty() {
            self.shared.written.notified().await;
        }
        sleep_until(self.next_write).await;
    }

    /// Writes the index objects that are not as they should be.
    pub(crate) async fn write(&mut self) {
        let shared = &self.shared;
        self.next_write = Instant::now() + shared.settings.times.index_write;
        loop {
            let (writer, next) = {
                let mut journal = shared.journal.lock();
                (journal.writer(), journal.next())
            };
            let Some((number, index)) = next else { break };
            let path = shared.paths.index(writer, number);
            let payload = PutPayload::from(index.encode(&shared.form, &shared.seal));
            let put = shared.edges.store.put_opts(&path, payload, PutMode::Overwrite.into());
            match timeout(shared.settings.times.write, put).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, "an index object could not be written");
                    shared.journal.lock().failed(number, index);
                    break;
                }
                Err(_) => {
                    shared.journal.lock().failed(number, index);
                    break;
                }
            }
        }
        if self.is_sweep_due() {
            self.sweep().await;
        }
    }

    /// Reads the index objects that are new or have changed.
    async fn read(&mut self) {
        let limit = self.shared.settings.times.write;
        let listed = match timeout(limit, self.list()).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the index in the object store could not be listed");
                return;
            }
            Err(_) => return,
        };
        let mut indexes = self.fetch(listed).await;
        if self.observe_clear(&indexes) {
            // Of what was forgotten, some was written later and is told again.
            self.seen.clear();
            let Ok(Ok(listed)) = timeout(limit, self.list()).await else { return };
            indexes = self.fetch(listed).await;
        }
        self.report(indexes);
    }

    /// IndexObject objects that were not seen before as they are now, oldest first.
    async fn list(&self) -> object_store::Result<Vec<(Path, Version)>> {
        let folder = self.shared.paths.indexes();
        let mut listed = self.shared.edges.store.list(Some(&folder));
        let mut newest = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            if meta.size <= INDEX_BYTES_MAX as u64 {
                newest.push(meta);
            }
            // A bucket may have any number of objects.
            if newest.len() >= 2 * INDEXES_MAX {
                keep_newest(&mut newest);
            }
        }
        keep_newest(&mut newest);
        let version = |meta: ObjectMeta| {
            (meta.location, (meta.e_tag, meta.size, meta.last_modified.timestamp_millis()))
        };
        Ok(newest.into_iter().map(version).collect())
    }

    async fn fetch(&mut self, listed: Vec<(Path, Version)>) -> Vec<IndexObject> {
        // Only what is still there is remembered: the memory is bounded as the list is.
        let before = std::mem::take(&mut self.seen);
        let (known, new): (Vec<_>, Vec<_>) =
            listed.into_iter().partition(|(path, version)| before.get(path) == Some(version));
        self.seen.extend(known);
        let shared = &self.shared;
        let fetches = new.into_iter().map(|(path, version)| async move {
            let get = async {
                let object = shared.edges.store.get(&path).await.ok()?;
                // It may have grown since it was listed.
                let is_small = object.meta.size <= INDEX_BYTES_MAX as u64;
                if is_small { object.bytes().await.ok() } else { None }
            };
            let bytes = timeout(shared.settings.times.read, get).await.ok()??;
            let index = IndexObject::decode(&bytes, &shared.form, &shared.seal);
            Some((path, version, index))
        });
        let mut fetched = futures::stream::iter(fetches).buffered(FETCHES);
        let mut indexes = Vec::new();
        while let Some(read) = fetched.next().await {
            // What could not be read is asked for again next time, what is no index is not.
            let Some((path, version, index)) = read else { continue };
            self.seen.insert(path, version);
            indexes.extend(index.filter(|index| {
                index.cleared_unix_ms <= unix_ms() + CLOCK_SKEW.as_millis() as u64
            }));
        }
        indexes
    }

    /// Forgets all if another agent said so. Returns whether it did.
    fn observe_clear(&self, indexes: &[IndexObject]) -> bool {
        let told = indexes.iter().map(|index| index.cleared_unix_ms).max().unwrap_or(0);
        if self.shared.cleared_unix_ms.fetch_max(told, Relaxed) >= told {
            return false;
        }
        let gone = self.shared.catalog.lock().clear();
        self.shared.report_gone(gone);
        true
    }

    /// Takes what the indexes tell into the catalog, and reports what is new.
    fn report(&self, indexes: Vec<IndexObject>) {
        let shared = &self.shared;
        let cleared = shared.cleared_unix_ms.load(Relaxed);
        let (mut found, mut gone) = (Vec::<Block>::new(), Vec::<BlockName>::new());
        for extent in indexes.into_iter().flat_map(|index| index.extents) {
            let written = extent.written_unix_ms;
            if written <= cleared || shared.is_lost(extent.id, written) {
                continue;
            }
            let names = extent.blocks.iter().map(|block| block.name).collect();
            let change = shared.catalog.lock().insert(extent.id, names);
            found.extend(change.found.iter().map(|at| extent.blocks[usize::from(*at)]));
            gone.extend(change.gone);
        }
        {
            let catalog = shared.catalog.lock();
            found.retain(|block| catalog.place(block.name).is_some());
            gone.retain(|name| catalog.place(*name).is_none());
        }
        found.sort_by_key(|block| block.depth);
        for blocks in found.chunks(REPORT_BLOCKS) {
            (shared.edges.report)(TierReport::Found(blocks.to_vec()));
        }
        shared.report_gone(gone);
    }

    fn is_sweep_due(&self) -> bool {
        let written = self.shared.counters.bytes_written.load(Relaxed);
        self.shared.settings.capacity_bytes.is_some_and(|capacity| {
            written - self.swept_bytes > capacity / sweep::CAPACITY_PER_SWEEP
        })
    }

    /// Deletes the oldest extents of a directory that is too full.
    async fn sweep(&mut self) {
        self.swept_bytes = self.shared.counters.bytes_written.load(Relaxed);
        sweep::sweep(&self.shared).await;
    }
}

/// Keeps the newest objects, oldest first, as many as are read.
fn keep_newest(listed: &mut Vec<ObjectMeta>) {
    listed.sort_by_key(|meta| meta.last_modified);
    let mut bytes = 0;
    let sizes = listed.iter().rev().map(|meta| meta.size);
    let kept = sizes.take(INDEXES_MAX).take_while(|size| {
        bytes += size;
        bytes <= READ_BYTES_MAX
    });
    let oldest = listed.len() - kept.count();
    listed.drain(..oldest);
}

/// Waits until the tier is closed.
async fn is_closed(closed: &mut watch::Receiver<bool>) {
    // An error means that the tier is gone.
    let _ = closed.wait_for(|closed| *closed).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_newest_objects_are_read_within_their_room() {
        let object = |number: u64, size| ObjectMeta {
            location: Path::from(format!("{number}")),
            last_modified: (UNIX_EPOCH + Duration::from_secs(number)).into(),
            size,
            e_tag: None,
            version: None,
        };
        let kept = |sizes: &[u64]| {
            let mut listed: Vec<_> = (0..).zip(sizes).map(|(at, size)| object(at, *size)).collect();
            listed.reverse();
            keep_newest(&mut listed);
            let times = listed.iter().map(|meta| meta.last_modified.timestamp() as usize);
            times.collect::<Vec<_>>()
        };
        let half = READ_BYTES_MAX / 2;
        assert_eq!(kept(&[1, half, half]), [1, 2]);
        assert_eq!(kept(&[1, half, half + 1]), [2]);
        assert_eq!(kept(&vec![1; INDEXES_MAX + 2]), (2..INDEXES_MAX + 2).collect::<Vec<_>>());
        assert_eq!(kept(&[]), [0; 0]);
    }
}
