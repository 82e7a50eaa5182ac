//! Blocks of each tenant in host memory, and the order in which a tenant's own make room for it.

use super::list::{Links, SlotList};
use crate::{SlotId, TenantKey};
use rustc_hash::FxHashMap;

/// Counts the slots of each tenant, and lists those that may be evicted from the least recently
/// used on. With no quota it keeps nothing.
#[derive(Debug)]
pub struct TenantSlots {
    /// Slots that one tenant may have; none for no quota.
    quota: Option<usize>,
    links: Links,
    tenants: FxHashMap<TenantKey, TenantList>,
    members: Vec<Option<Member>>,
}

#[derive(Debug, Default)]
struct TenantList {
    slots: usize,
    idle: SlotList,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    tenant: TenantKey,
    is_idle: bool,
}

impl TenantSlots {
    /// No slots yet. A quota is at least one slot.
    pub fn new(quota: Option<usize>) -> Self {
        Self {
            quota: quota.map(|slots| slots.max(1)),
            links: Links::default(),
            tenants: FxHashMap::default(),
            members: Vec::new(),
        }
    }

    /// Whether a tenant has as many slots as it may have.
    pub fn is_full(&self, tenant: TenantKey) -> bool {
        let slots = self.tenants.get(&tenant).map_or(0, |list| list.slots);
        self.quota.is_some_and(|quota| slots >= quota)
    }

    /// A slot is a tenant's from now on, and in use.
    pub fn add(&mut self, slot: SlotId, tenant: TenantKey) {
        if self.quota.is_none() {
            return;
        }
        self.remove(slot);
        let at = slot.0 as usize;
        if self.members.len() <= at {
            self.members.resize(at + 1, None);
        }
        self.members[at] = Some(Member { tenant, is_idle: false });
        self.tenants.entry(tenant).or_default().slots += 1;
    }

    /// Whether a slot counts for another tenant than this.
    pub fn is_of_another(&self, slot: SlotId, tenant: TenantKey) -> bool {
        self.member(slot).is_some_and(|of| of.tenant != tenant)
    }

    /// A slot that counts for another tenant is this one's. If it may be evicted, it is after all
    /// others of the tenant.
    pub fn give(&mut self, slot: SlotId, tenant: TenantKey) {
        let is_idle = self.member(slot).is_some_and(|of| of.is_idle);
        self.add(slot, tenant);
        if is_idle {
            self.release(slot);
        }
    }

    /// A slot is nobody's any more.
    pub fn remove(&mut self, slot: SlotId) {
        self.hold(slot);
        let Some(member) = self.members.get_mut(slot.0 as usize).and_then(Option::take) else {
            return;
        };
        if let Some(list) = self.tenants.get_mut(&member.tenant) {
            list.slots -= 1;
            if list.slots == 0 {
                self.tenants.remove(&member.tenant);
            }
        }
    }

    /// A slot is in use: it must stay.
    pub fn hold(&mut self, slot: SlotId) {
        if let Some(Some(member)) = self.members.get_mut(slot.0 as usize)
            && std::mem::take(&mut member.is_idle)
            && let Some(list) = self.tenants.get_mut(&member.tenant)
        {
            list.idle.remove(&mut self.links, slot);
        }
    }

    /// A slot may be evicted from now on, after all others of its tenant.
    pub fn release(&mut self, slot: SlotId) {
        if let Some(tenant) = self.idle(slot)
            && let Some(list) = self.tenants.get_mut(&tenant)
        {
            list.idle.push_newest(&mut self.links, slot);
        }
    }

    /// A slot may be evicted from now on: right before `prefix`, if that may be and is the same tenant's,
    /// else after all others of its tenant; before all others if there is no prefix.
    pub fn release_behind(&mut self, slot: SlotId, prefix: Option<SlotId>) {
        let Some(prefix) = prefix else { return self.release_first(slot) };
        let is_idle = self.member(prefix).is_some_and(|of| of.is_idle) && slot != prefix;
        let tenant = |slot| self.member(slot).map(|of| of.tenant);
        if !is_idle || tenant(slot) != tenant(prefix) {
            return self.release(slot);
        }
        if let Some(tenant) = self.idle(slot)
            && let Some(list) = self.tenants.get_mut(&tenant)
        {
            list.idle.insert_before(&mut self.links, slot, prefix);
        }
    }

    fn release_first(&mut self, slot: SlotId) {
        if let Some(tenant) = self.idle(slot)
            && let Some(list) = self.tenants.get_mut(&tenant)
        {
            list.idle.push_oldest(&mut self.links, slot);
        }
    }

