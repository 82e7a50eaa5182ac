//! State that the tasks of the tier share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use object_store::ObjectStore;
use parking_lot::Mutex;
use stator_protos::name::BlockName;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::breaker::Breaker;
use super::bucket::BucketPaths;
use super::catalog::{BlockPlace, Catalog};
use super::counts::Counters;
use super::extent::{BLOCKS_MAX, ExtentId, ExtentLayout};
use super::failure::BucketFailure;
use super::hedge::Hedge;
use super::journal::Journal;
use super::lanes::{ExtentRule, Lanes, ReportSink};
use super::seal::Seal;
use super::settings::ObjectSettings;
use crate::BlockForm;
use crate::arena::Arena;
use crate::cipher::KvCipher;
use crate::tier::TierReport;

/// Most extents that are remembered as lost, at about 50 bytes of memory each.
const LOST_MAX: usize = 16 << 10;

/// Parts that the tier works with.
pub(crate) struct Edges {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) report: ReportSink,
}

/// State that the tasks of the tier share. No lock is held while another is taken, nor while anything
/// is reported or waited for, but that of the catalog within that of the lanes.
pub(crate) struct Shared {
    pub(crate) settings: ObjectSettings,
    pub(crate) form: BlockForm,
    pub(crate) edges: Edges,
    pub(crate) paths: BucketPaths,
    pub(crate) seal: Seal,
    pub(crate) lanes: Mutex<Lanes>,
    pub(crate) catalog: Mutex<Catalog>,
    pub(crate) journal: Mutex<Journal>,
    pub(crate) breaker: Mutex<Breaker>,
    pub(crate) hedge: Mutex<Hedge>,
    /// Extents that were gone, not theirs or had a bad frame, and when that was seen in ms since the
    /// Unix epoch. They are overwritten when their blocks come again.
    lost: Mutex<BTreeMap<ExtentId, u64>>,
    /// The client's words about the last request without an answer.
    trouble: Mutex<String>,
    /// Something is in the lanes.
    pub(crate) queued: Notify,
    /// Something is in the journal.
    pub(crate) written: Notify,
    /// Extents that were written until then are forgotten, in ms since the Unix epoch.
    pub(crate) cleared_unix_ms: AtomicU64,
    pub(crate) counters: Counters,
}

impl Shared {
    /// The state of a tier that knows nothing of its bucket yet.
    pub(crate) fn new(settings: ObjectSettings, form: BlockForm, edges: Edges) -> Self {
        let cipher = settings.cipher_key.as_ref();
        let cipher = cipher.map(|key| KvCipher::new(key, &form.fingerprint));
        // Agents with another key, or none, are elsewhere in the bucket: what they would find could
        // be of no use to them.
        let folder = cipher.as_ref().map_or(form.fingerprint, |of| folder_of(of, &form));
        Self {
            paths: BucketPaths::new(&settings.url, &folder),
            seal: Seal::new(settings.key, &form.fingerprint).with_cipher(cipher),
            lanes: Mutex::new(Lanes::new(settings.limits.queue_blocks)),
            catalog: Mutex::new(Catalog::new(settings.limits.index_blocks)),
            journal: Mutex::new(Journal::new(rand::random())),
            breaker: Mutex::new(Breaker::new(settings.times.breaker)),
            hedge: Mutex::default(),
            lost: Mutex::default(),
            trouble: Mutex::default(),
            queued: Notify::new(),
            written: Notify::new(),
            cleared_unix_ms: AtomicU64::new(0),
            counters: Counters::default(),
            settings,
            form,
            edges,
        }
    }

    /// Rules for making extents of blocks.
    pub(crate) fn rule(&self) -> ExtentRule {
        let blocks = (self.settings.extent_bytes / self.form.block_bytes).clamp(1, BLOCKS_MAX);
        ExtentRule { blocks, linger: self.settings.times.linger }
    }

