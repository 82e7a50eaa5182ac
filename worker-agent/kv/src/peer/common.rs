//! State that all peers of a tier share.

use super::counts::Counters;
use super::hints::Hints;
use super::settings::PeerSettings;
use crate::arena::Arena;
use crate::tier::{TierError, TierRead, TierReport};
use crate::transfer::ReaderIdentity;
use crate::transfer::direct::DirectWay;
use crate::{BlockForm, Checksum};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

/// Hears what became of reads, and what peers hold. It is called outside all locks of the tier, from
/// any thread: within [`super::PeerTier::hint`], and never within a call of
/// [`Tier`](crate::tier::Tier).
pub type ReportListener = Arc<dyn Fn(TierReport) + Send + Sync>;

/// State that all peers of a tier share.
pub(super) struct PeerCommon {
    pub(super) settings: PeerSettings,
    pub(super) form: BlockForm,
    /// Connections with its number share their leases.
    pub(super) reader: ReaderIdentity,
    pub(super) arena: Arc<Arena>,
    pub(super) listener: ReportListener,
    pub(super) counters: Counters,
    pub(super) hints: Mutex<Hints>,
    /// The way to read arenas of peers directly, once there is one.
    pub(super) direct: OnceLock<DirectReads>,
}

/// Reads of peers' arenas that need nothing of the peers.
#[derive(Clone)]
pub struct DirectReads {
    /// The way in which arenas are read.
    pub way: Arc<dyn DirectWay>,
    /// Counts bytes that came so.
    pub bytes: Counter,
}

impl PeerCommon {
    /// Reports what became of a read.
    pub(super) fn report(&self, read: TierRead, result: Result<Checksum, TierError>) {
        let counters = &self.counters;
        match result {
            Ok(_) => {
                counters.blocks.fetch_add(1, Relaxed);
                counters.bytes.fetch_add(self.form.block_bytes as u64, Relaxed);
            }
            Err(TierError::Missing) => drop(counters.missing.fetch_add(1, Relaxed)),
            Err(TierError::Corrupt) => drop(counters.corrupt.fetch_add(1, Relaxed)),
            Err(TierError::Cancelled) => {}
            Err(TierError::Busy | TierError::Full | TierError::Failed) => {
                counters.failed.fetch_add(1, Relaxed);
            }
        }
        if matches!(result, Err(TierError::Missing | TierError::Corrupt)) {
            self.hints.lock().remove(read.name);
        }
        (self.listener)(TierReport::Read { name: read.name, slot: read.slot, result });
    }

    /// Reports reads that failed together, because their peer did: the first with the error, and
    /// the others as misses. A store leaves a tier alone after some failures in a row, and one dead
    /// peer must not keep it from the living.
    pub(super) fn report_failed(&self, reads: &[TierRead], error: TierError) {
        for (at, read) in reads.iter().enumerate() {
            let is_first = at == 0 || error != TierError::Failed;
            self.report(*read, Err(if is_first { error } else { TierError::Missing }));
        }
    }
}
