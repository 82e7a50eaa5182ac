//! Policies against plain models, and on generated conversations.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

const SLOTS: u32 = 16;

#[derive(Clone, Debug)]
enum Step {
    /// A block comes into a free slot or that of an evicted block. It may continue another.
    Insert(u128, Option<usize>),
    Hold(usize),
    Release(usize),
    Forget(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let pick = any::<usize>();
    prop_oneof![
        4 => (0..40_u128, prop::option::of(pick))
            .prop_map(|(name, prefix)| Step::Insert(name, prefix)),
        2 => pick.prop_map(Step::Hold),
        3 => pick.prop_map(Step::Release),
        1 => pick.prop_map(Step::Forget),
    ]
}

/// A store's knowledge: the block in each slot, the held slots, the order of releases.
#[derive(Default)]
struct Model {
    blocks: std::collections::BTreeMap<u32, BlockName>,
    held: BTreeSet<u32>,
    /// Slots that may be evicted, the one released longest ago first.
    released: Vec<u32>,
}

impl Model {
    fn pick(&self, pick: usize) -> Option<SlotId> {
        let slots: Vec<_> = self.blocks.keys().collect();
        (!slots.is_empty()).then(|| SlotId(*slots[pick % slots.len()]))
    }

    /// Does a step with the policy; the slot that was evicted, if any.
    fn run(&mut self, policy: &mut dyn Eviction, step: &Step) -> Option<SlotId> {
        let mut evicted = None;
        match step {
            Step::Insert(name, prefix) => {
                let free = (0..SLOTS).find(|slot| !self.blocks.contains_key(slot));
                let slot = free.map(SlotId).or_else(|| {
                    evicted = policy.evict();
                    evicted
                });
                let Some(slot) = slot else {
                    assert!(self.released.is_empty(), "nothing was evicted");
                    return None;
                };
                if evicted.is_some() {
                    assert!(self.released.contains(&slot.0), "{slot:?} may not be evicted");
                }
                self.blocks.remove(&slot.0);
                self.released.retain(|of| *of != slot.0);
                let prefix = prefix.and_then(|pick| self.pick(pick));
                let at = self.released.iter().position(|of| Some(SlotId(*of)) == prefix);
                self.released.insert(at.unwrap_or(self.released.len()), slot.0);
                self.blocks.insert(slot.0, BlockName(*name));
                match prefix {
                    Some(prefix) => policy.release_behind(slot, BlockName(*name), Some(prefix)),
                    None => policy.release(slot, BlockName(*name)),
                }
            }
            Step::Hold(pick) => {
                if let Some(slot) = self.pick(*pick) {
                    self.held.insert(slot.0);
                    self.released.retain(|of| *of != slot.0);
                    policy.hold(slot);
                }
            }
            Step::Release(pick) => {
                if let Some(slot) = self.pick(*pick) {
                    self.released(slot);
                    policy.release(slot, self.blocks[&slot.0]);
                }
            }
            Step::Forget(pick) => {
                if let Some(slot) = self.pick(*pick) {
                    self.blocks.remove(&slot.0);
                    self.held.remove(&slot.0);
                    self.released.retain(|of| *of != slot.0);
                    policy.forget(slot);
                }
            }
        }
        evicted
    }

