//! Decides which blocks stay in host memory, and which move between it and the tiers.
//!
//! [`BlockStore`] is told what engines want and what tiers did. It answers with slots of the host
//! arena and with [`Action`]s, which the caller takes with [`BlockStore::next_action`] after every
//! call and carries out. It does no I/O and reads no clock.
//!
//! - `owners`: engines come, fill slots and go.
//! - `asks`: what there is of a prompt; `loads`: reads from tiers, until nobody wants them any more;
//!   `waits`: until they have ended.
//! - `reports`: what the tiers did, and what they hold; `down`: writes to them.
//! - `room`: slots, pins and eviction; `kept` and `pinned`: blocks that operators and clients keep.

mod action;
mod asks;
mod content;
mod down;
mod index;
mod kept;
mod kept_blocks;
mod load_step;
mod loads;
mod owners;
mod pinned;
mod reports;
mod requests;
mod room;
mod settings;
mod slots;
mod sources;
mod stats;
mod status;
mod tiers;
mod waits;

#[cfg(test)]
mod cancel_tests;
#[cfg(test)]
mod kept_tests;
#[cfg(test)]
mod lend_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod pinned_tests;
#[cfg(test)]
mod tenant_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tier_tests;

pub use action::{
    Action, AheadReads, Filled, ForgetOutcome, Found, KeepOutcome, LoanTerms, OwnerId, RequestId,
    TierId,
};
pub use content::SlotContent;
pub use settings::{StoreSettings, TierAdmission, TierSettings};
pub use stats::{StoreStats, TierStats};
pub use status::{HostStatus, StoreStatus, TierStatus};

use crate::cost::TIERS_MAX;
use crate::policy::{Ghosts, PolicyName, PolicySelector, TenantSlots};
use crate::{Now, SlotId};
use index::BlockIndex;
use kept_blocks::KeptBlocks;
use load_step::LoadStep;
use requests::{Owner, Requests};
use rustc_hash::FxHashMap;
use slots::HostSlots;
use stator_pins::ClientPins;
use stator_protos::hash::SequenceHash;
use stator_protos::load::LoadCost;
use std::collections::VecDeque;
use std::time::Duration;
use tiers::TierState;

/// Names of blocks that are remembered after their eviction, for each slot and each block of a tier
/// that remembers them.
const SEEN_PER_SLOT: usize = 16;
/// Most names that are remembered: 32 MiB.
const SEEN_MAX: usize = 1 << 24;

/// The blocks of host memory and of the tiers below it.
pub struct BlockStore {
    slots: HostSlots,
    index: BlockIndex,
    policy: PolicySelector,
    owners: FxHashMap<OwnerId, Owner>,
    requests: Requests,
    tiers: Vec<TierState>,
    actions: VecDeque<Action>,
    stats: StoreStats,
    /// Blocks that operators keep in host memory.
    kept: KeptBlocks,
    /// Blocks that clients have pinned, by their hashes: engines tell these of all blocks.
    pins: ClientPins<SequenceHash, SlotId>,
    /// Slots of each tenant, if there is a quota.
    tenants: TenantSlots,
    /// Blocks that came into host memory lately, whether or not they are still there.
    seen: Ghosts,
    /// Scratch of [`BlockStore::ask`].
    steps: Vec<LoadStep>,
    next_owner: u64,
    granted_max: usize,
    requests_max: usize,
    wait_max: Duration,
}

impl BlockStore {
    /// An empty store.
    ///
    /// # Panics
    ///
    /// There are more than eight tiers.
    pub fn new(settings: StoreSettings) -> Self {
        assert!(settings.tiers.len() <= TIERS_MAX, "{} tiers, at most 8", settings.tiers.len());
        // A block that is being written cannot be evicted: most of them must not be.
        let writes_max = (settings.slots as usize / 4).max(1);
        // Second touches in a tier are as far apart as it is large.
        let room = settings.tiers.iter().map(|tier| match tier.admission {
            TierAdmission::Measured { blocks } => blocks,
            _ => 0,
        });
        let room = room.max().unwrap_or(0).max(settings.slots as usize);
        let seen = (SEEN_PER_SLOT * room).min(SEEN_MAX);
        let tiers = settings.tiers.into_iter().map(|mut tier| {
            tier.writes_max = tier.writes_max.min(writes_max);
            TierState::new(tier, settings.block_bytes, settings.slots as usize)
        });
        let tiers = tiers.collect();
        Self {
            slots: HostSlots::new(settings.slots),
            index: BlockIndex::default(),
            policy: match settings.policy {
                Some(policy) => PolicySelector::fixed(policy, settings.slots as usize),
                None => PolicySelector::new(settings.slots as usize),
            },
            owners: FxHashMap::default(),
            requests: Requests::default(),
            tiers,
            actions: VecDeque::new(),
            stats: StoreStats::default(),
            kept: KeptBlocks::default(),
            pins: ClientPins::new(settings.pins),
            tenants: TenantSlots::new(settings.tenant_slots_max),
            seen: Ghosts::new(seen),
            steps: Vec::new(),
            next_owner: 0,
            granted_max: settings.granted_max,
            requests_max: settings.requests_max,
            wait_max: settings.wait_max,
        }
    }

    /// The next thing to do or to tell. Callers take all of them after every call.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The policy by which blocks are evicted from host memory at the moment.
    pub fn policy(&self) -> PolicyName {
        self.policy.current()
    }

    /// Whether operators want the tier to be used. Reads and writes in flight go on.
    pub fn set_tier_on(&mut self, tier: TierId, is_on: bool) {
        self.tier_mut(tier).is_off = !is_on;
    }

    /// Changes the bytes that may be written to a tier in a second; `None` for no limit.
    pub fn set_write_budget(&mut self, tier: TierId, bytes_per_s: Option<u64>, now: Now) {
        self.tier_mut(tier).set_write_budget(bytes_per_s, now);
    }

    /// The state of host memory and of the tiers, for operators and metrics.
    pub fn status(&self, now: Now) -> StoreStatus {
        let host = HostStatus {
            slots: self.slots.ids().len(),
            limit: self.slots.limit(),
            used: self.slots.used(),
            granted: self.owners.values().map(|owner| owner.granted).sum(),
            pinned: self.slots.pinned(),
            kept: self.kept.len(),
            client_pins: self.pins.len(),
            policy: self.policy.current(),
        };
        let tiers = self.tiers.iter().map(|tier| tier.status(now)).collect();
        StoreStatus { host, tiers, stats: self.stats.clone() }
    }

    /// Cost of a load from each tier that begins now, nearest first; `None` where none was measured.
    pub fn load_costs(&self, now: Now) -> impl Iterator<Item = Option<LoadCost>> {
        self.tiers.iter().map(move |tier| {
            if !tier.takes_read(0, now) {
                return Some(LoadCost { latency_us: LoadCost::NEVER_US, block_ns: 0 });
            }
            let (latency, block) = tier.speed.measured()?;
            let latency_us = (latency.as_micros() as u64).min(LoadCost::NEVER_US);
            Some(LoadCost { latency_us, block_ns: (block.as_nanos() as u64).max(1) })
        })
    }

    fn tier(&self, tier: TierId) -> &TierState {
        &self.tiers[usize::from(tier)]
    }

    fn tier_mut(&mut self, tier: TierId) -> &mut TierState {
        &mut self.tiers[usize::from(tier)]
    }
}
