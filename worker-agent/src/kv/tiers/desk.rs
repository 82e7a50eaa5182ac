//! The tiers of an agent as its operators reach them.

use parking_lot::Mutex;
use stator_kv::cache::TieredCache;
use stator_kv::disk::DiskTier;
use std::fmt;
use std::sync::{Arc, Weak};

/// Operators' access to the tiers of an agent: there are none, there will be some when the first
/// engine comes, or they are open. It keeps none of them alive. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct TierDesk(Option<Arc<Mutex<TierLinks>>>);

/// Links to open tiers.
#[derive(Default)]
struct TierLinks {
    cache: Weak<TieredCache>,
    disk: Weak<DiskTier>,
}

/// Tiers that are open.
pub(crate) struct OpenTiers {
    pub(crate) cache: Arc<TieredCache>,
    /// The disk tier, if there is one.
    pub(crate) disk: Option<Arc<DiskTier>>,
}

/// Why there are no tiers to operate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTiers {
    #[error("the agent has no KV tiers: it was started without kv-host-gb")]
    Never,
    #[error("the KV tiers are not open yet: no engine has joined")]
    NotYet,
}

impl TierDesk {
    /// The desk of tiers that are to be opened.
    pub(crate) fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// The tiers are open.
    pub(crate) fn opened(&self, cache: &Arc<TieredCache>, disk: Weak<DiskTier>) {
        if let Some(links) = &self.0 {
            *links.lock() = TierLinks { cache: Arc::downgrade(cache), disk };
        }
    }

    /// The tiers.
    ///
    /// # Errors
    ///
    /// The agent has none, or none is open.
    pub(crate) fn tiers(&self) -> Result<OpenTiers, NoTiers> {
        let links = self.0.as_ref().ok_or(NoTiers::Never)?.lock();
        let cache = links.cache.upgrade().ok_or(NoTiers::NotYet)?;
        Ok(OpenTiers { cache, disk: links.disk.upgrade() })
    }
}

impl fmt::Debug for TierDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierDesk").field("has_tiers", &self.0.is_some()).finish()
    }
}
