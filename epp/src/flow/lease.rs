//! Running requests that may be revoked, and the switches of their streams.

use super::reclaim::{Demand, Reclaim};
use crate::exchange::Refusal;
use crate::pool::Pool;
use parking_lot::Mutex;
use stator_epp_metrics::{EppMetrics, ReclaimMetrics};
use stator_epp_plugins::settings::Detector;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// From the end of a stream until requests in flight show it.
const COUNTED_GRACE: Duration = Duration::from_millis(10);
/// Time that an engine takes to abort a request and give its memory back.
const ABORT_GRACE: Duration = Duration::from_millis(250);
/// Time after which a client whose request was revoked should come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longest time that a saturation takes to show that a request has ended.
///
/// Source: the eviction of the llm-d router.
pub(crate) fn grace(detector: &Detector, report_age_max: Duration) -> Duration {
    match detector {
        Detector::Concurrency(_) => COUNTED_GRACE,
        Detector::Utilization(_) => report_age_max + ABORT_GRACE,
    }
}

/// The running requests of a pool that may be revoked.
pub(super) struct Leases {
    reclaim: Mutex<Reclaim<oneshot::Sender<()>>>,
    grace: Duration,
    pool: Weak<Pool>,
    metrics: ReclaimMetrics,
    start: Instant,
}

/// A running request that may be revoked. It ends when this is dropped.
pub(crate) struct Lease {
    leases: Arc<Leases>,
    priority: i32,
    id: u64,
    revoked: oneshot::Receiver<()>,
}

impl Leases {
    /// Nothing runs yet.
    pub(super) fn new(pool: &Arc<Pool>, grace: Duration, metrics: &EppMetrics) -> Arc<Self> {
        Arc::new(Self {
            reclaim: Mutex::new(Reclaim::new(grace)),
            grace,
            metrics: metrics.flow.reclaimed(pool.label()),
            pool: Arc::downgrade(pool),
            start: Instant::now(),
        })
    }

    /// Whether a request of this priority gives way to others.
    ///
    /// Source: `sheddable-eviction-filter` of the llm-d router.
    pub(super) fn sheddable(priority: i32) -> bool {
        priority < 0
    }

    /// A request that gives way runs from now on.
    pub(super) fn begin(self: &Arc<Self>, priority: i32) -> Lease {
        let (sender, revoked) = oneshot::channel();
        let id = self.reclaim.lock().begin(priority, sender);
        Lease { leases: self.clone(), priority, id, revoked }
    }

    /// A request waits that finds no room.
    pub(super) fn blocked(&self, demand: Demand) {
        let decision = self.reclaim.lock().decide(demand, self.start.elapsed());
        self.metrics.level(decision.deficit, decision.pending);
        self.metrics.timed_out(decision.timed_out as u64);
        for (priority, revoke) in decision.victims {
            self.metrics.issued(priority);
            tracing::debug!(priority, by = demand.priority, "a running request is revoked");
            // Who does not listen any more has ended by itself.
            let _ = revoke.send(());
        }
    }

    fn ended(&self, priority: i32, id: u64) {
        let after = self.reclaim.lock().ended(priority, id, self.start.elapsed());
        let Some(after) = after else { return };
        self.metrics.confirmed(after);
        // Those that still wait look again once the next may be revoked. Without a runtime the
        // process ends, and nobody waits.
        let (pool, grace) = (self.pool.clone(), self.grace);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(grace).await;
                pool.upgrade().iter().for_each(|pool| pool.kick());
            });
        }
    }
}

impl Lease {
    /// The refusal that the client of a revoked request gets.
    pub(crate) fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        match Pin::new(&mut self.revoked).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Refusal {
                status: 429,
                message: "request evicted by flow control".to_owned(),
                reason: Some("evicted"),
                retry_after: Some(RETRY_AFTER),
                body: None,
            }),
            // The sender is there as long as this is: only what was revoked loses it.
            _ => Poll::Pending,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.ended(self.priority, self.id);
    }
}