    fn released(&mut self, slot: SlotId) {
        self.held.remove(&slot.0);
        self.released.retain(|of| *of != slot.0);
        self.released.push(slot.0);
    }
}

proptest! {
    /// Every policy evicts only what may go, and all of it if asked for long enough.
    #[test]
    fn held_blocks_stay_and_all_others_can_go(steps in vec(any_step(), 0..200)) {
        for name in PolicyName::ALL {
            let mut policy = name.build(SLOTS as usize);
            let mut model = Model::default();
            for step in &steps {
                model.run(&mut *policy, step);
            }
            let mut rest: Vec<_> = std::iter::from_fn(|| policy.evict()).map(|slot| slot.0).collect();
            rest.sort_unstable();
            model.released.sort_unstable();
            prop_assert_eq!(rest, model.released, "{:?}", name);
        }
    }

    #[test]
    fn lru_evicts_what_was_released_first(steps in vec(any_step(), 0..200)) {
        let mut policy = Lru::default();
        let mut model = Model::default();
        for step in &steps {
            let first = model.released.first().copied();
            if let Some(evicted) = model.run(&mut policy, step) {
                prop_assert_eq!(Some(evicted.0), first);
            }
        }
    }
}

/// Prompts that are computed side by side, block after block, and never used again.
#[derive(Default)]
struct FreshChains {
    /// Slots of each prompt, the shallowest first.
    chains: [Vec<SlotId>; 4],
    held: BTreeSet<SlotId>,
    blocks: u128,
}

impl FreshChains {
    /// Computes the next block of a prompt. It may be held from then on, as those before it are.
    fn fill(&mut self, policy: &mut dyn Eviction, of: usize, is_held: bool) {
        let used: BTreeSet<_> = self.chains.iter().flatten().copied().collect();
        let free = (0..SLOTS).map(SlotId).find(|slot| !used.contains(slot));
        let Some(slot) = free.or_else(|| self.evict(policy)) else { return };
        self.blocks += 1;
        let name = BlockName(self.blocks);
        match self.chains[of].last() {
            Some(prefix) => policy.release_behind(slot, name, Some(*prefix)),
            None => policy.release(slot, name),
        }
        if is_held && self.chains[of].iter().all(|before| self.held.contains(before)) {
            policy.hold(slot);
            self.held.insert(slot);
        }
        self.chains[of].push(slot);
    }

    /// Evicts a block, behind which none of its prompt may be left that could have gone.
    fn evict(&mut self, policy: &mut dyn Eviction) -> Option<SlotId> {
        let slot = policy.evict()?;
        for chain in &mut self.chains {
            if let Some(at) = chain.iter().position(|of| *of == slot) {
                let behind = &chain[at + 1..];
                assert!(
                    behind.iter().all(|of| self.held.contains(of)),
                    "{behind:?} behind {slot:?}"
                );
                chain.remove(at);
            }
        }
        Some(slot)
    }
}

proptest! {
    /// Of blocks that came one after another and were not used since, the deeper ones leave first.
    #[test]
    fn of_new_prompts_the_deepest_blocks_leave_first(
        fills in vec((0..4_usize, prop::bool::weighted(0.3)), 0..120),
    ) {
        for name in PolicyName::ALL.into_iter().filter(|name| *name != PolicyName::TinyLfu) {
            let mut policy = name.build(SLOTS as usize);
            let mut chains = FreshChains::default();
            for (of, is_held) in &fills {
                chains.fill(&mut *policy, *of, *is_held);
            }
            while chains.evict(&mut *policy).is_some() {}
        }
    }
}

/// TinyLFU compares two blocks at a time, so a prompt may be torn where the window ends. In the window,
/// and while the main cache has room, its deepest block leaves first.
#[test]
fn tiny_lfu_tears_no_prompt_within_its_window_or_main_cache() {
    let slots = |range: std::ops::Range<u32>| range.map(SlotId).collect::<Vec<_>>();
    let fill = |policy: &mut WindowTinyLfu, slots: &[SlotId]| {
        policy.release(slots[0], BlockName(slots[0].0.into()));
        for pair in slots.windows(2) {
            policy.release_behind(pair[1], BlockName(pair[1].0.into()), Some(pair[0]));
        }
    };
    let order = |mut policy: WindowTinyLfu, of: Vec<SlotId>| {
        let all = std::iter::from_fn(move || policy.evict());
        all.filter(|slot| of.contains(slot)).collect::<Vec<_>>()
    };
    let reversed = |slots: Vec<SlotId>| slots.into_iter().rev().collect::<Vec<_>>();

    let mut main = WindowTinyLfu::new(64, 1);
    fill(&mut main, &slots(0..20));
    // The window has the first block of the prompt, and the next prompt pushes it out.
    fill(&mut main, &slots(20..21));
    assert_eq!(order(main, slots(0..20)), reversed(slots(0..20)));

    let mut window = WindowTinyLfu::new(64, 50);
    for slot in slots(0..32) {
        window.release(slot, BlockName(slot.0.into()));
        window.hold(slot);
        window.release(slot, BlockName(slot.0.into()));
    }
    fill(&mut window, &slots(32..64));
    assert_eq!(order(window, slots(32..64)), reversed(slots(32..64)));
}

/// Prompts of conversations: each turn repeats all before it and adds some blocks. Some users come
/// back soon, some prompts come once; `common` blocks begin all of them.
struct Conversations {
    random: SmallRng,
    open: Vec<(u128, usize)>,
    next: u128,
    common: usize,
    /// Share of prompts that nobody continues, in percent, and conversations at a time.
    once_percent: u32,
    users: usize,
}

impl Conversations {
    fn new(seed: u64, once_percent: u32, users: usize) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        Self { random, open: Vec::new(), next: 1, common: 3, once_percent, users }
    }

