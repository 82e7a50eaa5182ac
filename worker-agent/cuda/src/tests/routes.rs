//! Routes over the driver that records: order, events, and a failure at each call.

use super::plans::pairs_of;
use super::{any_layout, any_pairs, any_shape, model, pattern};
use crate::driver::{Driver, MemorySource};
use crate::fake::FakeDriver;
use crate::layout::{KvLayout, PageOrder, PageShape};
use crate::memory::KvMemory;
use crate::route::{CopyWay, KvRoute, KvSide, RouteError, RouteSettings};
use proptest::prelude::*;
use stator_kv::arena::Arena;
use std::sync::Arc;

const PAGES: u32 = 6;
const SHAPE: PageShape = PageShape { layers: 3, heads: 2, tokens: 4, content_bytes: 16 };

/// A small staging area, so that most copies need several.
fn by(way: CopyWay) -> RouteSettings {
    RouteSettings { way: Some(way), staging_bytes: 1 << 10 }
}

struct Rig {
    driver: Arc<FakeDriver>,
    engine: KvSide<FakeDriver>,
    engine_memory: Arc<KvMemory<FakeDriver>>,
    slots: KvSide<FakeDriver>,
    slot_memory: Arc<KvMemory<FakeDriver>>,
    layouts: [KvLayout; 2],
}

fn rig(engine: KvLayout) -> Rig {
    let driver = Arc::new(FakeDriver::default());
    let arena = Arc::new(Arena::new(PAGES, engine.shape().page_bytes()).unwrap());
    let stride = arena.stride();
    let slots = KvLayout::packed(PageOrder::Blhnc, engine.shape(), PAGES).unwrap();
    let slots = slots.with_page_stride(stride).unwrap();
    let attach = |source| KvMemory::attach(&driver, source).unwrap();
    let engine_memory = attach(MemorySource::Device { bytes: engine.end() });
    let slot_memory = attach(MemorySource::Arena(arena));
    driver.fill(engine_memory.attachment(), &pattern(1, engine.end()));
    let bytes = slot_memory.attachment().bytes();
    driver.fill(slot_memory.attachment(), &pattern(2, bytes));
    Rig {
        engine: KvSide::new(engine_memory.clone(), engine).unwrap(),
        slots: KvSide::new(slot_memory.clone(), slots).unwrap(),
        driver,
        engine_memory,
        slot_memory,
        layouts: [engine, slots],
    }
}

fn layer_first() -> Rig {
    rig(KvLayout::packed(PageOrder::Lbhnc, SHAPE, PAGES).unwrap())
}

impl Rig {
    fn slot_bytes(&self) -> Vec<u8> {
        self.driver.bytes(self.slot_memory.attachment())
    }

    fn engine_bytes(&self) -> Vec<u8> {
        self.driver.bytes(self.engine_memory.attachment())
    }

    fn store(&self, way: CopyWay) -> KvRoute<FakeDriver> {
        KvRoute::new(self.engine.clone(), self.slots.clone(), by(way)).unwrap()
    }

