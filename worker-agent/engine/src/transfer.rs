//! KV on its way from one engine to another: what must be alike at both ends, what shows that a
//! block is genuine, and blocks in pieces of bounded size.

use std::fmt;
use std::mem;
use std::ops::Range;

use stator_protos::name::BlockName;

/// Bytes of one piece at most.
pub const PIECE_BYTES: usize = 1 << 20;

/// Form of a block's KV, and of the model that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvForm {
    /// Equal where model, arithmetic, layout and block size are: equal prefixes have equal KV then,
    /// to the bit.
    pub fingerprint: u64,
    /// Bytes of a block; 0 where nothing is computed.
    pub block_bytes: usize,
}

/// The KV of one whole block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockKv {
    /// Name of the block.
    pub name: BlockName,
    /// [`KvForm::block_bytes`] of it.
    pub kv: Vec<u8>,
}

impl BlockKv {
    /// Ranges of the block's pieces, in order, and whether each is the last.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<usize>, bool)> + use<> {
        let len = self.kv.len();
        (0..len.max(1)).step_by(PIECE_BYTES).map(move |start| {
            let end = len.min(start + PIECE_BYTES);
            (start..end, end == len)
        })
    }
}

/// Purpose for which the key of seals is derived.
const CONTEXT: &str = "stator 2026 seals of KV blocks";

/// The key that KV on its way is sealed with.
#[derive(Clone, PartialEq, Eq)]
pub struct TransferKey([u8; 32]);

impl TransferKey {
    /// The key of a fleet with this secret.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }
}

impl Default for TransferKey {
    /// The key of fleets without a secret, which everybody knows: a seal is a checksum then.
    fn default() -> Self {
        Self::of_secret(&[])
    }
}

impl fmt::Debug for TransferKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransferKey(..)")
    }
}

/// Proves that a block is genuine: BLAKE3 in its keyed mode.
pub type Mac = [u8; 32];

/// Seals the blocks of one transfer.
#[derive(Clone, Debug)]
pub struct Seal {
    key: TransferKey,
    form: KvForm,
    handle: u64,
}

impl Seal {
    /// The seal for the transfer of this handle. The receiving side draws the handle at random, so
    /// that a seal of one transfer is of no use in another.
    pub fn new(key: &TransferKey, form: KvForm, handle: u64) -> Self {
        Self { key: key.clone(), form, handle }
    }

    /// The seal of the block at this place in the prompt: of its KV, its name, what computed it, and
    /// of the transfer.
    pub fn of(&self, place: u32, name: BlockName, kv: &[u8]) -> Mac {
        *self.hash(place, name, kv).as_bytes()
    }

    fn is_of(&self, place: u32, block: &BlockKv, mac: &[u8]) -> bool {
        let shown = blake3::Hash::from_slice(mac);
        // Hashes are compared in constant time.
        shown.is_ok_and(|shown| shown == self.hash(place, block.name, &block.kv))
    }

    fn hash(&self, place: u32, name: BlockName, kv: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(&self.handle.to_le_bytes());
        hasher.update(&self.form.fingerprint.to_le_bytes());
        hasher.update(&place.to_le_bytes());
        hasher.update(&name.to_bytes());
        // All before it has a fixed length.
        hasher.update(kv).finalize()
    }
}

/// Puts blocks together again that come in pieces, one after the other.
#[derive(Debug)]
pub struct Assembly {
    seal: Seal,
    first: u32,
    names: Vec<BlockName>,
    blocks: Vec<BlockKv>,
    part: Vec<u8>,
}

/// Error of a transfer that does not match its request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// A block out of order, or one too many.
    #[error("a piece of block {block}, not of block {expected}")]
    Order {
        /// Block that came.
        block: u32,
        /// Block that was next.
        expected: u32,
    },
    /// A block that is shorter or longer than blocks here.
    #[error("block {block} has {bytes} bytes, not {expected}")]
    Size {
        /// Place of the block.
        block: u32,
        /// Bytes of it that have come.
        bytes: usize,
        /// Bytes of a block.
        expected: usize,
    },
    /// A block whose seal is not of this block, this transfer and the fleet's secret.
    #[error("block {block} is forged, damaged or of another secret")]
    Forged {
        /// Place of the block.
        block: u32,
    },
}

impl Assembly {
    /// Expects the blocks of these names from place `first` on. Holds no more than these.
    pub fn new(seal: Seal, first: u32, names: Vec<BlockName>) -> Self {
        Self { seal, first, names, blocks: Vec::new(), part: Vec::new() }
    }

    /// Takes the next piece; with a seal it is a block's last.
    ///
    /// # Errors
    ///
    /// [`TransferError`] when it is not the next one, makes its block too long or leaves it too short, or
    /// when the block is not genuine.
    pub fn push(
        &mut self,
        block: u32,
        piece: &[u8],
        mac: Option<&[u8]>,
    ) -> Result<(), TransferError> {
        let expected = self.first.saturating_add(self.blocks.len() as u32);
        let name = self.names.get(self.blocks.len()).copied();
        let name =
            name.filter(|_| block == expected).ok_or(TransferError::Order { block, expected })?;
        let block_bytes = self.seal.form.block_bytes;
        let bytes = self.part.len() + piece.len();
        if bytes > block_bytes || (mac.is_some() && bytes < block_bytes) {
            return Err(TransferError::Size { block, bytes, expected: block_bytes });
        }
        // Once for each block: growing would copy what is there again and again.
        self.part.reserve_exact(block_bytes - self.part.len());
        self.part.extend_from_slice(piece);
        let Some(mac) = mac else { return Ok(()) };
        let whole = BlockKv { name, kv: mem::take(&mut self.part) };
        if !self.seal.is_of(block, &whole, mac) {
            return Err(TransferError::Forged { block });
        }
        self.blocks.push(whole);
        Ok(())
    }

