//! Order of copies and compute, over random interleavings: on the driver that records, whose streams
//! go on as the test says, and on a GPU, whose streams go on as they like.

use super::gpu::{device, whole};
use super::pattern;
use super::plans::pairs_of;
use crate::driver::{Driver, DriverFence, DriverLane, MemorySource};
use crate::fake::FakeDriver;
use crate::fold::plan;
use crate::layout::{KvLayout, PageOrder, PageShape};
use crate::memory::KvMemory;
use crate::route::{CopyWay, KvRoute, KvSide, RouteSettings, Transit};
use proptest::prelude::*;
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use std::sync::Arc;

/// Pages of the engine, and slots of the arena.
const PAGES: u32 = 6;
/// Contents that the engine computes, one after the other.
const CONTENTS: u32 = 64;

/// Something that the engine or the agent does next, if it may: what, and with which page and slot.
type Step = (u8, u32, u32);

/// An engine that computes on a stream of its own, and the routes of its agent.
struct Scene<D: Driver> {
    compute: D::Lane,
    contents: (Arc<KvMemory<D>>, KvLayout),
    engine: (Arc<KvMemory<D>>, KvLayout),
    store: KvRoute<D>,
    load: KvRoute<D>,
    computed: u32,
    pages: [Place; PAGES as usize],
    slots: [Place; PAGES as usize],
    flights: Vec<Flight<D>>,
}

/// A page or a slot.
#[derive(Clone, Copy, Default)]
struct Place {
    /// What it holds once all work that was posted is done.
    content: Option<u32>,
    /// Flights that read or write it.
    flights: u32,
}

/// Pages on their way, from the first of each pair to the second.
struct Flight<D: Driver> {
    transit: Transit<D>,
    is_store: bool,
    pairs: Vec<(u32, u32)>,
}

impl<D: Driver> Scene<D> {
    /// A scene over an arena of contents and one of slots, which the driver has attached.
    fn new(
        driver: &Arc<D>,
        shape: PageShape,
        [contents, slots]: [(Arc<KvMemory<D>>, usize); 2],
        way: CopyWay,
    ) -> Self {
        let layout = |pages, stride| {
            let packed = KvLayout::packed(PageOrder::Blhnc, shape, pages).unwrap();
            packed.with_page_stride(stride).unwrap()
        };
        let engine = KvLayout::packed(PageOrder::Lbhnc, shape, PAGES).unwrap();
        let memory =
            KvMemory::attach(driver, MemorySource::Device { bytes: engine.end() }).unwrap();
        let pages = KvSide::new(memory.clone(), engine).unwrap();
        let slots = KvSide::new(slots.0, layout(PAGES, slots.1)).unwrap();
        // A small staging area, so that most copies need several.
        let by = RouteSettings { way: Some(way), staging_bytes: 2 * shape.page_bytes() };
        Self {
            compute: driver.lane().unwrap(),
            contents: (contents.0, layout(CONTENTS, contents.1)),
            engine: (memory, engine),
            store: KvRoute::new(pages.clone(), slots.clone(), by).unwrap(),
            load: KvRoute::new(slots, pages, by).unwrap(),
            computed: 0,
            pages: Default::default(),
            slots: Default::default(),
            flights: Vec::new(),
        }
    }

    fn step(&mut self, (what, page, slot): Step) {
        match what {
            0..3 => self.compute(page % PAGES),
            3..5 => self.store(page, slot),
            _ => self.load(page, slot),
        }
    }

    /// The engine computes a page, unless a copy still reads or writes it.
    fn compute(&mut self, page: u32) {
        let place = &mut self.pages[page as usize];
        if place.flights > 0 {
            return;
        }
        let content = self.computed % CONTENTS;
        self.computed += 1;
        place.content = Some(content);
        let ((from, source), (to, target)) = (&self.contents, &self.engine);
        let runs = plan(source, target, &pairs_of(&[(content, page)])).unwrap();
        self.compute.copy(from.attachment(), to.attachment(), &runs).unwrap();
    }

    /// Stores pages right behind the compute that makes them, which may not have begun.
    fn store(&mut self, page: u32, slot: u32) {
        let pairs: Vec<_> = (0..page % 3 + 1)
            .map(|step| ((page + step) % PAGES, (slot + step) % PAGES))
            .filter(|(page, slot)| {
                let is_written = |flight: &Flight<D>| {
                    !flight.is_store && flight.pairs.iter().any(|(_, to)| to == page)
                };
                self.pages[*page as usize].content.is_some()
                    && !self.flights.iter().any(is_written)
                    && self.slots[*slot as usize].flights == 0
            })
            .collect();
        let after = [self.compute.fence().unwrap()];
        let transit = self.store.start(&pairs_of(&pairs), &after).unwrap();
        for (page, slot) in &pairs {
            let content = self.pages[*page as usize].content;
            self.pages[*page as usize].flights += 1;
            self.slots[*slot as usize] = Place { content, flights: 1 };
        }
        self.flights.push(Flight { transit, is_store: true, pairs });
    }

