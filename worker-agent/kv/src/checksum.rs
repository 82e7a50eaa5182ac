//! Checksums of blocks. This implementation takes AVX2 where the processor has it; that of other
//! hashes here is fixed to SSE2 when it is compiled.

use crate::Checksum;
use stator_protos::name::BlockName;
use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// The checksum of a block's KV under its name.
///
/// Source: XXH3-64, seeded with the low 64 bits of the name.
pub fn checksum(name: BlockName, kv: &[u8]) -> Checksum {
    Checksum(XxHash3_64::oneshot_with_seed(seed(name), kv))
}

/// The checksum of KV that comes in pieces, equal to [`checksum`] of all pieces together.
pub struct ChecksumStream(XxHash3_64);

impl ChecksumStream {
    /// Starts the checksum of a block.
    pub fn new(name: BlockName) -> Self {
        Self(XxHash3_64::with_seed(seed(name)))
    }

    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }

    /// The checksum of all pieces so far.
    pub fn finish(&self) -> Checksum {
        Checksum(self.0.finish())
    }
}

fn seed(name: BlockName) -> u64 {
    name.0 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_value_is_fixed_because_disks_keep_it() {
        let name = BlockName(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let kv: Vec<u8> = (0..=255).collect();
        assert_eq!(checksum(name, &kv), Checksum(0x96f4_4a5f_645b_7ee9));
    }

    #[test]
    fn right_bytes_under_a_wrong_name_are_wrong() {
        assert_ne!(checksum(BlockName(1), b"kv"), checksum(BlockName(2), b"kv"));
    }

    proptest! {
        /// Stores that another implementation wrote stay readable.
        #[test]
        fn another_implementation_gives_the_same(
            name: u128,
            kv in proptest::collection::vec(any::<u8>(), 0..5000),
        ) {
            let expected = xxhash_rust::xxh3::xxh3_64_with_seed(&kv, name as u64);
            prop_assert_eq!(checksum(BlockName(name), &kv), Checksum(expected));
        }

        #[test]
        fn pieces_give_the_checksum_of_the_whole(
            name: u128,
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 0..6),
        ) {
            let mut stream = ChecksumStream::new(BlockName(name));
            pieces.iter().for_each(|piece| stream.update(piece));
            prop_assert_eq!(stream.finish(), checksum(BlockName(name), &pieces.concat()));
        }

        #[test]
        fn a_flipped_bit_shows(name: u128, mut kv in proptest::collection::vec(any::<u8>(), 1..700), at: usize) {
            let before = checksum(BlockName(name), &kv);
            let bit = at % (kv.len() * 8);
            kv[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(checksum(BlockName(name), &kv), before);
        }
    }
}
