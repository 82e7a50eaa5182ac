//! Metrics of the proxy; all names stand here.

use super::responses::StoreUse;
use crate::upstream::passage::{REMOVED_HELP, RemovedFields};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use stator_gate::AdmitError;
use std::fmt;

/// Labels of a request: its route and its status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Outcome {
    /// Route, for example `/v1/chat/completions`; `other` for unknown ones.
    pub route: &'static str,
    /// HTTP status, or 499 where the client hung up first.
    pub status: u16,
}

/// Why a prompt was not given to another worker than the one that answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WholePrompt {
    /// A reason of [`NoSplitReason`](crate::standalone::no_split::NoSplitReason), `choices` or `prompt_logprobs`.
    pub reason: &'static str,
}

/// Why a request did not get its turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PlacementRefusal {
    /// A reason of [`stator_queue::Refusal`] or [`stator_queue::Eviction`].
    pub reason: &'static str,
}

/// Gauges read from the fleet at every scrape, on whichever port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FleetGauges {
    pub workers: usize,
    pub index_blocks: usize,
    pub index_dropped: u64,
    pub requests_waiting: u64,
    pub kept: StoreUse,
}

/// Reads them.
struct FleetReader(Box<dyn Fn() -> FleetGauges + Send + Sync>);

/// The proxy's metrics. Recording takes no lock but for the first use of a label.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub requests: Family<Outcome, Counter>,
    pub requests_running: Gauge,
    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub request_duration: Histogram,
    pub placement_duration: Histogram,
    pub queue_duration: Histogram,
    pub kv_transfer_duration: Histogram,
    pub prompt_tokens: Counter,
    pub cached_tokens: Counter,
    pub completion_tokens: Counter,
    pub migrations: Counter,
    pub turns_computed: Counter,
    pub hang_ups: Counter,
    pub prompts_split: Counter,
    pub prompts_whole: Family<WholePrompt, Counter>,
    pub queue_refused: Family<PlacementRefusal, Counter>,
    pub queue_evicted: Family<PlacementRefusal, Counter>,
    pub passed_bytes: Counter,
    pub passed_cut: Counter,
    pub passed_stripped: Counter,
    pub fields_removed: RemovedFields,
}

impl Metrics {
    /// Registers all of them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("stator_proxy");
        let metrics = Self::unregistered();
        metrics.register_requests(registry);
        metrics.register_durations(registry);
        metrics.register_counts(registry);
        metrics
    }

    fn unregistered() -> Self {
        Self {
            requests: Family::default(),
            requests_running: Gauge::default(),
            time_to_first_token: Histogram::new(exponential_buckets(0.000_25, 2.0, 20)),
            inter_token_latency: Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            request_duration: Histogram::new(exponential_buckets(0.001, 2.0, 20)),
            placement_duration: Histogram::new(exponential_buckets(0.000_001, 2.0, 16)),
            queue_duration: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            kv_transfer_duration: Histogram::new(exponential_buckets(0.000_25, 2.0, 18)),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            migrations: Counter::default(),
            turns_computed: Counter::default(),
            hang_ups: Counter::default(),
            prompts_split: Counter::default(),
            prompts_whole: Family::default(),
            queue_refused: Family::default(),
            queue_evicted: Family::default(),
            passed_bytes: Counter::default(),
            passed_cut: Counter::default(),
            passed_stripped: Counter::default(),
            fields_removed: RemovedFields::default(),
        }
    }

    fn register_requests(&self, registry: &mut Registry) {
        registry.register("requests", "Requests answered", self.requests.clone());
        registry.register(
            "prompts_whole",
            "Prompts that the worker that answers computes, where others could, by reason",
            self.prompts_whole.clone(),
        );
        registry.register(
            "queue_refused_requests",
            "Requests that found no room to wait, by reason",
            self.queue_refused.clone(),
        );
        registry.register(
            "queue_evicted_requests",
            "Requests that waited in vain, by reason",
            self.queue_evicted.clone(),
        );
        registry.register(
            "requests_running",
            "Requests being answered now",
            self.requests_running.clone(),
        );
    }

    fn register_durations(&self, registry: &mut Registry) {
        let seconds = [
            (
                "time_to_first_token",
                "From the request to its first token",
                &self.time_to_first_token,
            ),
            (
                "inter_token_latency",
                "Mean gap between the tokens of a request",
                &self.inter_token_latency,
            ),
            (
                "request_duration",
                "From the request to the end of its answer",
                &self.request_duration,
            ),
            (
                "placement_duration",
                "From the tokens to a worker, waiting included",
                &self.placement_duration,
            ),
            (
                "queue_duration",
                "Time that a prompt waited for a worker to have room",
                &self.queue_duration,
            ),
            (
                "kv_transfer_duration",
                "Way of a prompt's KV from the worker that computed it, where that can be told",
                &self.kv_transfer_duration,
            ),
        ];
        for (name, help, histogram) in seconds {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
    }

    /// Registers counters, and what was passed on.
    fn register_counts(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "passed_answer",
            "Bodies of answers that were passed on as they came",
            Unit::Bytes,
            self.passed_bytes.clone(),
        );
        let removed = self.fields_removed.clone();
        registry.register("passed_fields_removed", REMOVED_HELP, removed);
        let counts = [
            ("prompt_tokens", "Tokens of prompts", &self.prompt_tokens),
            ("cached_prompt_tokens", "Prompt tokens whose KV was reused", &self.cached_tokens),
            ("completion_tokens", "Tokens generated", &self.completion_tokens),
            ("migrations", "Requests continued on another worker", &self.migrations),
            (
                "turns_computed",
                "Next turns computed before they were asked for",
                &self.turns_computed,
            ),
            ("hang_ups", "Requests whose client left early", &self.hang_ups),
            (
                "prompts_split",
                "Prompts given to another worker than the one that answers",
                &self.prompts_split,
            ),
            (
                "passed_answers_cut",
                "Answers passed on that their engines broke off",
                &self.passed_cut,
            ),
            (
                "passed_bodies_stripped",
                "Requests passed on whose bodies lost fields",
                &self.passed_stripped,
            ),
        ];
        for (name, help, counter) in counts {
            registry.register(name, help, counter.clone());
        }
    }

    /// Counts a request that got no turn.
    pub(crate) fn unplaced<E>(&self, error: &AdmitError<E>) {
        let (family, reason) = match error {
            AdmitError::Rejected { reason, .. } => (&self.queue_refused, reason.name()),
            AdmitError::Evicted { reason, .. } => (&self.queue_evicted, reason.name()),
            AdmitError::Failed(_) => return,
        };
        family.get_or_create(&PlacementRefusal { reason }).inc();
    }
}