    fn load(&self, way: CopyWay) -> KvRoute<FakeDriver> {
        KvRoute::new(self.slots.clone(), self.engine.clone(), by(way)).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn routes_copy_what_the_model_copies(
        (layout, store, load) in any_shape().prop_flat_map(|shape| {
            (any_layout(shape, PAGES), any_pairs(PAGES), any_pairs(PAGES))
        }),
        way in prop_oneof![Just(CopyWay::Runs), Just(CopyWay::Kernel)],
        steps in prop::collection::vec(0usize..8, 0..64),
    ) {
        let rig = rig(layout);
        let [engine, slots] = rig.layouts;
        let (mut expected_slots, mut expected_engine) = (rig.slot_bytes(), rig.engine_bytes());
        model((&engine, &expected_engine), (&slots, &mut expected_slots), &store);
        model((&slots, &expected_slots), (&engine, &mut expected_engine), &load);
        let (mut there, mut back) = (rig.store(way), rig.load(way));
        let stored = there.start(&pairs_of(&store), &[]).unwrap();
        // Lanes go on in any order among themselves.
        for step in steps {
            rig.driver.step(step % rig.driver.lanes());
        }
        stored.wait().unwrap();
        prop_assert!(rig.slot_bytes() == expected_slots);
        back.start(&pairs_of(&load), &[]).unwrap().wait().unwrap();
        prop_assert!(rig.engine_bytes() == expected_engine);
        prop_assert_eq!(rig.driver.posted(), 0);
    }
}

#[test]
fn long_runs_go_as_runs_and_short_ones_by_the_kernel() {
    let rig = layer_first();
    let route =
        KvRoute::new(rig.engine.clone(), rig.slots.clone(), RouteSettings::default()).unwrap();
    assert_eq!(route.way(), CopyWay::Kernel);
    let big = PageShape { layers: 2, heads: 4, tokens: 16, content_bytes: 256 };
    let rig = self::rig(KvLayout::packed(PageOrder::Lbhnc, big, PAGES).unwrap());
    let route =
        KvRoute::new(rig.engine.clone(), rig.slots.clone(), RouteSettings::default()).unwrap();
    assert_eq!(route.way(), CopyWay::Runs);
}

#[test]
fn pieces_that_the_kernel_cannot_copy_go_as_runs() {
    let odd = PageShape { content_bytes: 24, tokens: 1, ..SHAPE };
    let rig = rig(KvLayout::packed(PageOrder::Lbhnc, odd, PAGES).unwrap());
    let mut route = rig.store(CopyWay::Kernel);
    assert_eq!(route.way(), CopyWay::Kernel, "two heads of 24 bytes are three units");
    route.start(&pairs_of(&[(0, 1)]), &[]).unwrap().wait().unwrap();
    let odd = PageShape { content_bytes: 24, tokens: 1, heads: 1, ..SHAPE };
    let rig = self::rig(KvLayout::packed(PageOrder::Lbhnc, odd, PAGES).unwrap());
    assert_eq!(rig.store(CopyWay::Kernel).way(), CopyWay::Runs);
}

#[test]
fn nothing_is_copied_before_the_engine_has_computed() {
    for way in [CopyWay::Runs, CopyWay::Kernel] {
        let rig = layer_first();
        let before = rig.slot_bytes();
        let (event, handle) = rig.driver.foreign_event();
        let computed = rig.driver.foreign_fence(handle).unwrap();
        let stored = rig.store(way).start(&pairs_of(&[(0, 1), (3, 2)]), &[computed]).unwrap();
        while (0..rig.driver.lanes()).any(|lane| rig.driver.step(lane)) {}
        assert!(!stored.is_over().unwrap());
        assert!(rig.slot_bytes() == before, "{way:?}");
        // The engine computes the pages, then reaches its event.
        let computed = pattern(9, rig.engine_bytes().len());
        rig.driver.fill(rig.engine_memory.attachment(), &computed);
        rig.driver.reach(event);
        stored.wait().unwrap();
        let mut expected = before;
        let [engine, slots] = rig.layouts;
        model((&engine, &computed), (&slots, &mut expected), &[(0, 1), (3, 2)]);
        assert!(rig.slot_bytes() == expected, "{way:?}");
    }
}

#[test]
fn pages_that_are_not_there_are_found_before_anything_is_copied() {
    let rig = layer_first();
    for pairs in [[(0, 0), (PAGES, 1)], [(0, 0), (1, PAGES)]] {
        let calls = rig.driver.calls().len();
        let mut route = rig.store(CopyWay::Runs);
        let error = route.start(&pairs_of(&pairs), &[]).unwrap_err();
        assert!(matches!(error, RouteError::Layout(_)), "{error}");
        assert!(!rig.driver.calls()[calls..].contains(&"copy"));
    }
}

#[test]
fn a_side_beyond_its_memory_is_refused() {
    let rig = layer_first();
    let larger = KvLayout::packed(PageOrder::Lbhnc, SHAPE, PAGES + 1).unwrap();
    assert!(KvSide::new(rig.engine_memory.clone(), larger).is_err());
}

#[test]
fn after_a_failure_at_any_call_nothing_is_on_its_way() {
    for way in [CopyWay::Runs, CopyWay::Kernel] {
        let mut failures = 0;
        // The last round has no call left to fail.
        for call in 0.. {
            let rig = layer_first();
            let (event, handle) = rig.driver.foreign_event();
            rig.driver.reach(event);
            let after = [rig.driver.foreign_fence(handle).unwrap()];
            rig.driver.fail(call);
            let made = KvRoute::new(rig.engine.clone(), rig.slots.clone(), by(way));
            let done = made.and_then(|mut route| {
                let transit = route.start(&pairs_of(&[(0, 1), (3, 2)]), &after)?;
                Ok(transit.wait()?)
            });
            let has_failed = done.is_err();
            if has_failed {
                // Whatever was posted is done or never will be: slots can be given to others.
                let at_rest = rig.slot_bytes();
                while (0..rig.driver.lanes()).any(|lane| rig.driver.step(lane)) {}
                assert!(rig.slot_bytes() == at_rest, "{way:?}: call {call}");
                failures += 1;
            } else {
                break;
            }
        }
        assert!(failures >= 5, "{failures} calls failed in turn");
    }
}

#[test]
fn memory_is_detached_when_its_last_user_is_gone() {
    let rig = layer_first();
    let driver = rig.driver.clone();
    let route = rig.store(CopyWay::Kernel);
    // Engine, slots and two staging areas.
    assert_eq!(driver.attached(), 4);
    drop(rig);
    assert_eq!(driver.attached(), 4);
    drop(route);
    assert_eq!(driver.attached(), 0);
}
