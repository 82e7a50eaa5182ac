//! Blocks of each tenant on disk, in the order in which they were written.

use super::format::Place;
use crate::TenantKey;
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::collections::VecDeque;

/// Entries of a tenant's order beyond twice its blocks, after which those that are gone are dropped.
const SLACK: usize = 64;

/// Counts the blocks of each tenant. With no quota it keeps nothing.
#[derive(Debug, Default)]
pub(super) struct TenantBlocks {
    /// Blocks that one tenant may have.
    quota: Option<usize>,
    tenants: FxHashMap<TenantKey, TenantOrder>,
}

#[derive(Debug, Default)]
struct TenantOrder {
    blocks: usize,
    /// Oldest first, with some that are gone.
    written: VecDeque<(BlockName, Place)>,
}

impl TenantBlocks {
    /// No blocks yet. A quota is at least one block.
    pub(super) fn new(quota: Option<usize>) -> Self {
        Self { quota: quota.map(|blocks| blocks.max(1)), tenants: FxHashMap::default() }
    }

    /// Changes the quota, if there is one.
    pub(super) fn set_quota(&mut self, blocks: usize) {
        self.quota = self.quota.map(|_| blocks.max(1));
    }

    /// Whether a tenant has as many blocks as it may have.
    pub(super) fn is_full(&self, tenant: TenantKey) -> bool {
        let blocks = self.tenants.get(&tenant).map_or(0, |order| order.blocks);
        self.quota.is_some_and(|quota| blocks >= quota)
    }

    /// A tenant has a block more. `is_there` tells which of its others are not gone.
    pub(super) fn add(
        &mut self,
        tenant: TenantKey,
        block: (BlockName, Place),
        is_there: impl Fn(&(BlockName, Place)) -> bool,
    ) {
        if self.quota.is_none() {
            return;
        }
        let order = self.tenants.entry(tenant).or_default();
        order.blocks += 1;
        order.written.push_back(block);
        if order.written.len() > 2 * order.blocks + SLACK {
            order.written.retain(is_there);
        }
    }

    /// A tenant has a block less.
    pub(super) fn remove(&mut self, tenant: TenantKey) {
        if let Some(order) = self.tenants.get_mut(&tenant) {
            order.blocks -= 1;
            if order.blocks == 0 {
                self.tenants.remove(&tenant);
            }
        }
    }

    /// The place of the oldest block of a tenant for which this holds.
    pub(super) fn oldest(
        &self,
        tenant: TenantKey,
        is_free: impl Fn(&(BlockName, Place)) -> bool,
    ) -> Option<Place> {
        let order = self.tenants.get(&tenant)?;
        order.written.iter().find(|block| is_free(block)).map(|(_, place)| *place)
    }
}