    /// The layout of an extent of so many blocks.
    pub(crate) fn layout(&self, blocks: usize) -> ExtentLayout {
        ExtentLayout::new(blocks, self.form.block_bytes)
    }

    /// Whether the bucket may be asked. The answer must be given to [`Self::learn`].
    pub(crate) fn may_ask(&self) -> bool {
        self.breaker.lock().allow(Instant::now())
    }

    /// Meaning of an error of the client. An outage is kept for the log.
    pub(crate) fn judge(&self, error: &object_store::Error) -> BucketFailure {
        let failure = BucketFailure::from(error);
        if failure == BucketFailure::Outage {
            *self.trouble.lock() = error.to_string();
        }
        failure
    }

    /// The time for a request is over.
    pub(crate) fn late(&self) -> BucketFailure {
        "no answer in time".clone_into(&mut self.trouble.lock());
        BucketFailure::Outage
    }

    /// The bucket answered, or not.
    pub(crate) fn learn(&self, failure: Option<BucketFailure>) {
        if failure == Some(BucketFailure::Outage) {
            Counters::add(&self.counters.outages, 1);
            if self.breaker.lock().failure(Instant::now()) {
                let (pause, error) = (self.settings.times.breaker, self.trouble.lock().clone());
                tracing::warn!(?pause, error, "the object store does not answer; it is left alone");
            }
        } else if self.breaker.lock().success() {
            tracing::info!("the object store answers again");
        }
    }

    /// An extent is not in the bucket any more, or is not what it should be.
    pub(crate) fn forget_extent(&self, id: ExtentId) {
        self.lose(id);
        let gone = self.catalog.lock().remove_id(id);
        self.report_gone(gone);
    }

    /// A frame is not the block that it should be.
    pub(crate) fn forget_block(&self, name: BlockName, place: BlockPlace) {
        let mut catalog = self.catalog.lock();
        let extent = catalog.extent(place.extent);
        let was_there = catalog.remove_block(name, place);
        drop(catalog);
        if let Some((id, _)) = extent
            && self.lose(id)
        {
            tracing::warn!(?id, ?name, "a block in the object store is not what it should be");
        }
        if was_there {
            self.report_gone(vec![name]);
        }
    }

    /// Returns whether the extent was not lost before.
    fn lose(&self, id: ExtentId) -> bool {
        let mut lost = self.lost.lock();
        if lost.len() >= LOST_MAX {
            // Whichever: identities are hashes.
            lost.pop_first();
        }
        lost.insert(id, unix_ms()).is_none()
    }

    /// Whether an extent that was written then has been lost since.
    pub(crate) fn is_lost(&self, id: ExtentId, written_unix_ms: u64) -> bool {
        self.lost.lock().get(&id).is_some_and(|lost| written_unix_ms <= *lost)
    }

    /// Whether an extent is to be overwritten.
    pub(crate) fn is_overwritten(&self, id: ExtentId) -> bool {
        self.lost.lock().contains_key(&id)
    }

    /// An extent has been written, and is lost no more.
    pub(crate) fn restore(&self, id: ExtentId) {
        self.lost.lock().remove(&id);
    }

    /// Reports blocks that the bucket has no more.
    pub(crate) fn report_gone(&self, names: Vec<BlockName>) {
        if !names.is_empty() {
            (self.edges.report)(TierReport::Gone(names));
        }
    }

    /// When KV is written now: later than all that is forgotten, whatever the clock says.
    pub(crate) fn writes_at_unix_ms(&self) -> u64 {
        unix_ms().max(self.cleared_unix_ms.load(Relaxed) + 1)
    }
}

/// The name of the folder of a form that is encrypted.
fn folder_of(cipher: &KvCipher, form: &BlockForm) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(cipher.hash_key());
    hasher.update(b"folder").update(&form.fingerprint);
    *hasher.finalize().as_bytes()
}

/// The time in ms since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_millis() as u64
}