    fn member(&self, slot: SlotId) -> Option<Member> {
        *self.members.get(slot.0 as usize)?
    }

    /// Takes a slot off its list as one that may be evicted; its tenant.
    fn idle(&mut self, slot: SlotId) -> Option<TenantKey> {
        self.hold(slot);
        let member = self.members.get_mut(slot.0 as usize)?.as_mut()?;
        member.is_idle = true;
        Some(member.tenant)
    }

    /// The tenant's slot that is to make room for another of its own.
    pub fn oldest(&self, tenant: TenantKey) -> Option<SlotId> {
        self.tenants.get(&tenant)?.idle.oldest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u32, u64),
        Give(u32, u64),
        Remove(u32),
        Hold(u32),
        Release(u32),
        ReleaseBehind(u32, Option<u32>),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let slot = 0..8_u32;
        prop_oneof![
            4 => (slot.clone(), 0..3_u64).prop_map(|(slot, tenant)| Step::Add(slot, tenant)),
            1 => (slot.clone(), 0..3_u64).prop_map(|(slot, tenant)| Step::Give(slot, tenant)),
            1 => slot.clone().prop_map(Step::Remove),
            2 => slot.clone().prop_map(Step::Hold),
            4 => slot.clone().prop_map(Step::Release),
            4 => (slot.clone(), proptest::option::of(slot))
                .prop_map(|(slot, prefix)| Step::ReleaseBehind(slot, prefix)),
        ]
    }

    proptest! {
        /// Counts and orders are those of a plain list of (slot, tenant, whether it is idle).
        #[test]
        fn agrees_with_a_list(steps in vec(any_step(), 0..80), quota in 1..4_usize) {
            let mut slots = TenantSlots::new(Some(quota));
            let mut model: Vec<(u32, u64, bool)> = Vec::new();
            let take = |model: &mut Vec<(u32, u64, bool)>, slot| {
                let at = model.iter().position(|of| of.0 == slot)?;
                Some(model.remove(at))
            };
            for step in steps {
                match step {
                    Step::Add(slot, tenant) => {
                        take(&mut model, slot);
                        model.push((slot, tenant, false));
                        slots.add(SlotId(slot), TenantKey(tenant));
                    }
                    Step::Give(slot, tenant) => {
                        let is_others = model.iter().any(|of| of.0 == slot && of.1 != tenant);
                        prop_assert_eq!(
                            slots.is_of_another(SlotId(slot), TenantKey(tenant)),
                            is_others
                        );
                        if is_others {
                            let of = take(&mut model, slot);
                            model.extend(of.map(|of| (slot, tenant, of.2)));
                            slots.give(SlotId(slot), TenantKey(tenant));
                        }
                    }
                    Step::Remove(slot) => {
                        take(&mut model, slot);
                        slots.remove(SlotId(slot));
                    }
                    Step::Hold(slot) => {
                        let of = take(&mut model, slot);
                        model.extend(of.map(|of| (slot, of.1, false)));
                        slots.hold(SlotId(slot));
                    }
                    Step::Release(slot) => {
                        let of = take(&mut model, slot);
                        model.extend(of.map(|of| (slot, of.1, true)));
                        slots.release(SlotId(slot));
                    }
                    Step::ReleaseBehind(slot, prefix) => {
                        if let Some((_, tenant, _)) = take(&mut model, slot) {
                            let place = |prefix| {
                                let before = model.iter().position(|of| *of == (prefix, tenant, true));
                                before.unwrap_or(model.len())
                            };
                            model.insert(prefix.map_or(0, place), (slot, tenant, true));
                        }
                        slots.release_behind(SlotId(slot), prefix.map(SlotId));
                    }
                }
                for tenant in 0..3 {
                    let own = model.iter().filter(|of| of.1 == tenant);
                    let oldest = own.clone().find(|of| of.2).map(|of| SlotId(of.0));
                    prop_assert_eq!(slots.oldest(TenantKey(tenant)), oldest);
                    prop_assert_eq!(slots.is_full(TenantKey(tenant)), own.count() >= quota);
                }
            }
        }
    }

    #[test]
    fn without_a_quota_nobody_is_full_and_nothing_is_kept() {
        let mut slots = TenantSlots::new(None);
        (0..9).for_each(|slot| slots.add(SlotId(slot), TenantKey(1)));
        slots.release(SlotId(0));
        assert!(!slots.is_full(TenantKey(1)) && slots.oldest(TenantKey(1)).is_none());
        assert!(slots.members.is_empty());
    }
}
