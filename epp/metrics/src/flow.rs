//! Flow control: requests that wait for room, by flow and priority.

use crate::bounded::OTHER;
use crate::decisions::count;
use crate::exposition::{Row, SeriesValue, rows, single, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::names::{FLOW_ENQUEUE_LABELS, FLOW_LABELS, FLOW_OUTCOME_LABELS, FLOW_WAIT_LABELS};
use crate::reclaimed::{ReclaimMetrics, Revocations};
use crate::request::RequestMetrics;
use crate::snapshot::{BandSnapshot, PoolReading, Use};
use crate::{buckets, names};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sets of labels that a metric here keeps. Flows come and go for as long as the process lives;
/// from here on, new ones become `other`.
const SETS_MAX: usize = 16_384;

/// Way in which a request left flow control: label `outcome`.
///
/// Source: the outcomes of flow control in the llm-d router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOutcome {
    /// The request went on to be scheduled.
    Dispatched,
    /// The queue was full.
    RejectedCapacity,
    /// The queue was full and the pool had no endpoint.
    RejectedNoEndpoints,
    /// The picker was ending.
    RejectedOther,
    /// The request's longest wait was over.
    EvictedTtl,
    /// The pool had no endpoint for as long as a request may wait for one.
    EvictedNoEndpoints,
    /// The client is gone.
    EvictedContextCancelled,
    /// The picker ended while it waited.
    EvictedOther,
}

impl FlowOutcome {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dispatched => "Dispatched",
            Self::RejectedCapacity => "RejectedCapacity",
            Self::RejectedNoEndpoints => "RejectedNoEndpoints",
            Self::RejectedOther => "RejectedOther",
            Self::EvictedTtl => "EvictedTTL",
            Self::EvictedNoEndpoints => "EvictedNoEndpoints",
            Self::EvictedContextCancelled => "EvictedContextCancelled",
            Self::EvictedOther => "EvictedOther",
        }
    }
}

/// Requests that wait. Their models and flows are those of [`RequestMetrics`], and so as few.
#[derive(Debug)]
pub struct FlowMetrics {
    queues: Family<5, Queue>,
    waits: Family<6, Histogram>,
    enqueues: Family<3, Histogram>,
    requests: Family<3, AtomicU64>,
    cycles: Histogram,
    revocations: Arc<Revocations>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// A waiting request; dropping the value ends the wait.
#[derive(Debug)]
pub struct WaitingRequest {
    queue: Arc<Child<5, Queue>>,
    bytes: u64,
}

impl Default for FlowMetrics {
    fn default() -> Self {
        Self::new(SETS_MAX)
    }
}

impl FlowMetrics {
    fn new(sets_max: usize) -> Self {
        Self {
            queues: Family::new(sets_max),
            waits: Family::new(sets_max),
            enqueues: Family::new(sets_max),
            requests: Family::new(sets_max),
            cycles: Histogram::new(buckets::DECISION_SECONDS),
            revocations: Arc::new(Revocations::new()),
        }
    }

    /// A request of a pool begins to wait, with `bytes` of body.
    pub fn waits(&self, of: &RequestMetrics, pool: &str, bytes: u64) -> WaitingRequest {
        let [model, target, fairness_id, priority] = labels(of);
        let asked = [fairness_id, priority, pool, model, target];
        let folded = || self.queues.always(&[OTHER, priority, pool, OTHER, OTHER], Queue::default);
        let queue = self.queues.get_or_make(&asked, Queue::default).unwrap_or_else(folded);
        queue.metric.requests.fetch_add(1, Ordering::Relaxed);
        queue.metric.bytes.fetch_add(bytes, Ordering::Relaxed);
        WaitingRequest { queue, bytes }
    }

    /// It took `took` to let a request into its queue; `None` is the outcome of one that still
    /// waits.
    pub fn enqueued(&self, of: &RequestMetrics, outcome: Option<FlowOutcome>, took: Duration) {
        /// A request that waits has no outcome yet.
        const WAITS: &str = "NotYetFinalized";
        let [_, _, fairness_id, priority] = labels(of);
        let outcome = outcome.map_or(WAITS, FlowOutcome::name);
        let make = || Histogram::new(buckets::DECISION_SECONDS);
        let found = self.enqueues.get_or_make(&[fairness_id, priority, outcome], make);
        let child =
            found.unwrap_or_else(|| self.enqueues.always(&[OTHER, priority, outcome], make));
        child.metric.observe_duration(took);
    }

