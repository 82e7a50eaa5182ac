//! Reads an engine's load off its metrics page.

use super::mapping::{CacheMapping, Mapping};
use super::page::{Hint, Labels, each_series, unescape};
use super::spec::Spec;
use stator_epp_scheduler::{CacheConfig, EngineLoad, Lora};
use std::sync::Arc;

/// Most adapters of one list that are kept.
const ADAPTERS_MAX: usize = 4096;

/// What a page lacks without which a load is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page has no {0}")]
pub struct Incomplete(pub &'static str);

/// Reads the pages of one endpoint. Keeps where things stood and what they were, so that a page
/// like the last one costs a few short searches and no memory.
#[derive(Debug)]
pub struct Reader {
    mapping: Arc<Mapping>,
    hints: Hints,
    load: EngineLoad,
    /// The adapters' labels on the last page.
    adapters: [Vec<u8>; 3],
}

#[derive(Debug, Default)]
struct Hints {
    waiting: Hint,
    running: Hint,
    kv_usage: Hint,
    lora: Hint,
    cache: [Hint; 3],
}

impl Reader {
    /// A reader of the pages of an engine.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        let (hints, load) = (Hints::default(), EngineLoad::default());
        Self { mapping, hints, load, adapters: Default::default() }
    }

    /// Reads a page. `updated` of the load is not set.
    ///
    /// Requests of several data-parallel ranks are summed, their shares of used KV averaged. That
    /// there are no adapters and that the cache's size is not told is normal; the last size told
    /// stays.
    ///
    /// # Errors
    ///
    /// [`Incomplete`] where waiting requests, running requests or KV usage are not told though the
    /// engine is known to tell them.
    pub fn read(&mut self, page: &[u8]) -> Result<&EngineLoad, Incomplete> {
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
        self.read_cache(page);
        self.read_lora(page);
        Ok(&self.load)
    }

    fn read_cache(&mut self, page: &[u8]) {
        let CacheMapping { labels, values } = &self.mapping.cache;
        let [at_labels, at_size, at_count] = &mut self.hints.cache;
        let mut found = None;
        if let Some(spec) = labels {
            each_series(page, spec, at_labels, |series| {
                found = found.or_else(|| cache_config(series.labels));
            });
        }
        if let (None, Some([size, count])) = (found, values) {
            let size = first(page, size, at_size);
            let pair = size.zip(first(page, count, at_count));
            // Casts saturate.
            found = pair
                .map(|(size, count)| (size as u32, count as u32))
                .map(|(block_size, blocks)| CacheConfig { block_size, blocks });
        }
        let told = found.filter(|cache| cache.block_size > 0 && cache.blocks > 0);
        self.load.cache = told.or(self.load.cache);
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
        let Some((_, labels)) = newest else { return };
        const NAMES: [&[u8]; 3] = [b"max_lora", b"running_lora_adapters", b"waiting_lora_adapters"];
        let told = NAMES.map(|name| labels.get(name).unwrap_or_default());
        if self.load.lora.is_some() && self.adapters.iter().zip(told).all(|(a, b)| a == b) {
            return;
        }
        self.adapters = told.map(<[u8]>::to_vec);
        self.load.lora = Some(Lora {
            max: number(told[0]).unwrap_or(0),
            running: adapters(told[1]),
            waiting: adapters(told[2]),
        });
    }
}

/// Sum and number of series.
#[derive(Clone, Copy, Default)]
struct Total {
    sum: f64,
    count: u32,
}

/// The series of the first of `specs` that the page has. What is no count is left out.
fn total(page: &[u8], specs: &[Spec], hint: &mut Hint) -> Total {
    for spec in specs {
        let mut total = Total::default();
        each_series(page, spec, hint, |series| {
            if series.value.is_finite() && series.value >= 0.0 {
                total.sum += series.value;
                total.count += 1;
            }
        });
        if total.count > 0 {
            return total;
        }
    }
    Total::default()
}

fn first(page: &[u8], spec: &Spec, hint: &mut Hint) -> Option<f64> {
    let mut value = None;
    each_series(page, spec, hint, |series| value = value.or(Some(series.value)));
    value
}

fn cache_config(labels: Labels<'_>) -> Option<CacheConfig> {
    let label = |names: [&[u8]; 2]| number(names.iter().find_map(|name| labels.get(name))?);
    let block_size = label([b"block_size", b"page_size"])?;
    Some(CacheConfig { block_size, blocks: label([b"num_gpu_blocks", b"num_pages"])? })
}

fn number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

fn adapters(value: &[u8]) -> Vec<String> {
    let value = unescape(value);
    let names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let names = names.filter(|name| !name.is_empty()).take(ADAPTERS_MAX);
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
