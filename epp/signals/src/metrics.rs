//! Metrics of what endpoints tell.

use crate::feeds::FeedCounters;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stator_epp_metrics::{FeedsSnapshot, SourceSnapshot};
use stator_signals::events::FollowMetrics;
use std::sync::Arc;

/// Counters of scraping, event feeds and tokenizers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SignalMetrics {
    /// Endpoints whose metrics pages are read.
    pub(crate) scraped: Gauge,
    /// Pages read in full.
    pub(crate) pages: Counter,
    /// Pages that did not come, or not in time.
    pub(crate) pages_failed: Counter,
    /// Pages that lacked a metric without which an engine's load is not known.
    pub(crate) pages_incomplete: Counter,
    /// Endpoints whose load became unknown.
    pub(crate) stale: Counter,
    /// Endpoints whose engine's KV events are followed.
    pub(crate) engines: Gauge,
    /// Counters of the followers of these events.
    pub(crate) follow: FollowMetrics,
    /// Endpoints whose agent is followed.
    pub(crate) agents: Gauge,
    /// Endpoints whose agents cannot be followed.
    pub(crate) agents_unfollowed: Gauge,
    /// Times that an agent could not be followed.
    pub(crate) agents_failed: Counter,
    /// Tokenizers loaded.
    pub(crate) tokenizers: Counter,
    /// Tokenizers that could not be loaded.
    pub(crate) tokenizers_failed: Counter,
    /// 1 while prompts can be tokenized here.
    pub(crate) tokenizer_ready: Gauge,
    /// Counters of each engine's feed.
    pub(crate) feeds: Arc<FeedCounters>,
}

impl SignalMetrics {
    /// Counts of engines' KV events; `None` where they are not followed.
    pub fn feeds(&self) -> Option<FeedsSnapshot> {
        self.feeds.snapshot(&self.follow.tally())
    }

    /// Counts of reading metrics pages, under the types that configurations give it.
    pub fn source(&self) -> SourceSnapshot {
        SourceSnapshot {
            source_type: "metrics-data-source",
            extractor_type: "core-metrics-extractor",
            failed: self.pages_failed.get(),
            incomplete: self.pages_incomplete.get(),
        }
    }

    /// Makes the metrics known to the process's registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_epp_signals");
        let gauges = [
            ("scraped_endpoints", "Endpoints whose metrics are read", &self.scraped),
            ("engine_feeds", "Engines whose KV events are followed", &self.engines),
            ("agent_feeds", "Agents that are followed", &self.agents),
            ("agents_unfollowed", "Agents that cannot be followed", &self.agents_unfollowed),
            ("tokenizer_ready", "Whether prompts can be tokenized", &self.tokenizer_ready),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let counters = [
            ("pages", "Metrics pages read", &self.pages),
            ("pages_failed", "Metrics pages that did not come in time", &self.pages_failed),
            ("pages_incomplete", "Metrics pages without what is needed", &self.pages_incomplete),
            ("stale_endpoints", "Times that a load became unknown", &self.stale),
            ("agents_failed", "Times that an agent could not be followed", &self.agents_failed),
            ("tokenizers", "Tokenizers loaded", &self.tokenizers),
            ("tokenizers_failed", "Tokenizers that could not be loaded", &self.tokenizers_failed),
        ];
        // Clones count in the same place.
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        self.follow.register(registry);
    }
}
