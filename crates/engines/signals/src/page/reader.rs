//! Reader of an engine's load from its metrics page.

use super::lines::{Hint, Labels, each_series};
use super::load::{Adapters, CacheSize, PageLoad};
use super::mapping::{CacheMapping, Mapping};
use super::spec::Spec;
use std::sync::Arc;

/// Pages between two searches for values that hardly change: the size of the cache, whether the
/// engine sleeps, and adapters where the last search found none. To find that a value is missing,
/// the reader has to read the whole page.
const SELDOM_PAGES: u32 = 20;

/// A page without a value that the load needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page has no {0}")]
pub struct Incomplete(pub &'static str);

/// Reads the pages of one endpoint. The reader keeps positions and values, so that a page like the
/// last one costs a few short searches and no memory.
#[derive(Debug)]
pub struct Reader {
    mapping: Arc<Mapping>,
    hints: Hints,
    load: PageLoad,
    /// Pages until the next search for those values.
    seldom: u32,
    /// Whether the last search found adapters.
    tells_adapters: bool,
    /// Whether the engine can answer, if it ever reported that.
    awake: Option<bool>,
    /// The adapters' labels on the last page.
    adapters: [Vec<u8>; 3],
}

#[derive(Debug, Default)]
struct Hints {
    waiting: Place,
    running: Place,
    kv_usage: Place,
    lora: Hint,
    cache: [Hint; 3],
    awake: Hint,
}

/// The alternative that the last page had, and its position.
#[derive(Debug, Default)]
struct Place {
    alternative: usize,
    hint: Hint,
}

impl Reader {
    /// Makes a reader for the pages of an engine.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        let (hints, load) = (Hints::default(), PageLoad::default());
        let (seldom, tells_adapters, awake) = (0, false, None);
        Self { mapping, hints, load, seldom, tells_adapters, awake, adapters: Default::default() }
    }

    /// Whether the engine could answer when the last page was read: a sleeping one has given its
    /// memory away.
    pub fn is_awake(&self) -> bool {
        self.awake.unwrap_or(true)
    }

    /// Reads a page.
    ///
    /// Requests of several data-parallel ranks are summed, their shares of used KV averaged.
    /// Adapters and the cache's size may be missing; the last known size stays. A new size, sleep,
    /// and the first adapters are noticed within twenty pages.
    ///
    /// # Errors
    ///
    /// [`Incomplete`] where waiting requests, running requests or KV usage are missing though the
    /// mapping has them.
    pub fn read(&mut self, page: &[u8]) -> Result<&PageLoad, Incomplete> {
        let Self { mapping, hints, load, .. } = self;
        let waiting = total(page, &mapping.waiting, &mut hints.waiting);
        let running = total(page, &mapping.running, &mut hints.running);
        let usage = total(page, &mapping.kv_usage, &mut hints.kv_usage);
        let needed = |total: Total, specs: &[Spec], what| match total.count {
            0 if !specs.is_empty() => Err(Incomplete(what)),
            _ => Ok(total),
        };
        let waiting = needed(waiting, &mapping.waiting, "waiting requests")?;
        let running = needed(running, &mapping.running, "running requests")?;
        let usage = needed(usage, &mapping.kv_usage, "KV usage")?;
        // Casts saturate.
        (load.waiting, load.running) = (waiting.sum as u32, running.sum as u32);
        load.kv_usage = (usage.sum / usage.count.max(1) as f64).clamp(0.0, 1.0);
        let seldom = self.seldom == 0;
        self.seldom = if seldom { SELDOM_PAGES - 1 } else { self.seldom - 1 };
        if seldom {
            self.read_cache(page);
            self.read_awake(page);
        }
        if seldom || self.tells_adapters {
            self.read_lora(page);
        }
        Ok(&self.load)
    }

    fn read_cache(&mut self, page: &[u8]) {
        let CacheMapping { labels, label_names, values } = &self.mapping.cache;
        let [at_labels, at_size, at_count] = &mut self.hints.cache;
        let mut found = None;
        if let Some(spec) = labels {
            each_series(page, spec, at_labels, |series| {
                found = found.or_else(|| CacheSize::read_named(series.labels, label_names));
            });
        }
        if let (None, Some([size, count])) = (found, values) {
            let size = first(page, size, at_size);
            let pair = size.zip(first(page, count, at_count));
            // Casts saturate.
            found = pair
                .map(|(size, count)| (size as u32, count as u32))
                .map(|(block_size, blocks)| CacheSize { block_size, blocks });
        }
        let told = found.filter(|cache| cache.block_size > 0 && cache.blocks > 0);
        self.load.cache = told.or(self.load.cache);
    }

    fn read_awake(&mut self, page: &[u8]) {
        let Some(spec) = &self.mapping.awake else { return };
        let mut awake = None;
        each_series(page, spec, &mut self.hints.awake, |series| {
            awake = Some(awake == Some(true) || series.value > 0.0);
        });
        self.awake = awake;
    }

    fn read_lora(&mut self, page: &[u8]) {
        let mut newest: Option<(f64, Labels<'_>)> = None;
        for spec in &self.mapping.lora {
            each_series(page, spec, &mut self.hints.lora, |series| {
                if newest.is_none_or(|(time, _)| series.value > time) {
                    newest = Some((series.value, series.labels));
                }
            });
        }
        self.tells_adapters = newest.is_some();
        let Some((_, labels)) = newest else { return };
        let told = Adapters::LABELS.map(|name| labels.get(name).unwrap_or_default());
        if self.load.adapters.is_some() && self.adapters.iter().zip(told).all(|(a, b)| a == b) {
            return;
        }
        self.adapters = told.map(<[u8]>::to_vec);
        self.load.adapters = Some(Adapters::read(told));
    }
}

/// Sum and number of series.
#[derive(Clone, Copy, Default)]
struct Total {
    sum: f64,
    count: u32,
}

/// The series of one of `specs`: the one that the last page had, or else the first that this page
/// has. Values that are no counts are left out.
fn total(page: &[u8], specs: &[Spec], place: &mut Place) -> Total {
    let before = place.alternative;
    let again = specs.get(before).map(|spec| total_of(page, spec, &mut place.hint));
    if let Some(total) = again.filter(|total| total.count > 0) {
        return total;
    }
    for (alternative, spec) in specs.iter().enumerate().filter(|(at, _)| *at != before) {
        let total = total_of(page, spec, &mut place.hint);
        if total.count > 0 {
            place.alternative = alternative;
            return total;
        }
    }
    Total::default()
}

fn total_of(page: &[u8], spec: &Spec, hint: &mut Hint) -> Total {
    let mut total = Total::default();
    each_series(page, spec, hint, |series| {
        if series.value.is_finite() && series.value >= 0.0 {
            total.sum += series.value;
            total.count += 1;
        }
    });
    total
}

fn first(page: &[u8], spec: &Spec, hint: &mut Hint) -> Option<f64> {
    let mut value = None;
    each_series(page, spec, hint, |series| value = value.or(Some(series.value)));
    value
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