impl FleetGauges {
    /// Registers them, read by `read`.
    pub(crate) fn register(
        registry: &mut Registry,
        read: impl Fn() -> Self + Send + Sync + 'static,
    ) {
        let registry = registry.sub_registry_with_prefix("stator_proxy");
        registry.register_collector(Box::new(FleetReader(Box::new(read))));
    }
}

impl fmt::Debug for FleetReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetReader(..)")
    }
}

impl Collector for FleetReader {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let FleetGauges { workers, index_blocks, index_dropped, requests_waiting, kept } =
            (self.0)();
        for (name, help, value) in [
            ("requests_waiting", "Prompts that wait for a worker.", requests_waiting as i64),
            ("workers", "Workers that take requests.", workers as i64),
            ("responses_kept", "Responses that clients may ask for again.", kept.responses as i64),
            ("responses_kept_bytes", "Memory of these responses, about.", kept.bytes as i64),
            (
                "kv_index_blocks",
                "Entries of the KV index, one per block and worker.",
                index_blocks as i64,
            ),
        ] {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let dropped = ConstCounter::new(index_dropped);
        let (name, help) =
            ("kv_index_dropped_blocks", "Entries of the KV index dropped for want of memory.");
        dropped.encode(encoder.encode_descriptor(name, help, None, dropped.metric_type())?)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_fleet_is_counted_each_time_that_metrics_are_read() {
        let (workers, mut registry) = (Arc::new(AtomicUsize::new(2)), Registry::default());
        let counted = workers.clone();
        FleetGauges::register(&mut registry, move || {
            let workers = counted.load(Ordering::Relaxed);
            FleetGauges { workers, index_blocks: 7, index_dropped: 5, ..FleetGauges::default() }
        });
        let page = || {
            let mut page = String::new();
            prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
            page
        };
        let lines = [
            "# HELP stator_proxy_workers Workers that take requests.",
            "# TYPE stator_proxy_workers gauge",
            "stator_proxy_workers 2",
            "stator_proxy_kv_index_blocks 7",
            "stator_proxy_kv_index_dropped_blocks_total 5",
            "stator_proxy_requests_waiting 0",
        ];
        for line in lines {
            assert!(page().lines().any(|found| found == line), "no {line} in\n{}", page());
        }
        workers.store(0, Ordering::Relaxed);
        assert!(page().contains("\nstator_proxy_workers 0\n"), "{}", page());
    }
}
