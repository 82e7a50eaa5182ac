//! Time that plug-ins take, and lookups of the indices of prefixes.

use crate::bounded::BoundedValues;
use crate::decisions::PluginName;
use crate::encoder::{EncoderCache, Lookups};
use crate::exposition::{SeriesValue, labelled, rows, single, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::latency::{Latencies, LatencyMetrics};
use crate::names::{INDEXER_LABELS, PLUGIN_LABELS};
use crate::{buckets, names};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Metrics of plug-ins; their names come from the configuration and are few.
#[derive(Debug)]
pub struct PluginMetrics {
    durations: Family<3, Histogram>,
    indexers: Family<2, Indexer>,
    encoders: Arc<Lookups>,
    latencies: Arc<Latencies>,
    lookups: AtomicU64,
    hits: AtomicU64,
    lookup_duration: Histogram,
}

/// One plug-in at one extension point. Made once, when plug-ins are; cheap to clone.
#[derive(Clone, Debug)]
pub struct PluginTimer(Arc<Child<3, Histogram>>);

/// One approximate index of prefixes. Made once, when plug-ins are; cheap to clone.
#[derive(Clone, Debug)]
pub struct PrefixIndexer(Arc<Child<2, Indexer>>);

#[derive(Debug)]
struct Indexer {
    size: AtomicU64,
    hit_ratio: Histogram,
    hit_bytes: Histogram,
}

impl PluginMetrics {
    /// No measurements yet; names of models are kept as far as `models` allows.
    pub(crate) fn new(models: Arc<BoundedValues>) -> Self {
        Self {
            durations: Family::new(usize::MAX),
            indexers: Family::new(usize::MAX),
            encoders: Arc::default(),
            latencies: Arc::new(Latencies::new(models)),
            lookups: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            lookup_duration: Histogram::new(buckets::LOOKUP_SECONDS),
        }
    }

    /// The timer of a plug-in at an extension point, such as `Filter` or `Scorer`.
    pub fn timer(&self, extension_point: &str, plugin: PluginName<'_>) -> PluginTimer {
        let labels = [extension_point, plugin.type_name, plugin.name];
        let make = || Histogram::new(buckets::DECISION_SECONDS);
        PluginTimer(self.durations.always(&labels, make))
    }

    /// The metrics of an approximate index of prefixes.
    pub fn prefix_indexer(&self, plugin: PluginName<'_>) -> PrefixIndexer {
        let make = || Indexer {
            size: AtomicU64::new(0),
            hit_ratio: Histogram::new(buckets::HIT_RATIO),
            hit_bytes: Histogram::new(buckets::HIT_BYTES),
        };
        PrefixIndexer(self.indexers.always(&[plugin.name, plugin.type_name], make))
    }

    /// The metrics of what believes to know the encoder caches.
    pub fn encoder_cache(&self, plugin: PluginName<'_>) -> EncoderCache {
        self.encoders.of(plugin)
    }

    /// The metrics of what predicts latencies.
    pub fn latency(&self, plugin: PluginName<'_>) -> LatencyMetrics {
        self.latencies.of(plugin)
    }

    /// The KV index looked a prompt up; the best endpoint held `blocks` of its leading blocks.
    pub fn looked_up(&self, blocks: u64, took: Duration) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.hits.fetch_add(blocks, Ordering::Relaxed);
        self.lookup_duration.observe_duration(took);
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let durations = self.durations.children();
        let read = |child: &Child<3, Histogram>| child.metric.read().map(SeriesValue::Histogram);
        write(encoder, &names::PLUGIN_DURATION, &rows(&durations, &PLUGIN_LABELS, read))?;
        let violations = names::ACCESSES.into_iter().flat_map(|access| {
            labelled(&durations, &PLUGIN_LABELS, access, |_| Some(SeriesValue::Counter(0)))
        });
        write(encoder, &names::SCOPE_VIOLATIONS, &violations.collect::<Vec<_>>())?;
        self.encode_indexers(encoder)?;
        self.encoders.encode(encoder)?;
        self.latencies.encode(encoder)?;
        let lookups = SeriesValue::count(self.lookups.load(Ordering::Relaxed));
        // The best endpoint's blocks are both numbers of the source: how many a lookup found,
        // and the most that one endpoint held.
        let hits =
            lookups.as_ref().map(|_| SeriesValue::Counter(self.hits.load(Ordering::Relaxed)));
        write(encoder, &names::INDEX_LOOKUPS, &single(lookups))?;
        write(encoder, &names::INDEX_HITS, &single(hits.clone()))?;
        write(encoder, &names::INDEX_MAX_HITS, &single(hits))?;
        let duration = self.lookup_duration.read().map(SeriesValue::Histogram);
        write(encoder, &names::INDEX_LATENCY, &single(duration))
    }

    fn encode_indexers(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let indexers = self.indexers.children();
        let of = |value: &dyn Fn(&Indexer) -> Option<SeriesValue>| {
            rows(&indexers, &INDEXER_LABELS, |child| value(&child.metric))
        };
        let size =
            of(&|indexer| Some(SeriesValue::Gauge(indexer.size.load(Ordering::Relaxed) as f64)));
        write(encoder, &names::INDEXER_SIZE, &size)?;
        let ratio = of(&|indexer| indexer.hit_ratio.read().map(SeriesValue::Histogram));
        write(encoder, &names::INDEXER_HIT_RATIO, &ratio)?;
        let bytes = of(&|indexer| indexer.hit_bytes.read().map(SeriesValue::Histogram));
        write(encoder, &names::INDEXER_HIT_BYTES, &bytes)
    }
}

impl PluginTimer {
    /// A call of the plug-in took `duration`.
    pub fn took(&self, duration: Duration) {
        self.0.metric.observe_duration(duration);
    }
}

impl PrefixIndexer {
    /// The index has `entries` entries now.
    pub fn resized(&self, entries: u64) {
        self.0.metric.size.store(entries, Ordering::Relaxed);
    }

    /// The index found `bytes` of a prompt. An empty prompt is no lookup.
    pub fn found(&self, bytes: u64, prompt_bytes: u64) {
        if prompt_bytes > 0 {
            self.0.metric.hit_ratio.observe(bytes as f64 / prompt_bytes as f64);
            self.0.metric.hit_bytes.observe(bytes as f64);
        }
    }
}