    /// A request of a pool left flow control after a wait.
    pub fn left(&self, of: &RequestMetrics, pool: &str, outcome: FlowOutcome, waited: Duration) {
        let [model, target, fairness_id, priority] = labels(of);
        let outcome = outcome.name();
        let make = || Histogram::new(buckets::QUEUE_SECONDS);
        let asked = [fairness_id, priority, outcome, pool, model, target];
        let folded = [OTHER, priority, outcome, pool, OTHER, OTHER];
        let found = self.waits.get_or_make(&asked, make);
        let child = found.unwrap_or_else(|| self.waits.always(&folded, make));
        child.metric.observe_duration(waited);
        // Outcomes, priorities and pools are few, whoever sends requests.
        let child = self.requests.always(&[outcome, priority, pool], AtomicU64::default);
        child.metric.fetch_add(1, Ordering::Relaxed);
    }

    /// Finding the waiting requests that go on took `took`.
    pub fn cycled(&self, took: Duration) {
        self.cycles.observe_duration(took);
    }

    /// The revocations of a pool's running requests, which the metrics show from now on.
    pub fn reclaimed(&self, pool: &str) -> ReclaimMetrics {
        self.revocations.of(pool)
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let queues = self.queues.children();
        let level = |level: fn(&Queue) -> &AtomicU64| {
            rows(&queues, &FLOW_LABELS, move |child| {
                Some(SeriesValue::Gauge(level(&child.metric).load(Ordering::Relaxed) as f64))
            })
        };
        write(encoder, &names::FLOW_SIZE, &level(|queue| &queue.requests))?;
        write(encoder, &names::FLOW_BYTES, &level(|queue| &queue.bytes))?;
        let waits = self.waits.children();
        write(encoder, &names::FLOW_WAIT, &rows(&waits, &FLOW_WAIT_LABELS, read))?;
        let enqueues = self.enqueues.children();
        write(encoder, &names::FLOW_ENQUEUE, &rows(&enqueues, &FLOW_ENQUEUE_LABELS, read))?;
        let requests = self.requests.children();
        write(encoder, &names::FLOW_REQUESTS, &rows(&requests, &FLOW_OUTCOME_LABELS, count))?;
        write(
            encoder,
            &names::FLOW_CYCLE,
            &single(self.cycles.read().map(SeriesValue::Histogram)),
        )?;
        self.revocations.encode(encoder)
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.queue.metric.requests.fetch_sub(1, Ordering::Relaxed);
        self.queue.metric.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Model, target model, fairness id and priority of a request, as metrics know them.
fn labels(of: &RequestMetrics) -> [&str; 4] {
    of.0.labels.each_ref().map(|label| &**label)
}

fn read<const N: usize>(child: &Child<N, Histogram>) -> Option<SeriesValue> {
    child.metric.read().map(SeriesValue::Histogram)
}

/// Writes the fill of all pools' queues.
pub(crate) fn encode_use(
    encoder: &mut DescriptorEncoder<'_>,
    seen: &[PoolReading<'_>],
) -> std::fmt::Result {
    let flows = || seen.iter().filter_map(|(pool, is)| Some((*pool, is.flow.as_ref()?)));
    let bands = |level: fn(&Use) -> Option<f64>| -> Vec<Row<'_>> {
        let bands = flows().flat_map(|(pool, flow)| flow.bands.iter().map(move |b| (pool, b)));
        let rows = bands.filter_map(|(pool, BandSnapshot { priority, used })| {
            let labels = vec![("priority", &**priority), ("inference_pool", pool)];
            Some((labels, SeriesValue::Gauge(level(used)?)))
        });
        rows.collect()
    };
    write(encoder, &names::BAND_REQUESTS, &bands(|used| used.requests))?;
    write(encoder, &names::BAND_BYTES, &bands(|used| used.bytes))?;
    let global = |level: fn(&Use) -> Option<f64>| -> Vec<Row<'_>> {
        let rows = flows().filter_map(|(pool, flow)| {
            Some((vec![("inference_pool", pool)], SeriesValue::Gauge(level(&flow.global)?)))
        });
        rows.collect()
    };
    write(encoder, &names::GLOBAL_REQUESTS, &global(|used| used.requests))?;
    write(encoder, &names::GLOBAL_BYTES, &global(|used| used.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RequestLabels, Requests};

    #[test]
    fn flows_without_end_fold_into_one() {
        let (flow, requests) = (FlowMetrics::new(1), Requests::default());
        let of = |fairness_id| requests.of(&RequestLabels { fairness_id, ..Default::default() });
        let waiting = ["a", "b", "c"].map(|id| flow.waits(&of(id), "pool", 10));
        let levels = || {
            let children = flow.queues.children();
            let level = |child: &Arc<Child<5, Queue>>| {
                let Queue { requests, bytes } = &child.metric;
                let level = [requests, bytes].map(|level| level.load(Ordering::Relaxed));
                (child.labels[0].to_string(), level)
            };
            children.iter().map(level).collect::<Vec<_>>()
        };
        assert_eq!(levels(), [("a".to_owned(), [1, 10]), (OTHER.to_owned(), [2, 20])]);
        drop(waiting);
        assert_eq!(levels(), [("a".to_owned(), [0, 0]), (OTHER.to_owned(), [0, 0])]);
    }
}
