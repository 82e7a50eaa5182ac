//! Running requests that gave way to others.

use crate::exposition::{SeriesValue, rows, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::{buckets, names};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Labels of all metrics here but those of [`Issued`].
const POOL: [&str; 1] = ["inference_pool"];
/// Labels of the requests that were revoked.
const ISSUED: [&str; 2] = ["priority", "inference_pool"];
/// Labels of the requests whose revocation came to an end.
const ENDED: [&str; 2] = ["outcome", "inference_pool"];
const CONFIRMED: &str = "confirmed";
const TIMED_OUT: &str = "timed_out";

/// Revocations of all pools that have any.
#[derive(Debug)]
pub(crate) struct Revocations {
    issued: Family<2, AtomicU64>,
    ended: Family<2, AtomicU64>,
    pools: Family<1, Levels>,
}

#[derive(Debug)]
struct Levels {
    /// Bits of the saturation that was last too much for those that waited.
    target: AtomicU64,
    /// Bits of the saturation that revoked requests are assumed to free.
    pending: AtomicU64,
    confirmation: Histogram,
}

/// Counts of the revocations of one pool. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReclaimMetrics {
    all: Arc<Revocations>,
    pool: Arc<Child<1, Levels>>,
}

impl Revocations {
    pub(crate) fn new() -> Self {
        let (issued, ended) = (Family::new(usize::MAX), Family::new(usize::MAX));
        Self { issued, ended, pools: Family::new(usize::MAX) }
    }

    /// Registers the counts of a pool.
    pub(crate) fn of(self: &Arc<Self>, pool: &str) -> ReclaimMetrics {
        let levels = || Levels {
            target: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            confirmation: Histogram::new(buckets::QUEUE_SECONDS),
        };
        ReclaimMetrics { all: self.clone(), pool: self.pools.always(&[pool], levels) }
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let count = |child: &Child<2, AtomicU64>| {
            Some(SeriesValue::Counter(child.metric.load(Ordering::Relaxed)))
        };
        let issued = self.issued.children();
        write(encoder, &names::REVOCATIONS_ISSUED, &rows(&issued, &ISSUED, count))?;
        let ended = self.ended.children();
        write(encoder, &names::REVOCATIONS, &rows(&ended, &ENDED, count))?;
        let pools = self.pools.children();
        let level = |level: fn(&Levels) -> &AtomicU64| {
            rows(&pools, &POOL, move |child| {
                let bits = level(&child.metric).load(Ordering::Relaxed);
                Some(SeriesValue::Gauge(f64::from_bits(bits)))
            })
        };
        write(encoder, &names::RECLAIM_TARGET, &level(|levels| &levels.target))?;
        write(encoder, &names::PENDING_RECLAIM, &level(|levels| &levels.pending))?;
        let read =
            |child: &Child<1, Levels>| child.metric.confirmation.read().map(SeriesValue::Histogram);
        write(encoder, &names::REVOCATION_CONFIRMATION, &rows(&pools, &POOL, read))
    }
}

impl ReclaimMetrics {
    /// A waiting request lacks `target` of room, of which `pending` is being freed.
    pub fn level(&self, target: f64, pending: f64) {
        self.pool.metric.target.store(target.to_bits(), Ordering::Relaxed);
        self.pool.metric.pending.store(pending.to_bits(), Ordering::Relaxed);
    }

    /// A running request of this priority was revoked.
    pub fn issued(&self, priority: i32) {
        let labels = [&*priority.to_string(), self.name()];
        let issued = self.all.issued.always(&labels, AtomicU64::default);
        issued.metric.fetch_add(1, Ordering::Relaxed);
    }

    /// A revoked request ended `after` its revocation.
    pub fn confirmed(&self, after: Duration) {
        self.pool.metric.confirmation.observe_duration(after);
        self.ended(CONFIRMED, 1);
    }

    /// Counts revoked requests that did not end in time.
    pub fn timed_out(&self, count: u64) {
        if count > 0 {
            self.ended(TIMED_OUT, count);
        }
    }

    fn ended(&self, outcome: &str, count: u64) {
        let ended = self.all.ended.always(&[outcome, self.name()], AtomicU64::default);
        ended.metric.fetch_add(count, Ordering::Relaxed);
    }

    fn name(&self) -> &str {
        &self.pool.labels[0]
    }
}
