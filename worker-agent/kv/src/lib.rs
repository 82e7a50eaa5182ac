//! KV blocks outside the engine: in host memory, on disk, in object storage and at other agents.
//!
//! [`store`] decides: it knows which block is where and what is to be copied, evicted, loaded or
//! recomputed. It does no I/O and reads no clock. The other modules move bytes and decide nothing.
//! No KV is carried in messages or vectors: a block is a slot of the host arena, and whoever moves
//! it is given the slot.

pub mod arena;
pub mod cache;
pub mod checksum;
pub mod cipher;
pub mod connector;
pub mod cost;
pub mod disk;
pub mod metrics;
pub mod object;
pub mod peer;
pub mod policy;
pub mod shims;
pub mod staging;
pub mod store;
pub mod tier;
pub mod transfer;
mod turns;

use std::time::Duration;

use stator_protos::hash::{HashSeed, SequenceHash};
use stator_protos::name::BlockName;

/// Time since an origin that the process chose.
pub type Now = Duration;

/// A slot of the host arena, which holds the KV of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// XXH3-64 over a block's KV, seeded with its name, so that the right bytes under a wrong name are
/// wrong too. It is taken once, when the block is registered, and verified on every way back into
/// the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

/// A block as the tiers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Identity, which decides what is reused.
    pub name: BlockName,
    /// The hash by which KV events name the block, if its engine's events do.
    pub hash: Option<SequenceHash>,
    /// The hash of the block before it in its sequence, as for `hash`; `None` for the first block.
    /// Tiers keep it with the block: after a restart, routers hear of a block only where all before
    /// it are known to be there as well.
    pub parent: Option<SequenceHash>,
    /// Blocks before it in its sequence. Of two blocks of a sequence, the deeper one is evicted
    /// first.
    pub depth: u32,
    /// The tenant whose requests computed it.
    pub tenant: TenantKey,
}

/// A number that stands for a tenant, for quotas. Blocks of which nobody knows whose they are, and
/// those of the space that all share, have zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantKey(pub u64);

impl TenantKey {
    /// The tenant of a cache salt, with any adapter: a tenant's adapters count together.
    pub fn of_salt(salt: Option<&str>) -> Self {
        Self(HashSeed::new(None, salt).number())
    }
}

/// The form of all KV of one cache. KV of another form is refused, never converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockForm {
    /// Covers all that decides the bytes of a block: model, types, layout, block size, ranks,
    /// hash algorithm and versions.
    pub fingerprint: [u8; 32],
    /// Bytes of a block.
    pub block_bytes: usize,
}
