//! KV on its way from one engine to another: what must be alike at both ends, the checksum of each
//! block, and blocks in pieces of bounded size.

use std::mem;
use std::ops::Range;

use stator_protos::hash::SequenceHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of one piece at most.
pub const PIECE_BYTES: usize = 1 << 20;

/// What a block's KV looks like, and what it is computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvForm {
    /// Equal where model, arithmetic, layout and block size are: equal prefixes have equal KV then,
    /// to the bit.
    pub fingerprint: u64,
    /// Bytes of a block; 0 where nothing is computed.
    pub block_bytes: usize,
}

impl KvForm {
    /// The checksum of a block: of its KV, of what computed it, and of the tokens up to its end.
    /// That of a block of another model or prompt is another one.
    pub fn checksum(&self, hash: SequenceHash, kv: &[u8]) -> u64 {
        xxh3_64_with_seed(kv, self.fingerprint ^ hash.0)
    }
}

/// The KV of one whole block, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockKv {
    /// [`KvForm::block_bytes`] of it.
    pub kv: Vec<u8>,
    /// See [`KvForm::checksum`].
    pub checksum: u64,
}

impl BlockKv {
    /// Where its pieces are, in order; the last one takes the checksum with it.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<usize>, Option<u64>)> + use<> {
        let (len, checksum) = (self.kv.len(), self.checksum);
        (0..len.max(1)).step_by(PIECE_BYTES).map(move |start| {
            let end = len.min(start + PIECE_BYTES);
            (start..end, (end == len).then_some(checksum))
        })
    }
}

/// Puts blocks together again that come in pieces, one after the other.
#[derive(Debug)]
pub struct Assembly {
    block_bytes: usize,
    first: u32,
    count: usize,
    blocks: Vec<BlockKv>,
    part: Vec<u8>,
}

/// What came is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Torn {
    /// A block out of order, or one too many.
    #[error("a piece of block {block}, not of block {expected}")]
    Order {
        /// What came.
        block: u32,
        /// What was next.
        expected: u32,
    },
    /// A block that is shorter or longer than blocks here.
    #[error("block {block} has {bytes} bytes, not {expected}")]
    Size {
        /// Which.
        block: u32,
        /// Bytes of it that have come.
        bytes: usize,
        /// Bytes of a block.
        expected: usize,
    },
}

impl Assembly {
    /// Expects `count` blocks from `first` on. Holds no more than these.
    pub fn new(form: KvForm, first: u32, count: usize) -> Self {
        let block_bytes = form.block_bytes;
        Self { block_bytes, first, count, blocks: Vec::new(), part: Vec::new() }
    }

    /// Takes the next piece; with a checksum it is a block's last.
    ///
    /// # Errors
    ///
    /// [`Torn`] when it is not the next one, or makes its block too long or leaves it too short.
    pub fn push(&mut self, block: u32, piece: &[u8], checksum: Option<u64>) -> Result<(), Torn> {
        let expected = self.first.saturating_add(self.blocks.len() as u32);
        if block != expected || self.blocks.len() == self.count {
            return Err(Torn::Order { block, expected });
        }
        let bytes = self.part.len() + piece.len();
        let whole = bytes == self.block_bytes;
        if bytes > self.block_bytes || (checksum.is_some() && !whole) {
            return Err(Torn::Size { block, bytes, expected: self.block_bytes });
        }
        self.part.extend_from_slice(piece);
        if let Some(checksum) = checksum {
            self.blocks.push(BlockKv { kv: mem::take(&mut self.part), checksum });
        }
        Ok(())
    }

    /// The blocks that came whole.
    pub fn blocks(self) -> Vec<BlockKv> {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pieces: &[(u32, usize, Option<u64>)]) -> Result<usize, Torn> {
        let mut assembly = Assembly::new(KvForm { fingerprint: 1, block_bytes: 8 }, 3, 2);
        for &(block, bytes, checksum) in pieces {
            assembly.push(block, &vec![7; bytes], checksum)?;
        }
        Ok(assembly.blocks().len())
    }

    #[test]
    fn pieces_out_of_order_or_of_another_size_are_refused() {
        assert_eq!(check(&[(3, 5, None), (3, 3, Some(1)), (4, 8, Some(2))]), Ok(2));
        assert_eq!(check(&[(3, 5, None)]), Ok(0));
        let order = |block, expected| Err(Torn::Order { block, expected });
        assert_eq!(check(&[(4, 8, Some(1))]), order(4, 3));
        assert_eq!(check(&[(3, 8, Some(1)), (4, 8, Some(1)), (5, 8, Some(1))]), order(5, 5));
        let size = |bytes| Err(Torn::Size { block: 3, bytes, expected: 8 });
        assert_eq!(check(&[(3, 5, Some(1))]), size(5));
        assert_eq!(check(&[(3, 5, None), (3, 4, None)]), size(9));
    }

    #[test]
    fn a_checksum_is_of_the_block_of_the_prompt_and_of_the_model() {
        let (form, hash) = (KvForm { fingerprint: 1, block_bytes: 3 }, SequenceHash(5));
        let checksum = form.checksum(hash, b"abc");
        assert_ne!(form.checksum(hash, b"abd"), checksum);
        assert_ne!(form.checksum(SequenceHash(6), b"abc"), checksum);
        assert_ne!(KvForm { fingerprint: 2, ..form }.checksum(hash, b"abc"), checksum);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn blocks_survive_their_way_in_pieces(sizes in 0..3 * PIECE_BYTES, count in 0..4_usize) {
            let blocks: Vec<_> = (0..count as u64)
                .map(|n| BlockKv { kv: vec![n as u8; sizes], checksum: n })
                .collect();
            let form = KvForm { fingerprint: 0, block_bytes: sizes };
            let mut assembly = Assembly::new(form, 0, count);
            for (number, block) in (0..).zip(&blocks) {
                for (range, checksum) in block.pieces() {
                    prop_assert!(range.len() <= PIECE_BYTES);
                    assembly.push(number, &block.kv[range], checksum).unwrap();
                }
            }
            prop_assert_eq!(assembly.blocks(), blocks);
        }
    }
}
