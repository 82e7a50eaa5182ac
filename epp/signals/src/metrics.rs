//! Metrics of what endpoints tell.

use crate::feeds::Feeds;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stator_epp_metrics::{FeedsSnapshot, SourceSnapshot};
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
    /// Event batches of engines applied.
    pub(crate) batches: Counter,
    /// Messages of engines that could not be read.
    pub(crate) messages_malformed: Counter,
    /// Events of an unknown kind or medium, or of a cache group that is not indexed.
    pub(crate) events_skipped: Counter,
    /// Blocks of engines that could not be translated.
    pub(crate) blocks_skipped: Counter,
    /// Events whose block size does not fit ours.
    pub(crate) block_size_mismatches: Counter,
    /// Lives that began: first connections, restarts, lost connections.
    pub(crate) lives: Counter,
    /// Replays asked of engines.
    pub(crate) replays: Counter,
    /// Replays that engines did not give.
    pub(crate) replays_failed: Counter,
    /// Endpoints whose agent is followed.
    pub(crate) agents: Gauge,
    /// Agents that could not be asked who they are.
    pub(crate) agents_failed: Counter,
    /// Tokenizers loaded.
    pub(crate) tokenizers: Counter,
    /// Tokenizers that could not be loaded.
    pub(crate) tokenizers_failed: Counter,
    /// 1 while prompts can be tokenized here.
    pub(crate) tokenizer_ready: Gauge,
    /// What is counted of each engine's feed.
    pub(crate) feeds: Arc<Feeds>,
}

impl SignalMetrics {
    /// How engines' KV events come in; `None` where they are not followed.
    pub fn feeds(&self) -> Option<FeedsSnapshot> {
        self.feeds.snapshot()
    }

    /// How the reading of metrics pages goes, under the types that configurations give it.
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
            ("engine_batches", "KV event batches of engines applied", &self.batches),
            ("messages_malformed", "Engine messages not read", &self.messages_malformed),
            ("events_skipped", "KV events that mean nothing to the index", &self.events_skipped),
            ("blocks_skipped", "Engine blocks not translated", &self.blocks_skipped),
            ("block_size_mismatches", "KV events of unfit blocks", &self.block_size_mismatches),
            ("engine_lives", "Lives of engines begun", &self.lives),
            ("replays", "Replays asked of engines", &self.replays),
            ("replays_failed", "Replays that engines did not give", &self.replays_failed),
            ("agents_failed", "Agents that did not say who they are", &self.agents_failed),
            ("tokenizers", "Tokenizers loaded", &self.tokenizers),
            ("tokenizers_failed", "Tokenizers that could not be loaded", &self.tokenizers_failed),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }
}
