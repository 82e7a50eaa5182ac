//! Settings of a cache, and its reports.

use crate::arena::Arena;
use crate::metrics::KvMetrics;
use crate::store::{RequestId, TierSettings};
use crate::tier::{Tier, TierEvent, TierReport};
use crate::{BlockForm, SlotId};
use stator_pins::PinLimits;
use std::error::Error;
use std::io;
use std::sync::Arc;

/// Settings of a [`super::TieredCache`].
pub struct CacheSettings {
    /// Blocks of host memory.
    pub slots: u32,
    /// Tiers below host memory, nearest first; at most eight.
    pub tiers: Vec<CacheTier>,
    /// Share of host memory that the blocks of one tenant may have, in percent. Default: no quota.
    pub tenant_share_percent: Option<u8>,
    /// Limits of what clients may pin in host memory. Default: nothing.
    pub pins: PinLimits,
    /// Whether blocks in host memory are compared with their checksums whenever a request is to
    /// use them. Default: yes.
    pub verify_host: bool,
    /// Bytes of host memory that are compared before a question is answered; what is behind them is
    /// compared afterwards, as many bytes at a time. At least a block is. Default: 8 MiB, which take
    /// a millisecond.
    pub verify_bytes: usize,
    /// Hears which medium holds which blocks. Default: nobody does.
    pub events: TierEventListener,
    /// Counts what happens. Default: metrics that nobody reads.
    pub metrics: KvMetrics,
}

impl CacheSettings {
    /// Default settings for so many blocks of host memory.
    pub fn new(slots: u32) -> Self {
        Self {
            slots,
            tiers: Vec::new(),
            tenant_share_percent: None,
            pins: PinLimits::NONE,
            verify_host: true,
            verify_bytes: 8 << 20,
            events: Arc::new(|_| {}),
            metrics: KvMetrics::default(),
        }
    }
}

/// A tier below host memory that is to be opened.
pub struct CacheTier {
    /// Name in metrics and messages, for example `disk`.
    pub name: &'static str,
    /// Limits that the store keeps to.
    pub settings: TierSettings,
    /// Opens the tier.
    pub open: TierOpener,
}

/// Opens a tier, which may report from then on, and also before that.
pub type TierOpener =
    Box<dyn FnOnce(TierPlace) -> Result<Arc<dyn Tier>, Box<dyn Error + Send + Sync>> + Send>;

/// Surroundings of a tier.
pub struct TierPlace {
    /// Form of all blocks.
    pub form: BlockForm,
    /// The memory that blocks are read into and written from.
    pub arena: Arc<Arena>,
    /// Takes the tier's reports, from any thread.
    pub report: TierReporter,
}

/// Takes a tier's reports. Returns at once.
pub type TierReporter = Arc<dyn Fn(TierReport) + Send + Sync>;

/// Hears of the progress of a client's requests.
pub type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;

/// Hears which medium holds which blocks, in the order in which it happens.
pub type TierEventListener = Arc<dyn Fn(TierEvent) + Send + Sync>;

/// More leading blocks of a request are there. The ready prefix never shrinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub request: RequestId,
    /// Slots that follow those already reported, pinned until the request ends.
    pub slots: Vec<SlotId>,
    /// Blocks still on their way. After zero no more will come.
    pub pending: usize,
}

/// Why a cache cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum CacheOpenError {
    /// The system does not give the memory.
    #[error("no memory for the KV arena: {0}")]
    Arena(#[source] io::Error),
    /// A tier cannot be opened.
    #[error("the KV tier {name:?} cannot be opened: {error}")]
    Tier {
        /// Its name in the settings.
        name: &'static str,
        /// The reason.
        error: Box<dyn Error + Send + Sync>,
    },
    /// The system does not give a thread.
    #[error("no thread for the KV cache: {0}")]
    Thread(#[source] io::Error),
}
