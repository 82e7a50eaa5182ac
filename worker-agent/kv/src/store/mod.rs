//! Which block is where, who needs it, and what is to be moved next.
//!
//! [`BlockStore`] is told what engines want and what tiers did. It answers with slots of the host
//! arena and with [`Action`]s, which the caller takes with [`BlockStore::next_action`] after every
//! call and carries out. It does no I/O and reads no clock.
//!
//! - `owners`: engines come, fill slots and go. - `asks`: what there is of a prompt.
//! - `reports`: what the tiers did. - `room`: slots, pins and eviction. - `down`: writes to tiers.

mod action;
mod asks;
mod content;
mod down;
mod index;
mod owners;
mod reports;
mod requests;
mod room;
mod settings;
mod slots;
mod tiers;

#[cfg(test)]
mod tests;

pub use action::{Action, Filled, Found, OwnerId, RequestId, TierId};
pub use content::SlotContent;
pub use settings::{StoreSettings, TierAdmission, TierSettings};

use crate::policy::{Eviction, Lru};
use index::BlockIndex;
use owners::Owner;
use requests::Requests;
use rustc_hash::FxHashMap;
use slots::Slots;
use std::collections::VecDeque;
use std::time::Duration;
use tiers::TierState;

/// The blocks of host memory and of the tiers below it.
pub struct BlockStore {
    slots: Slots,
    index: BlockIndex,
    policy: Box<dyn Eviction>,
    owners: FxHashMap<OwnerId, Owner>,
    requests: Requests,
    tiers: Vec<TierState>,
    actions: VecDeque<Action>,
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
        assert!(settings.tiers.len() <= 8, "{} tiers, at most 8", settings.tiers.len());
        Self {
            slots: Slots::new(settings.slots),
            index: BlockIndex::default(),
            policy: Box::new(Lru::default()),
            owners: FxHashMap::default(),
            requests: Requests::default(),
            tiers: settings.tiers.into_iter().map(TierState::new).collect(),
            actions: VecDeque::new(),
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

    fn tier(&self, tier: TierId) -> &TierState {
        &self.tiers[usize::from(tier.0)]
    }

    fn tier_mut(&mut self, tier: TierId) -> &mut TierState {
        &mut self.tiers[usize::from(tier.0)]
    }
}
