//! The bound over all streams on what is held of request bodies.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// Bytes of request bodies that all streams together may hold until they are decided and sent on.
/// Clones are the same budget.
#[derive(Clone, Debug)]
pub struct BodyBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit_bytes: usize,
    held_bytes: Gauge,
    refused: Counter,
}

impl BodyBudget {
    /// A budget of which nothing is used.
    pub fn new(limit_bytes: usize) -> Self {
        let (held_bytes, refused) = Default::default();
        Self(Arc::new(Inner { limit_bytes, held_bytes, refused }))
    }

    /// How much may be held.
    pub fn limit_bytes(&self) -> usize {
        self.0.limit_bytes
    }

    /// Makes known what is held, and how often there was no room.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_epp");
        let Inner { held_bytes, refused, .. } = &*self.0;
        let help = "Bytes of request bodies that are held until they are sent on";
        registry.register("bodies_held_bytes", help, held_bytes.clone());
        let help = "Requests refused because of --max-bodies-bytes";
        registry.register("bodies_refused", help, refused.clone());
    }

    /// The share of one stream, nothing so far.
    pub(crate) fn share(&self) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

impl Default for BodyBudget {
    /// 1 GiB.
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

impl PartialEq for BodyBudget {
    fn eq(&self, other: &Self) -> bool {
        self.limit_bytes() == other.limit_bytes()
    }
}

impl Eq for BodyBudget {}

/// What one stream holds. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: BodyBudget,
    bytes: i64,
}

impl Share {
    /// Holds so many bytes more; false, and nothing changes, where that is too much for all
    /// streams together.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let Inner { limit_bytes, held_bytes, refused } = &*self.budget.0;
        let more = i64::try_from(bytes).unwrap_or(i64::MAX);
        // A body piece is in memory, and so no sum of them overflows.
        let held = held_bytes.inc_by(more).saturating_add(more);
        if held > i64::try_from(*limit_bytes).unwrap_or(i64::MAX) {
            held_bytes.dec_by(more);
            refused.inc();
            return false;
        }
        self.bytes += more;
        true
    }

    /// Holds nothing any more.
    pub(crate) fn release(&mut self) {
        if self.bytes > 0 {
            self.budget.0.held_bytes.dec_by(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_what_there_is_and_give_it_back() {
        let budget = BodyBudget::new(100);
        let (mut one, mut two) = (budget.share(), budget.clone().share());
        assert!(one.grow(60) && two.grow(40));
        assert!(!two.grow(1));
        assert_eq!((budget.0.held_bytes.get(), budget.0.refused.get()), (100, 1));
        one.release();
        assert!(two.grow(60) && !one.grow(1));
        drop(two);
        assert!(one.grow(100));
        drop(one);
        assert_eq!(budget.0.held_bytes.get(), 0);
    }
}
