//! Operators' view of a cache, and what they can change while it works.

use super::TieredCache;
use crate::metrics::KvMetrics;
use crate::store::{ForgetOutcome, KeepOutcome, StoreStatus, TierId};
use stator_pins::{PinOutcome, PinWish};
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;
use std::time::Duration;

/// Blocks that an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockChoice {
    /// Blocks by the hashes of KV events, in the order of their sequence.
    Hashes(Vec<SequenceHash>),
    /// Blocks by their names, in the order of their sequence.
    Names(Vec<BlockName>),
}

/// State of a cache.
#[derive(Clone, Debug)]
pub struct CacheStatus {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of host memory that a block takes.
    pub slot_bytes: usize,
    /// State of host memory and of the tiers, nearest first.
    pub store: StoreStatus,
    /// Names of the tiers, in the same order.
    pub tiers: Vec<&'static str>,
    /// Counters of the process.
    pub metrics: KvMetrics,
}

/// A cache has no tier of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no tier {name:?}, only {}", known.join(", "))]
pub struct NoSuchTier {
    /// The name that was asked for.
    pub name: String,
    /// Names of all tiers, host memory included.
    pub known: Vec<&'static str>,
}

/// Name of host memory among the tiers.
const HOST: &str = "host";

impl TieredCache {
    /// The state of all tiers.
    pub fn status(&self) -> CacheStatus {
        CacheStatus {
            block_bytes: self.form.block_bytes,
            slot_bytes: self.arena().stride(),
            store: self.shared.operate(|store, now| store.status(now)),
            tiers: self.shared.tier_names(),
            metrics: self.shared.metrics().clone(),
        }
    }

    /// Keeps leading blocks of a prompt in host memory for `time`, whatever needs room. Blocks that
    /// only tiers below hold are read. Blocks that nobody holds are not in the outcome.
    pub fn keep(&self, blocks: &BlockChoice, time: Duration) -> KeepOutcome {
        self.shared.operate(|store, now| match blocks {
            BlockChoice::Names(names) => store.keep(names, now + time, now),
            BlockChoice::Hashes(hashes) => store.keep(&store.named(hashes), now + time, now),
        })
    }

    /// Pins leading blocks of a prompt in host memory, as a client wishes. Blocks that are not there
    /// are pinned when they come.
    pub fn pin_prompt(&self, hashes: &[SequenceHash], wish: PinWish) -> PinOutcome {
        self.shared.operate(|store, now| store.pin_prompt(hashes, wish, now))
    }

    /// Forgets blocks, in host memory and in all tiers.
    pub fn forget(&self, blocks: &BlockChoice) -> ForgetOutcome {
        self.shared.operate(|store, _| match blocks {
            BlockChoice::Names(names) => store.forget(names),
            BlockChoice::Hashes(hashes) => store.forget(&store.named(hashes)),
        })
    }

    /// Forgets all blocks of host memory (`host`) or of a tier, by its name in metrics.
    ///
    /// # Errors
    ///
    /// There is no such tier.
    pub fn clear_one(&self, tier: &str) -> Result<(), NoSuchTier> {
        if tier == HOST {
            self.shared.operate(|store, _| store.clear_host());
            return Ok(());
        }
        let id = self.tier(tier)?;
        self.shared.operate(|store, _| store.clear_tier(id));
        Ok(())
    }

    /// Changes how many bytes of host memory may hold blocks, at most those of the arena and at
    /// least those of one block. Blocks beyond are evicted, a few at a time beside other work.
    /// Returns the bytes that may hold blocks now.
    pub fn set_host_bytes(&self, bytes: u64) -> u64 {
        let arena = self.arena();
        let stride = arena.stride() as u64;
        let slots = (bytes / stride).clamp(1, arena.slots().into());
        self.shared.operate(|store, _| store.set_slot_limit(slots as usize));
        slots * stride
    }

    /// Changes the bytes that may be written to a tier in a second; `None` for no limit.
    ///
    /// # Errors
    ///
    /// There is no such tier.
    pub fn set_write_budget(&self, tier: &str, bytes_per_s: Option<u64>) -> Result<(), NoSuchTier> {
        let id = self.tier(tier)?;
        self.shared.operate(|store, now| store.set_write_budget(id, bytes_per_s, now));
        Ok(())
    }

    /// Says whether a tier is used. Reads and writes in flight go on.
    ///
    /// # Errors
    ///
    /// There is no such tier.
    pub fn set_tier_on(&self, tier: &str, is_on: bool) -> Result<(), NoSuchTier> {
        let id = self.tier(tier)?;
        self.shared.operate(|store, _| store.set_tier_on(id, is_on));
        Ok(())
    }

    fn tier(&self, name: &str) -> Result<TierId, NoSuchTier> {
        let tiers = self.shared.tier_names();
        let found = (0..).zip(&tiers).find(|(_, of)| **of == name);
        found.map(|(at, _)| TierId(at)).ok_or_else(|| NoSuchTier {
            name: name.to_owned(),
            known: std::iter::once(HOST).chain(tiers.iter().copied()).collect(),
        })
    }
}