    /// The blocks that came whole and are genuine.
    pub fn blocks(self) -> Vec<BlockKv> {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORM: KvForm = KvForm { fingerprint: 1, block_bytes: 8 };

    fn seal() -> Seal {
        Seal::new(&TransferKey::of_secret(b"secret"), FORM, 9)
    }

    fn assembly(seal: Seal) -> Assembly {
        Assembly::new(seal, 3, vec![BlockName(30), BlockName(40)])
    }

    /// Blocks that are put together of pieces of so many bytes, the last of a block with its seal.
    fn check(pieces: &[(u32, usize, bool)]) -> Result<usize, TransferError> {
        let mut assembly = assembly(seal());
        for &(block, bytes, is_last) in pieces {
            let mac = seal().of(block, BlockName(u128::from(block) * 10), &[7; 8]);
            assembly.push(block, &vec![7; bytes], is_last.then_some(&mac))?;
        }
        Ok(assembly.blocks().len())
    }

    #[test]
    fn pieces_out_of_order_or_of_another_size_are_refused() {
        assert_eq!(check(&[(3, 5, false), (3, 3, true), (4, 8, true)]), Ok(2));
        assert_eq!(check(&[(3, 5, false)]), Ok(0));
        let order = |block, expected| Err(TransferError::Order { block, expected });
        assert_eq!(check(&[(4, 8, true)]), order(4, 3));
        assert_eq!(check(&[(3, 8, true), (4, 8, true), (5, 8, true)]), order(5, 5));
        let size = |bytes| Err(TransferError::Size { block: 3, bytes, expected: 8 });
        assert_eq!(check(&[(3, 5, true)]), size(5));
        assert_eq!(check(&[(3, 5, false), (3, 4, false)]), size(9));
    }

    #[test]
    fn a_seal_is_of_secret_model_transfer_place_name_and_kv() {
        let (kv, name) = (b"eight by", BlockName(30));
        let other = KvForm { fingerprint: 2, ..FORM };
        let key = TransferKey::of_secret(b"secret");
        let forged = [
            Seal::new(&TransferKey::default(), FORM, 9).of(3, name, kv),
            Seal::new(&key, other, 9).of(3, name, kv),
            Seal::new(&key, FORM, 8).of(3, name, kv),
            seal().of(4, name, kv),
            seal().of(3, BlockName(31), kv),
            seal().of(3, name, b"eight bz"),
        ];
        let push = |mac: &[u8]| assembly(seal()).push(3, kv, Some(mac));
        assert_eq!(push(&seal().of(3, name, kv)), Ok(()));
        for mac in forged {
            assert_eq!(push(&mac), Err(TransferError::Forged { block: 3 }));
        }
        assert_eq!(push(&seal().of(3, name, kv)[..31]), Err(TransferError::Forged { block: 3 }));
        assert_eq!(push(b""), Err(TransferError::Forged { block: 3 }));
    }

    #[test]
    fn what_came_before_a_forged_block_is_kept() {
        let mut assembly = assembly(seal());
        let mac = seal().of(3, BlockName(30), &[7; 8]);
        assembly.push(3, &[7; 8], Some(&mac)).unwrap();
        // A seal that was genuine for the block before.
        assert_eq!(assembly.push(4, &[7; 8], Some(&mac)), Err(TransferError::Forged { block: 4 }));
        assert_eq!(assembly.blocks(), [BlockKv { name: BlockName(30), kv: vec![7; 8] }]);
    }

    #[test]
    fn no_debug_output_shows_the_key() {
        assert!(format!("{:?}", seal()).contains("TransferKey(..)"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn blocks_survive_their_way_in_pieces(sizes in 0..3 * PIECE_BYTES, count in 0..4_u32) {
            let blocks: Vec<_> = (0..count)
                .map(|n| BlockKv { name: BlockName(n.into()), kv: vec![n as u8; sizes] })
                .collect();
            let form = KvForm { fingerprint: 0, block_bytes: sizes };
            let seal = Seal::new(&TransferKey::default(), form, 1);
            let names = blocks.iter().map(|block| block.name).collect();
            let mut assembly = Assembly::new(seal.clone(), 0, names);
            for (place, block) in (0..).zip(&blocks) {
                let mac = seal.of(place, block.name, &block.kv);
                for (range, is_last) in block.pieces() {
                    prop_assert!(range.len() <= PIECE_BYTES);
                    assembly.push(place, &block.kv[range], is_last.then_some(&mac)).unwrap();
                }
            }
            prop_assert_eq!(assembly.blocks(), blocks);
        }
    }
}