    fn prompt(&mut self) -> Vec<BlockName> {
        if self.random.random_ratio(self.once_percent, 100) {
            let len = self.random.random_range(4..24);
            return self.begin(len).1;
        }
        if self.open.len() < self.users {
            let len = self.random.random_range(2..8);
            let (of, names) = self.begin(len);
            self.open.push((of, len));
            return names;
        }
        // Skewed: a few users write often.
        let skew: f64 = self.random.random::<f64>().powi(3);
        let at = (skew * self.open.len() as f64) as usize;
        self.open[at].1 += self.random.random_range(1..4);
        let (of, len) = self.open[at];
        if len > 60 {
            self.open.swap_remove(at);
        }
        self.names(of, len)
    }

    fn begin(&mut self, len: usize) -> (u128, Vec<BlockName>) {
        self.next += 1;
        (self.next, self.names(self.next, len))
    }

    fn names(&self, of: u128, len: usize) -> Vec<BlockName> {
        let common = (0..self.common as u128).map(BlockName);
        common.chain((0..len as u128).map(|at| BlockName(of << 32 | at))).collect()
    }
}

/// Hits of each policy alone and of the selector, on the same prompts, from the middle on.
fn hits(slots: usize, prompts: &[Vec<BlockName>]) -> (Vec<u64>, u64, PolicyName) {
    let half = prompts.len() / 2;
    let alone = PolicyName::ALL.iter().map(|name| {
        let mut cache = ShadowCache::new(name.build(slots), slots);
        prompts[..half].iter().for_each(|prompt| cache.ask(prompt));
        let before = cache.hits();
        prompts[half..].iter().for_each(|prompt| cache.ask(prompt));
        cache.hits() - before
    });
    let alone = alone.collect();
    let mut cache = ShadowCache::new(PolicySelector::new(slots), slots);
    let mut before = 0;
    for (at, prompt) in prompts.iter().enumerate() {
        if at == half {
            before = cache.hits();
        }
        cache.policy_mut().ask(prompt);
        cache.ask(prompt);
    }
    let current = cache.policy_mut().current();
    (alone, cache.hits() - before, current)
}

#[test]
fn the_selected_policy_is_about_as_good_as_the_best() {
    for (slots, once_percent, users) in [(256, 50, 40), (512, 80, 100), (1_024, 0, 100)] {
        let mut source = Conversations::new(7, once_percent, users);
        let prompts: Vec<_> = (0..16_000).map(|_| source.prompt()).collect();
        let asked: usize = prompts[prompts.len() / 2..].iter().map(Vec::len).sum();
        let (alone, selected, current) = hits(slots, &prompts);
        let best = alone.iter().copied().max().unwrap_or(0);
        let lost = best.saturating_sub(selected) as f64 / asked as f64;
        assert!(
            lost <= 0.015,
            "{slots} slots: {selected} hits of {asked} by {current:?}, {alone:?}"
        );
    }
}
