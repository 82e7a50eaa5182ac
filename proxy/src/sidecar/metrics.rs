//! Metrics of the proxy beside an engine; all names stand here.

use super::names::LookupCounts;
use crate::upstream::passage::{REMOVED_HELP, RemovedFields};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Labels of a request: the way it was answered, and its status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Outcome {
    /// `engine`: by the engine alone; `handed_over`: it went on from what others had computed,
    /// which is the prompt, KV that was to be pulled, or media; `fallback`: that had failed; `own`:
    /// by this proxy.
    pub way: &'static str,
    /// HTTP status, or 499 where the client hung up first.
    pub status: u16,
}

/// Why a prompt was not computed elsewhere, or a chat not decoded in chunks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Cause {
    pub reason: &'static str,
}

/// Result for an image, a sound or a video that was to be encoded elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Encoding {
    /// `encoded`, or why it was not.
    pub outcome: &'static str,
}

/// A header of a picker's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Header {
    pub header: &'static str,
}

/// The metrics. Recording takes no lock but for the first use of a label.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub requests: Family<Outcome, Counter>,
    pub requests_running: Gauge,
    pub prefill_duration: Histogram,
    pub fallbacks: Family<Cause, Counter>,
    pub encode_duration: Histogram,
    pub media: Family<Encoding, Counter>,
    pub request_bytes: Counter,
    pub answer_bytes: Counter,
    pub stripped: Counter,
    pub fields_removed: RemovedFields,
    pub decode_chunks: Counter,
    pub decoded_whole: Family<Cause, Counter>,
    pub cut: Counter,
    pub headers_unused: Family<Header, Counter>,
    /// Of the names of MoRI-IO's pods.
    pub lookups: LookupCounts,
}

impl Metrics {
    /// Registers all of them.
    pub(crate) fn register(registry: &mut Registry, connector: String) -> Self {
        let lookups = LookupCounts::default();
        register_lookups(registry, &lookups);
        let labels = [("connector".into(), connector.into())].into_iter();
        let registry = registry.sub_registry_with_prefix("stator_direct");
        let registry = registry.sub_registry_with_labels(labels);
        let metrics = Self::unregistered(lookups);
        metrics.register_handovers(registry);
        metrics.register_counts(registry);
        metrics
    }

    fn unregistered(lookups: LookupCounts) -> Self {
        Self {
            requests: Family::default(),
            requests_running: Gauge::default(),
            prefill_duration: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            fallbacks: Family::default(),
            encode_duration: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            media: Family::default(),
            request_bytes: Counter::default(),
            answer_bytes: Counter::default(),
            stripped: Counter::default(),
            fields_removed: RemovedFields::default(),
            decode_chunks: Counter::default(),
            decoded_whole: Family::default(),
            cut: Counter::default(),
            headers_unused: Family::default(),
            lookups,
        }
    }

    /// Registers requests and what became of their hand-overs.
    fn register_handovers(&self, registry: &mut Registry) {
        registry.register("requests", "Requests answered", self.requests.clone());
        let running = self.requests_running.clone();
        registry.register("requests_running", "Requests being answered now", running);
        registry.register_with_unit(
            "prefill_duration",
            "From asking a prefill engine to its answer",
            Unit::Seconds,
            self.prefill_duration.clone(),
        );
        registry.register(
            "fallbacks",
            "Prompts meant to be computed elsewhere, or with what others had, that were not",
            self.fallbacks.clone(),
        );
        registry.register_with_unit(
            "encode_duration",
            "From asking encoders for the media of a request to the last answer that was waited for",
            Unit::Seconds,
            self.encode_duration.clone(),
        );
        let help = "Images, sounds and videos meant to be encoded elsewhere";
        registry.register("media", help, self.media.clone());
        let help = "Chats not decoded in chunks although decode-chunk-size is set";
        registry.register("decoded_whole", help, self.decoded_whole.clone());
        registry.register("fields_removed", REMOVED_HELP, self.fields_removed.clone());
        let help = "Headers of pickers that this proxy made no use of";
        registry.register("headers_unused", help, self.headers_unused.clone());
    }

    /// Registers counters of bytes and bodies.
    fn register_counts(&self, registry: &mut Registry) {
        let bytes = [
            ("request", "Request bodies sent to the engine", &self.request_bytes),
            ("answer", "Bodies of answers sent to clients", &self.answer_bytes),
        ];
        for (name, help, counter) in bytes {
            registry.register_with_unit(name, help, Unit::Bytes, counter.clone());
        }
        let counts = [
            ("bodies_stripped", "Requests whose bodies lost fields", &self.stripped),
            ("answers_cut", "Answers that the engine broke off", &self.cut),
            ("decode_chunks", "Chunks of answers that were decoded in chunks", &self.decode_chunks),
        ];
        for (name, help, counter) in counts {
            registry.register(name, help, counter.clone());
        }
    }
}

/// Registers what llm-d's sidecar counts too, by its names.
///
/// Source: `pkg/sidecar/proxy/dns_metrics.go` of llm-d's router.
fn register_lookups(registry: &mut Registry, lookups: &LookupCounts) {
    let registry = registry.sub_registry_with_prefix("moriio_dns");
    let counts = [
        ("reresolve", "Names of MoRI-IO's pods that were looked up", &lookups.found),
        ("ip_changed", "Those that had got another address", &lookups.changed),
        ("lookup_failures", "Those that could not be looked up", &lookups.failed),
    ];
    for (name, help, counter) in counts {
        registry.register(name, help, counter.clone());
    }
}
