//! Sizes, memories and bytes that all roles use.

use stator_cuda::cuda::CudaDriver;
use stator_cuda::driver::MemorySource;
use stator_cuda::fold::PagePair;
use stator_cuda::layout::{KvLayout, PageOrder, PageShape};
use stator_cuda::{KvMemory, KvSide};
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use std::sync::Arc;
use std::time::Duration;

/// A page of 2 MiB in 64 pieces of 32 KiB, as 32 layers whose keys and values are apart have it.
pub(crate) const SHAPE: PageShape =
    PageShape { layers: 64, heads: 8, tokens: 16, content_bytes: 256 };
pub(crate) const PAGE: usize = 2 << 20;

pub(crate) type Memory = Arc<KvMemory<CudaDriver>>;
pub(crate) type Side = KvSide<CudaDriver>;

pub(crate) fn attach(driver: &Arc<CudaDriver>, source: MemorySource) -> Memory {
    KvMemory::attach(driver, source).unwrap_or_else(|error| panic!("cannot attach: {error}"))
}

pub(crate) fn arena(slots: u32) -> Arc<Arena> {
    let arena = Arena::new(slots, PAGE).expect("the machine has the memory");
    // The system gives pages at the first write: not while something is timed.
    let zeros = vec![0; PAGE];
    (0..slots).for_each(|slot| arena.write(SlotId(slot), &zeros));
    Arc::new(arena)
}

pub(crate) fn side(memory: &Memory, order: PageOrder) -> Side {
    side_of(SHAPE, memory, order)
}

pub(crate) fn side_of(shape: PageShape, memory: &Memory, order: PageOrder) -> Side {
    let pages = (memory.attachment().bytes() / shape.page_bytes()) as u32;
    let layout = KvLayout::packed(order, shape, pages).expect("pages have bytes");
    KvSide::new(memory.clone(), layout).expect("the pages fill the memory")
}

/// Word `at` of a memory that was filled with a seed, as `run.py` fills it.
fn word(seed: u32, at: usize) -> u32 {
    (at as u32).wrapping_mul(2_654_435_761).wrapping_add(seed)
}

/// Bytes `start..start + bytes` of a memory that was filled with a seed.
pub(crate) fn filled(seed: u32, start: usize, bytes: usize) -> Vec<u8> {
    let mut kv = vec![0; bytes];
    for (place, at) in kv.chunks_exact_mut(4).zip(start / 4..) {
        place.copy_from_slice(&word(seed, at).to_le_bytes());
    }
    kv
}

/// The page of a layer-first memory of `pages` pages that was filled with a seed, as a slot has it.
pub(crate) fn page_of_layers(seed: u32, page: u32, pages: u32) -> Vec<u8> {
    let piece = PAGE / SHAPE.layers as usize;
    let start = |layer: u32| (layer as usize * pages as usize + page as usize) * piece;
    (0..SHAPE.layers).flat_map(|layer| filled(seed, start(layer), piece)).collect()
}

/// `count` pairs whose pages lie apart on both sides.
pub(crate) fn scattered(count: u32, from_pages: u32, to_pages: u32) -> Vec<PagePair> {
    // Both steps are primes that divide no number of pages here.
    let pair = |at: u32| PagePair { from: at * 769 % from_pages, to: at * 389 % to_pages };
    (0..count).map(pair).collect()
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

pub(crate) fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64()
}
