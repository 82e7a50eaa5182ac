//! The memory of the KV blocks.

use std::ops::Range;

use super::config::Config;
use super::kernel::{LANES, Panels};
use crate::memory::BlockMemory;
use crate::pool::BlockId;

/// Keys and values of all blocks, in f32.
///
/// A block is contiguous: layer by layer its keys, then its values, each head by head. A head's
/// keys stand with the slots of one element side by side, its values with the elements of one slot
/// side by side, so that both are panels for [`super::kernel`]: `[layer][K: head][element][slot]`
/// and `[layer][V: head][slot][element]`. Slots and elements are filled up to whole panels.
#[derive(Debug)]
pub(super) struct Kv {
    values: Vec<f32>,
    layout: Layout,
    blocks: u32,
}

/// Sizes within a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) block_size: usize,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// The keys and values of more blocks than memory can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{blocks} KV blocks of {block_bytes} bytes do not fit the memory")]
pub struct OutOfMemory {
    /// Blocks asked for.
    pub blocks: u32,
    /// Bytes of one.
    pub block_bytes: usize,
}

impl Layout {
    pub(super) fn new(config: &Config, block_size: usize) -> Self {
        Self {
            block_size,
            layers: config.layers,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        }
    }

    /// Slots of a block, filled up: values from one element's keys to the next.
    pub(super) fn slots(&self) -> usize {
        self.block_size.next_multiple_of(LANES)
    }

    /// Elements of a head, filled up: values from one slot's values to the next.
    pub(super) fn elements(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Index of a score in a row of scores: slots of the blocks before it are filled up.
    pub(super) fn score(&self, position: usize) -> usize {
        position / self.block_size * self.slots() + position % self.block_size
    }

    fn keys_len(&self) -> usize {
        self.head_dim * self.slots()
    }

    fn values_len(&self) -> usize {
        self.block_size * self.elements()
    }

    fn layer_len(&self) -> usize {
        self.kv_heads * (self.keys_len() + self.values_len())
    }

    fn block_len(&self) -> usize {
        self.layers * self.layer_len()
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_len() * size_of::<f32>()
    }

    /// The bytes of a layer in a block.
    pub(super) fn layer_bytes(&self, layer: usize) -> Range<usize> {
        let bytes = self.layer_len() * size_of::<f32>();
        layer * bytes..(layer + 1) * bytes
    }

    fn keys_at(&self, block: BlockId, layer: usize, head: usize) -> usize {
        let layer_start = block.0 as usize * self.block_len() + layer * self.layer_len();
        layer_start + head * self.keys_len()
    }

    fn values_at(&self, block: BlockId, layer: usize, head: usize) -> usize {
        self.keys_at(block, layer, self.kv_heads) + head * self.values_len()
    }
}

impl Kv {
    /// Room for `blocks` blocks; the system gives the memory as it is written.
    pub(super) fn new(layout: Layout, blocks: u32) -> Result<Self, OutOfMemory> {
        let mut kv = Self { values: Vec::new(), layout, blocks };
        kv.reserve()?;
        Ok(kv)
    }

    /// Has the memory, if it was given back.
    pub(super) fn reserve(&mut self) -> Result<(), OutOfMemory> {
        if !self.values.is_empty() {
            return Ok(());
        }
        let (blocks, block_len) = (self.blocks, self.layout.block_len());
        let error = OutOfMemory { blocks, block_bytes: self.layout.block_bytes() };
        let len = block_len.checked_mul(blocks as usize).ok_or(error.clone())?;
        // Asks first, because the zeroed allocation below ends the process where it fails.
        Vec::<f32>::new().try_reserve_exact(len).map_err(|_| error)?;
        self.values = vec![0.0; len];
        Ok(())
    }

    /// Gives the memory back. Nobody reads or writes a block until it is reserved again.
    pub(super) fn release(&mut self) {
        self.values = Vec::new();
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Writes the key and value of one head at one slot.
    pub(super) fn write(&mut self, place: KvSlot, key: &[f32], value: &[f32]) {
        let layout = self.layout;
        let KvSlot { block, slot, layer, head } = place;
        let keys = &mut self.values[layout.keys_at(block, layer, head)..][..layout.keys_len()];
        for (keys, element) in keys.chunks_exact_mut(layout.slots()).zip(key) {
            keys[slot] = *element;
        }
        let start = layout.values_at(block, layer, head) + slot * layout.elements();
        self.values[start..][..value.len()].copy_from_slice(value);
    }

    /// The keys of a block's slots, one lane each.
    pub(super) fn keys(&self, block: BlockId, layer: usize, head: usize) -> Panels<'_, f32> {
        let layout = &self.layout;
        Panels {
            weights: &self.values[layout.keys_at(block, layer, head)..][..layout.keys_len()],
            count: layout.slots() / LANES,
            stride: LANES,
            depth: layout.head_dim,
            depth_stride: layout.slots(),
        }
    }

    /// The values of some of a block's slots, one lane per element.
    pub(super) fn values(
        &self,
        block: BlockId,
        layer: usize,
        head: usize,
        slots: Range<usize>,
    ) -> Panels<'_, f32> {
        let layout = &self.layout;
        let start = layout.values_at(block, layer, head) + slots.start * layout.elements();
        Panels {
            weights: &self.values[start..][..slots.len() * layout.elements()],
            count: layout.elements() / LANES,
            stride: LANES,
            depth: slots.len(),
            depth_stride: layout.elements(),
        }
    }
}

impl BlockMemory for Kv {
    /// In this machine's byte order.
    fn kv(&self, block: BlockId) -> &[u8] {
        let start = block.0 as usize * self.layout.block_len();
        bytemuck::cast_slice(&self.values[start..][..self.layout.block_len()])
    }

    /// Any bytes make valid numbers.
    fn kv_mut(&mut self, block: BlockId) -> &mut [u8] {
        let start = block.0 as usize * self.layout.block_len();
        bytemuck::cast_slice_mut(&mut self.values[start..][..self.layout.block_len()])
    }
}

/// Place of one token's key and value of a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvSlot {
    pub(super) block: BlockId,
    pub(super) slot: usize,
    pub(super) layer: usize,
    pub(super) head: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_given_back_is_there_again_when_it_is_needed() {
        let layout = Layout { block_size: 16, layers: 1, kv_heads: 1, head_dim: 16 };
        let mut kv = Kv::new(layout, 3).unwrap();
        let whole = kv.values.len();
        kv.release();
        assert_eq!((whole, kv.values.capacity()), (3 * layout.block_len(), 0));
        kv.reserve().unwrap();
        assert_eq!(kv.values.len(), whole);
    }
}
