//! Metrics of the images, sounds and videos that endpoints are believed to hold.

use crate::bounded::OTHER;
use crate::buckets;
use crate::decisions::{PluginName, bump, count};
use crate::exposition::{SeriesValue, rows, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::names::{self, ENCODER_HIT_LABELS, ENCODER_LABELS, ENCODER_QUERY_LABELS};
use prometheus_client::encoding::DescriptorEncoder;
use stator_epp_scheduler::{Endpoint, MultimodalItem};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Pods that are kept; they come and go for as long as the process lives. From here on, new ones
/// become `other`.
const SETS_MAX: usize = 16_384;

/// Counters of a plug-in's lookups. Made once, when plug-ins are.
#[derive(Debug)]
pub struct EncoderCache {
    lookups: Arc<Lookups>,
    plugin: [Box<str>; 2],
    hit_ratio: Arc<Child<2, Histogram>>,
}

/// Lookups by the type and the name of a plug-in.
#[derive(Debug)]
pub(crate) struct Lookups {
    queries: Family<3, AtomicU64>,
    hits: Family<4, AtomicU64>,
    hit_ratios: Family<2, Histogram>,
}

impl Default for Lookups {
    fn default() -> Self {
        // Plug-ins and kinds of items are few.
        let (queries, hit_ratios) = (Family::new(usize::MAX), Family::new(usize::MAX));
        Self { queries, hits: Family::new(SETS_MAX), hit_ratios }
    }
}

impl EncoderCache {
    /// A prompt has these items, each of them once.
    pub fn sought(&self, items: &[MultimodalItem]) {
        let [type_name, name] = self.labels();
        for item in items {
            bump(&self.lookups.queries, [type_name, name, item.modality], |labels| labels);
        }
    }

    /// An endpoint is believed to hold these of the items, of which the prompt has `sought`, at
    /// least 1.
    pub fn found(&self, endpoint: &Endpoint, held: &[MultimodalItem], sought: usize) {
        self.hit_ratio.metric.observe(held.len() as f64 / sought as f64);
        let [type_name, name] = self.labels();
        if held.is_empty() {
            return;
        }
        let pod = format!("{}/{}", endpoint.namespace, endpoint.name);
        for item in held {
            let labels = [type_name, name, &pod, item.modality];
            bump(&self.lookups.hits, labels, |[.., kind]| [type_name, name, OTHER, kind]);
        }
    }

    fn labels(&self) -> [&str; 2] {
        self.plugin.each_ref().map(|label| &**label)
    }
}

impl Lookups {
    /// The metrics of a plug-in.
    pub(crate) fn of(self: &Arc<Self>, plugin: PluginName<'_>) -> EncoderCache {
        let PluginName { type_name, name } = plugin;
        let make = || Histogram::new(buckets::HIT_RATIO);
        let hit_ratio = self.hit_ratios.always(&[type_name, name], make);
        EncoderCache { lookups: self.clone(), plugin: [type_name.into(), name.into()], hit_ratio }
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let queries = self.queries.children();
        let queries = rows(&queries, &ENCODER_QUERY_LABELS, count);
        write(encoder, &names::ENCODER_QUERIES, &queries)?;
        let hits = self.hits.children();
        write(encoder, &names::ENCODER_HITS, &rows(&hits, &ENCODER_HIT_LABELS, count))?;
        let ratios = self.hit_ratios.children();
        let read = |child: &Child<2, Histogram>| child.metric.read().map(SeriesValue::Histogram);
        write(encoder, &names::ENCODER_HIT_RATIO, &rows(&ratios, &ENCODER_LABELS, read))
    }
}
