use super::super::news::TierNews;
use super::*;
use proptest::prelude::*;
use stator_kv::Block;
use stator_kv::tier::TierEvent;
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK_SIZE: u32 = 2;
/// Blocks of the one sequence that tests use: block `n` has the hash `n + 1`.
const BLOCKS: u64 = 6;

fn block(place: u64) -> Block {
    let parent = (place > 0).then_some(SequenceHash(place));
    let name = BlockName(place.into());
    Block {
        name,
        hash: Some(SequenceHash(place + 1)),
        parent,
        depth: place as u32,
        tenant: stator_kv::TenantKey::default(),
    }
}

fn stored(place: u64) -> KvEvent {
    KvEvent::Stored(Stored {
        hashes: vec![place + 1],
        parent: (place > 0).then_some(place),
        tokens: vec![place as u32; BLOCK_SIZE as usize],
        block_size: BLOCK_SIZE,
        medium: Medium::Device,
        lora_name: None,
    })
}

fn removed(place: u64) -> KvEvent {
    KvEvent::Removed(Removed { hashes: vec![place + 1], medium: Medium::Device })
}

/// A router's view of the worker, as the index follows events.
#[derive(Debug, Default)]
struct RouterView(BTreeMap<u64, Medium>);

impl RouterView {
    fn follow(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    let tokens = stored.hashes.len() * BLOCK_SIZE as usize;
                    assert!([0, tokens].contains(&stored.tokens.len()), "{stored:?}");
                    let now = stored.hashes.iter().map(|hash| (*hash, stored.medium));
                    self.0.extend(now);
                }
                KvEvent::Removed(removed) => {
                    for hash in &removed.hashes {
                        if self.0.get(hash) == Some(&removed.medium) {
                            self.0.remove(hash);
                        }
                    }
                }
                KvEvent::Cleared => self.0.clear(),
            }
        }
    }
}

/// Blocks of device and tiers, and a router's view of them.
struct EventBench {
    events: ClosedEvents,
    news: TierNews,
    router: RouterView,
}

impl EventBench {
    fn new() -> Self {
        let events = ClosedEvents::new(BLOCK_SIZE, 100);
        Self { events, news: TierNews::default(), router: RouterView::default() }
    }

    fn step(&mut self, device: Vec<KvEvent>) -> Vec<KvEvent> {
        let mut events = device;
        self.events.close(&mut events, self.news.take());
        self.router.follow(&events);
        let blocks = self.events.blocks();
        assert_eq!(blocks.len(), self.router.0.len());
        assert!(blocks.iter().all(|(hash, medium)| self.router.0.get(&hash.0) == Some(medium)));
        events
    }

    fn held(&self) -> Vec<(u64, Medium)> {
        self.router.0.iter().map(|(hash, medium)| (*hash, *medium)).collect()
    }
}

#[test]
fn a_block_that_leaves_the_device_is_on_the_host_and_never_gone() {
    let mut bench = EventBench::new();
    assert_eq!(bench.step(vec![stored(0), stored(1)]).len(), 2);
    for place in 0..2 {
        bench.news.take_event(&TierEvent::Stored { block: block(place), medium: Medium::Host });
    }
    assert_eq!(bench.step(Vec::new()), [], "it is nearer on the device");
    let told = bench.step(vec![removed(1)]);
    assert!(
        matches!(&told[..], [KvEvent::Stored(on), KvEvent::Removed(of)]
        if on.medium == Medium::Host && of.medium == Medium::Device),
        "{told:?}"
    );
    assert_eq!(bench.held(), [(1, Medium::Device), (2, Medium::Host)]);
}

#[test]
fn a_cleared_device_leaves_what_tiers_hold_and_cleared_tiers_leave_nothing() {
    let mut bench = EventBench::new();
    bench.step(vec![stored(0), stored(1)]);
    bench.news.take_event(&TierEvent::Stored { block: block(0), medium: Medium::Disk });
    bench.step(vec![KvEvent::Cleared, stored(0), removed(0)]);
    assert_eq!(bench.held(), [(1, Medium::Disk)]);
    bench.news.take_event(&TierEvent::Cleared);
    bench.step(Vec::new());
    assert_eq!(bench.held(), []);
}

#[test]
fn blocks_of_the_device_keep_their_tokens() {
    let mut bench = EventBench::new();
    let told = bench.step(vec![stored(0)]);
    assert_eq!(told, [stored(0)]);
}

#[test]
fn blocks_found_after_a_restart_count_once_their_parents_are_there() {
    let mut bench = EventBench::new();
    bench.news.take_event(&TierEvent::Stored { block: block(1), medium: Medium::Disk });
    bench.step(Vec::new());
    assert_eq!(bench.held(), []);
    bench.news.take_event(&TierEvent::Stored { block: block(0), medium: Medium::Disk });
    bench.step(Vec::new());
    assert_eq!(bench.held(), [(1, Medium::Disk), (2, Medium::Disk)]);
}

proptest! {
    /// Whatever device and tiers store and remove, in steps of any size: a router knows the blocks
    /// up to the first that is nowhere, each on the farthest of the nearest media up to it.
    #[test]
    fn routers_know_what_is_held_without_gaps(
        changes in prop::collection::vec((0..BLOCKS, 0..4_usize, any::<bool>()), 0..60),
    ) {
        let mut bench = EventBench::new();
        let mut held: BTreeSet<(u64, Medium)> = BTreeSet::new();
        let mut device = Vec::new();
        for (place, medium, ends_step) in changes {
            let medium = Medium::ALL[medium];
            let comes = held.insert((place, medium));
            if !comes {
                held.remove(&(place, medium));
            }
            match (medium, comes) {
                (Medium::Device, true) => device.push(stored(place)),
                (Medium::Device, false) => device.push(removed(place)),
                (_, true) => bench.news.take_event(&TierEvent::Stored { block: block(place), medium }),
                (_, false) => bench.news.take_event(&TierEvent::Removed { block: block(place), medium }),
            }
            if !ends_step {
                continue;
            }
            bench.step(std::mem::take(&mut device));
            let mut expected = Vec::new();
            let mut farthest = Medium::Device;
            for place in 0..BLOCKS {
                let nearest = Medium::ALL.into_iter().find(|medium| held.contains(&(place, *medium)));
                let Some(nearest) = nearest else { break };
                farthest = farthest.max(nearest);
                expected.push((place + 1, farthest));
            }
            prop_assert_eq!(bench.held(), expected);
        }
    }
}
