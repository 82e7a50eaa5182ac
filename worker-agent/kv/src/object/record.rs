//! A block's identity in the headers of extents and in index objects: 48 bytes, little endian.
//!
//! Name 16, sequence hash 8, parent's hash 8, depth 4, flags 4 (1: has a hash, 2: has a parent),
//! tenant 8.

use bytes::{Buf, BufMut};
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;

use crate::{Block, TenantKey};

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 48;

const HAS_HASH: u32 = 1;
const HAS_PARENT: u32 = 2;

/// Appends a block's record.
pub(crate) fn put_block(out: &mut Vec<u8>, block: &Block) {
    let hash = |hash: Option<SequenceHash>| hash.map_or(0, |hash| hash.0);
    let flag = |hash: Option<SequenceHash>, flag| if hash.is_some() { flag } else { 0 };
    out.put_slice(&block.name.to_bytes());
    out.put_u64_le(hash(block.hash));
    out.put_u64_le(hash(block.parent));
    out.put_u32_le(block.depth);
    out.put_u32_le(flag(block.hash, HAS_HASH) | flag(block.parent, HAS_PARENT));
    out.put_u64_le(block.tenant.0);
}

/// Takes a block's record from the front.
pub(crate) fn take_block(rest: &mut &[u8]) -> Option<Block> {
    let name = BlockName(rest.try_get_u128_le().ok()?);
    let hash = SequenceHash(rest.try_get_u64_le().ok()?);
    let parent = SequenceHash(rest.try_get_u64_le().ok()?);
    let depth = rest.try_get_u32_le().ok()?;
    let flags = rest.try_get_u32_le().ok()?;
    let tenant = TenantKey(rest.try_get_u64_le().ok()?);
    let is_set = |flag| flags & flag != 0;
    Some(Block {
        name,
        hash: is_set(HAS_HASH).then_some(hash),
        parent: is_set(HAS_PARENT).then_some(parent),
        depth,
        tenant,
    })
}
