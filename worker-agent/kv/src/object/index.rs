//! The form of an index object, in which a writer tells other agents what it has written.
//!
//! | part | bytes |
//! | --- | --- |
//! | head | magic 8, version 4, extents 4, fingerprint 32, bytes of a block 8, cleared at 8 (Unix, ms) |
//! | each extent | id 32, written at 8 (Unix, ms), blocks 4 |
//! | each block of it, in the extent's order | record 48 |
//! | end | nonce and tag of the encryption 28, or zeros; tag 32 |
//!
//! With a key all behind the version is encrypted.

use bytes::{Buf, BufMut};

use super::extent::{BLOCKS_MAX, ExtentId};
use super::record::{RECORD_BYTES, put_block, take_block};
use super::seal::Seal;
use crate::{Block, BlockForm};

/// Most bytes of an index object; a larger one is not read.
pub(crate) const INDEX_BYTES_MAX: usize = 4 << 20;

const MAGIC: &[u8; 8] = b"STKVIDX1";
const VERSION: u32 = 2;

/// An extent, as an index tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedExtent {
    /// Its identity.
    pub id: ExtentId,
    /// When it was written, in ms since the Unix epoch by the writer's clock.
    pub written_unix_ms: u64,
    /// Its blocks, in its order.
    pub blocks: Vec<Block>,
}

/// Content of an index object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexObject {
    /// Extents that were written until then are to be forgotten, in ms since the Unix epoch.
    pub cleared_unix_ms: u64,
    /// Extents that the writer has written.
    pub extents: Vec<IndexedExtent>,
}

impl IndexObject {
    /// The index in bytes.
    pub fn encode(&self, form: &BlockForm, seal: &Seal) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_slice(MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(self.extents.len() as u32);
        out.put_slice(&form.fingerprint);
        out.put_u64_le(form.block_bytes as u64);
        out.put_u64_le(self.cleared_unix_ms);
        for extent in &self.extents {
            out.put_slice(&extent.id.0);
            out.put_u64_le(extent.written_unix_ms);
            out.put_u32_le(extent.blocks.len() as u32);
            for block in &extent.blocks {
                put_block(&mut out, block);
            }
        }
        seal.close(&mut out);
        out
    }

    /// The index that these bytes are; none if they are no index of this form and fleet.
    pub fn decode(bytes: &[u8], form: &BlockForm, seal: &Seal) -> Option<Self> {
        let content = seal.open(bytes)?;
        let mut rest = &content[..];
        let magic = rest.try_get_u64_le().ok()?.to_le_bytes();
        let version = rest.try_get_u32_le().ok()?;
        let count = rest.try_get_u32_le().ok()?;
        let fingerprint = take::<32>(&mut rest)?;
        let block_bytes = rest.try_get_u64_le().ok()?;
        let is_of_form = fingerprint == form.fingerprint && block_bytes == form.block_bytes as u64;
        if magic != *MAGIC || version != VERSION || !is_of_form {
            return None;
        }
        let cleared_unix_ms = rest.try_get_u64_le().ok()?;
        let extents = (0..count).map(|_| read_extent(&mut rest)).collect::<Option<_>>()?;
        rest.is_empty().then_some(Self { cleared_unix_ms, extents })
    }
}

fn read_extent(rest: &mut &[u8]) -> Option<IndexedExtent> {
    let id = ExtentId(take::<32>(rest)?);
    let written_unix_ms = rest.try_get_u64_le().ok()?;
    let blocks = rest.try_get_u32_le().ok()? as usize;
    // Before room is made for them: the number may be anything.
    if blocks > BLOCKS_MAX || rest.len() < blocks * RECORD_BYTES {
        return None;
    }
    let blocks = (0..blocks).map(|_| take_block(rest)).collect::<Option<_>>()?;
    Some(IndexedExtent { id, written_unix_ms, blocks })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use stator_protos::hash::SequenceHash;
    use stator_protos::name::BlockName;

    const FORM: BlockForm = BlockForm { fingerprint: [3; 32], block_bytes: 100 };

    fn any_block() -> impl Strategy<Value = Block> {
        let hash = || any::<Option<u64>>().prop_map(|hash| hash.map(SequenceHash));
        (any::<u128>(), hash(), hash(), any::<u32>()).prop_map(|(name, hash, parent, depth)| {
            Block {
                name: BlockName(name),
                hash,
                parent,
                depth,
                tenant: crate::TenantKey::default(),
            }
        })
    }

    fn any_index() -> impl Strategy<Value = IndexObject> {
        let extent = (any::<[u8; 32]>(), any::<u64>(), vec(any_block(), 0..5)).prop_map(
            |(id, written_unix_ms, blocks)| IndexedExtent {
                id: ExtentId(id),
                written_unix_ms,
                blocks,
            },
        );
        (any::<u64>(), vec(extent, 0..5))
            .prop_map(|(cleared_unix_ms, extents)| IndexObject { cleared_unix_ms, extents })
    }

    proptest! {
        #[test]
        fn an_index_is_read_as_it_was_written(index in any_index(), cut in any::<prop::sample::Index>()) {
            let seal = Seal::new(None, &FORM.fingerprint);
            let bytes = index.encode(&FORM, &seal);
            prop_assert_eq!(IndexObject::decode(&bytes, &FORM, &seal), Some(index));
            let mut changed = bytes.clone();
            changed[cut.index(bytes.len())] ^= 1;
            prop_assert_eq!(IndexObject::decode(&changed, &FORM, &seal), None);
            prop_assert_eq!(IndexObject::decode(&bytes[..cut.index(bytes.len())], &FORM, &seal), None);
        }

        /// The seal is right and the content is anything: what is read survives the wire.
        #[test]
        fn whatever_is_sealed_is_an_index_or_refused(content in vec(any::<u8>(), 0..200)) {
            let seal = Seal::new(None, &FORM.fingerprint);
            let mut bytes = IndexObject::default().encode(&FORM, &seal)[..64].to_vec();
            bytes[12] = content.first().map_or(0, |byte| byte % 4);
            bytes.extend(content);
            seal.close(&mut bytes);
            if let Some(index) = IndexObject::decode(&bytes, &FORM, &seal) {
                prop_assert_eq!(IndexObject::decode(&index.encode(&FORM, &seal), &FORM, &seal), Some(index));
            }
        }
    }
}