    /// Loads a page that the engine may be about to clear.
    fn load(&mut self, page: u32, slot: u32) {
        let (page, slot) = (page % PAGES, slot % PAGES);
        let from = self.slots[slot as usize];
        let is_written =
            |flight: &Flight<D>| flight.is_store && flight.pairs.iter().any(|(_, to)| *to == slot);
        if from.content.is_none()
            || self.flights.iter().any(is_written)
            || self.pages[page as usize].flights > 0
        {
            return;
        }
        let after = [self.compute.fence().unwrap()];
        let pairs = vec![(slot, page)];
        let transit = self.load.start(&pairs_of(&pairs), &after).unwrap();
        self.slots[slot as usize].flights += 1;
        self.pages[page as usize] = Place { content: from.content, flights: 1 };
        self.flights.push(Flight { transit, is_store: false, pairs });
    }

    /// Lands what has arrived; the slots that were stored.
    fn land(&mut self) -> Vec<u32> {
        let (over, flights) = std::mem::take(&mut self.flights)
            .into_iter()
            .partition::<Vec<_>, _>(|flight| flight.transit.is_over().unwrap());
        self.flights = flights;
        let mut stored = Vec::new();
        for Flight { is_store, pairs, .. } in over {
            for (from, to) in pairs {
                let (page, slot) = if is_store { (from, to) } else { (to, from) };
                self.pages[page as usize].flights -= 1;
                self.slots[slot as usize].flights -= 1;
                stored.extend(is_store.then_some(slot));
            }
        }
        stored
    }

    /// Ends all work, and stores the pages that have a content, each in the slot of its number.
    fn end(&mut self) {
        self.compute.fence().unwrap().wait().unwrap();
        for flight in self.flights.drain(..) {
            flight.transit.wait().unwrap();
        }
        self.slots = self.pages;
        let all = (0..PAGES).filter(|page| self.pages[*page as usize].content.is_some());
        let pairs: Vec<_> = all.map(|page| (page, page)).collect();
        self.store.start(&pairs_of(&pairs), &[]).unwrap().wait().unwrap();
    }

    fn check(&self, slots: impl IntoIterator<Item = u32>, kv: impl Fn(u32) -> Vec<u8>) {
        for slot in slots {
            let Some(content) = self.slots[slot as usize].content else { continue };
            let kv = kv(slot);
            assert!(kv == pattern(content.into(), kv.len()), "slot {slot} is not {content}");
        }
    }
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0u8..16, 0u32..32, 0u32..32), 0..160)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Copies and compute go on in any order that the streams allow: no slot gets a page that was not
    /// computed yet, and no page that was loaded is overwritten by what was computed before.
    #[test]
    fn stream_order_fuzz(
        steps in any_steps(),
        way in prop_oneof![Just(CopyWay::Runs), Just(CopyWay::Kernel)],
    ) {
        let shape = PageShape { layers: 2, heads: 1, tokens: 2, content_bytes: 16 };
        let driver = Arc::new(FakeDriver::default());
        let arenas = [CONTENTS, PAGES].map(|slots| {
            let arena = Arc::new(Arena::new(slots, shape.page_bytes()).unwrap());
            let stride = arena.stride();
            (KvMemory::attach(&driver, MemorySource::Arena(arena)).unwrap(), stride)
        });
        let [contents, slots] = arenas.clone();
        let mut bytes = driver.bytes(contents.0.attachment());
        for content in 0..CONTENTS {
            let at = content as usize * contents.1;
            let kv = pattern(content.into(), shape.page_bytes());
            bytes[at..at + kv.len()].copy_from_slice(&kv);
        }
        driver.fill(contents.0.attachment(), &bytes);
        let kv = |slot: u32| {
            let at = slot as usize * slots.1;
            driver.bytes(slots.0.attachment())[at..at + shape.page_bytes()].to_vec()
        };
        let mut scene = Scene::new(&driver, shape, arenas, way);
        for step in steps {
            if step.0 < 7 {
                scene.step(step);
            } else {
                driver.step(step.1 as usize % driver.lanes());
            }
            let stored = scene.land();
            scene.check(stored, kv);
        }
        scene.end();
        scene.check(0..PAGES, kv);
    }
}

#[test]
fn gpu_stream_order_fuzz() {
    let Some(driver) = device() else { return };
    let shape = PageShape { layers: 8, heads: 8, tokens: 16, content_bytes: 256 };
    let arenas =
        [CONTENTS, PAGES].map(|slots| Arc::new(Arena::new(slots, shape.page_bytes()).unwrap()));
    for content in 0..CONTENTS {
        arenas[0].write(SlotId(content), &pattern(content.into(), shape.page_bytes()));
    }
    let kv = |slot: u32| {
        let at = slot as usize * arenas[1].stride();
        whole(&arenas[1])[at..at + shape.page_bytes()].to_vec()
    };
    for way in [CopyWay::Runs, CopyWay::Kernel] {
        let attached = arenas.clone().map(|arena| {
            let stride = arena.stride();
            (KvMemory::attach(&driver, MemorySource::Arena(arena)).unwrap(), stride)
        });
        let mut scene = Scene::new(&driver, shape, attached, way);
        let mut seed = 1u32;
        for _ in 0..4000 {
            // A congruential generator: the order of the streams is random anyway.
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scene.step(((seed >> 29) as u8, seed >> 20 & 31, seed >> 10 & 31));
            let stored = scene.land();
            scene.check(stored, kv);
        }
        scene.end();
        scene.check(0..PAGES, kv);
    }
}
