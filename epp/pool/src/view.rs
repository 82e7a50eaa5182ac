//! View of a pool at one moment.

use crate::Rewrites;
use stator_epp_scheduler::Endpoint;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An immutable snapshot of a pool, which one request reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolView {
    /// Endpoints that take requests, by worker and rank. One that did not change between two
    /// views is the same `Arc` in both.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Whether the pool and its endpoints are known. `false` before the first complete look, and
    /// for a pool that was deleted; never `false` because a source is out of reach.
    pub synced: bool,
    /// Protocol of the endpoints.
    pub app_protocol: AppProtocol,
    /// Ports of the pool; their positions are the ranks of its endpoints.
    pub target_ports: Vec<u16>,
    /// Priority by the name of an objective; negative is sheddable.
    pub objectives: Arc<BTreeMap<String, i32>>,
    /// Replacements of requested models.
    pub rewrites: Arc<Rewrites>,
    /// Time from which the source of the pool or of its endpoints has been out of reach; all above
    /// is from then. `None` while the source answers.
    pub stale_since: Option<Instant>,
}

impl PoolView {
    /// Time for which the source has been out of reach; 0 while it answers.
    pub fn stale_for(&self, now: Instant) -> Duration {
        self.stale_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// The priority of an objective; `None` for one that nobody defined.
    pub fn priority(&self, objective: &str) -> Option<i32> {
        self.objectives.get(objective).copied()
    }
}

/// Protocol of a pool's endpoints.
///
/// Source: `spec.appProtocol` of `InferencePool` v1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AppProtocol {
    /// Unknown protocol: the pool of a selector, or of a file without `appProtocol`.
    #[default]
    Unsaid,
    /// HTTP/1.1, `http`.
    Http,
    /// HTTP/2 in clear text, as gRPC needs it, `kubernetes.io/h2c`.
    H2c,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_ages_only_while_its_source_is_out_of_reach() {
        let start = Instant::now();
        let later = start + Duration::from_secs(7);
        let fresh = PoolView::default();
        let stale = PoolView { stale_since: Some(start), ..PoolView::default() };
        assert_eq!(fresh.stale_for(later), Duration::ZERO);
        assert_eq!(stale.stale_for(later), Duration::from_secs(7));
        assert_eq!(stale.stale_for(start - Duration::from_secs(1)), Duration::ZERO);
    }
}
