//! Load that an engine reports on its metrics page.

use super::lines::{Labels, unescape};

/// Most adapters of one list that are kept.
const ADAPTERS_MAX: usize = 4096;

/// Load on a metrics page, all ranks together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageLoad {
    /// Requests that wait for room.
    pub waiting: u32,
    /// Requests in the running batch.
    pub running: u32,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_usage: f64,
    /// Adapters; `None` where the engine never reported any.
    pub adapters: Option<Adapters>,
    /// Size of the KV cache; `None` where the engine does not report it.
    pub cache: Option<CacheSize>,
}

/// LoRA adapters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Most adapters that run at once.
    pub max: u32,
    /// Adapters with running requests.
    pub running: Vec<String>,
    /// Adapters whose requests wait for a slot.
    pub waiting: Vec<String>,
}

/// Size of an engine's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks on the device.
    pub blocks: u32,
}

impl Adapters {
    /// The labels with adapters: most at once, running, waiting.
    pub(crate) const LABELS: [&[u8]; 3] =
        [b"max_lora", b"running_lora_adapters", b"waiting_lora_adapters"];

    /// Reads the values of these labels.
    pub(crate) fn read([max, running, waiting]: [&[u8]; 3]) -> Self {
        Self { max: number(max).unwrap_or(0), running: names(running), waiting: names(waiting) }
    }
}

impl CacheSize {
    /// Reads `block_size` and `num_gpu_blocks`, or `page_size` and `num_pages`.
    pub(crate) fn read(labels: Labels<'_>) -> Option<Self> {
        Self::read_named(labels, &[None, None])
    }

    /// Reads labels of these names, or of the usual names where none are given.
    pub(crate) fn read_named(
        labels: Labels<'_>,
        [size, count]: &[Option<String>; 2],
    ) -> Option<Self> {
        let label = |given: &Option<String>, usual: [&[u8]; 2]| {
            number(match given {
                Some(name) => labels.get(name.as_bytes())?,
                None => usual.iter().find_map(|name| labels.get(name))?,
            })
        };
        let block_size = label(size, [b"block_size", b"page_size"])?;
        Some(Self { block_size, blocks: label(count, [b"num_gpu_blocks", b"num_pages"])? })
    }
}

fn number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

fn names(value: &[u8]) -> Vec<String> {
    let value = unescape(value);
    let names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let names = names.filter(|name| !name.is_empty()).take(ADAPTERS_MAX);
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}
