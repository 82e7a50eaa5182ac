//! The CUDA driver, where there is one.

use super::plans::pairs_of;
use super::{model, not_run, pattern};
use crate::cuda::CudaDriver;
use crate::driver::{Driver, DriverError, DriverLane, MemorySource};
use crate::fold::PagePair;
use crate::layout::{KvLayout, PageOrder, PageShape};
use crate::memory::KvMemory;
use crate::probe::probe;
use crate::report::NoCuda;
use crate::route::{CopyWay, KvRoute, KvSide, RouteSettings};
use crate::runs::CopyRun;
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use std::sync::Arc;

const PAGES: u32 = 16;
const SHAPE: PageShape = PageShape { layers: 4, heads: 8, tokens: 16, content_bytes: 256 };

/// The first device. Without one a test on a GPU did not run, and this says so.
pub(super) fn device() -> Option<Arc<CudaDriver>> {
    let missing = match probe() {
        Ok(report) if !report.devices.is_empty() => return Some(CudaDriver::open(0).unwrap()),
        Ok(_) => "no CUDA device".to_owned(),
        Err(error) => format!("no CUDA driver: {error}"),
    };
    not_run("a test on a GPU", missing);
    None
}

fn by(way: CopyWay) -> RouteSettings {
    RouteSettings { way: Some(way), staging_bytes: 1 << 20 }
}

fn slots(arena: &Arena) -> KvLayout {
    let packed = KvLayout::packed(PageOrder::Blhnc, SHAPE, PAGES).unwrap();
    packed.with_page_stride(arena.stride()).unwrap()
}

/// All slots of an arena, with what is between them.
pub(super) fn whole(arena: &Arena) -> Vec<u8> {
    let mut bytes = vec![0; arena.stride() * arena.slots() as usize];
    for slot in 0..arena.slots() {
        let start = slot as usize * arena.stride();
        arena.read(SlotId(slot), &mut bytes[start..start + arena.block_bytes()]);
    }
    bytes
}

#[test]
fn without_a_driver_nothing_is_called() {
    match probe() {
        Ok(report) => println!("CUDA {:?}, {:?}", report.version, report.devices),
        Err(NoCuda::NoLibrary) => {
            assert_eq!(CudaDriver::open(0).unwrap_err(), NoCuda::NoLibrary);
        }
        Err(error) => not_run("calls without a CUDA driver", error),
    }
}

#[test]
fn gpu_copies_what_the_model_copies() {
    let Some(driver) = device() else { return };
    for order in [PageOrder::Lbhnc, PageOrder::Lbnhc, PageOrder::Blhnc, PageOrder::Blnhc] {
        for way in [CopyWay::Runs, CopyWay::Kernel] {
            let arena = Arc::new(Arena::new(PAGES, SHAPE.page_bytes()).unwrap());
            let engine = KvLayout::packed(order, SHAPE, PAGES).unwrap();
            for slot in 0..PAGES {
                arena.write(SlotId(slot), &pattern(slot.into(), SHAPE.page_bytes()));
            }
            let (before, slots) = (whole(&arena), slots(&arena));
            let attach = |source| KvMemory::attach(&driver, source).unwrap();
            let host = KvSide::new(attach(MemorySource::Arena(arena.clone())), slots).unwrap();
            let device = attach(MemorySource::Device { bytes: engine.end() });
            let device = KvSide::new(device, engine).unwrap();
            let mut load = KvRoute::new(host.clone(), device.clone(), by(way)).unwrap();
            let mut store = KvRoute::new(device, host, by(way)).unwrap();
            let (there, back) = ([(0, 3), (1, 1), (9, 15)], [(3, 8), (15, 0), (1, 7)]);
            load.start(&pairs_of(&there), &[]).unwrap().wait().unwrap();
            store.start(&pairs_of(&back), &[]).unwrap().wait().unwrap();
            let mut expected = before.clone();
            let mut pages = vec![0; engine.end()];
            model((&slots, &before), (&engine, &mut pages), &there);
            model((&engine, &pages), (&slots, &mut expected), &back);
            assert!(whole(&arena) == expected, "{order:?} {way:?}");
        }
    }
}

#[test]
fn gpu_passes_pages_between_engines_without_the_host() {
    let Some(driver) = device() else { return };
    let arena = Arc::new(Arena::new(PAGES, SHAPE.page_bytes()).unwrap());
    for slot in 0..PAGES {
        arena.write(SlotId(slot), &pattern(slot.into(), SHAPE.page_bytes()));
    }
    let layouts =
        [PageOrder::Lbhnc, PageOrder::Blnhc].map(|order| KvLayout::packed(order, SHAPE, PAGES));
    let [first, second] = layouts.map(Result::unwrap);
    let attach = |source| KvMemory::attach(&driver, source).unwrap();
    let host = KvSide::new(attach(MemorySource::Arena(arena.clone())), slots(&arena)).unwrap();
    let engine = |layout: KvLayout| {
        KvSide::new(attach(MemorySource::Device { bytes: layout.end() }), layout).unwrap()
    };
    let (first, second) = (engine(first), engine(second));
    let mut load = KvRoute::new(host.clone(), first.clone(), RouteSettings::default()).unwrap();
    let mut pass = KvRoute::new(first, second.clone(), RouteSettings::default()).unwrap();
    let mut store = KvRoute::new(second, host, RouteSettings::default()).unwrap();
    let lane = driver.lane().unwrap();
    load.start(&pairs_of(&[(5, 2)]), &[]).unwrap().wait().unwrap();
    let loaded = lane.fence().unwrap();
    pass.start(&pairs_of(&[(2, 11)]), &[loaded]).unwrap().wait().unwrap();
    store.start(&pairs_of(&[(11, 6)]), &[]).unwrap().wait().unwrap();
    let mut read = vec![0; SHAPE.page_bytes()];
    arena.read(SlotId(6), &mut read);
    assert!(read == pattern(5, SHAPE.page_bytes()));
}

#[test]
fn gpu_refuses_what_is_not_there() {
    let Some(driver) = device() else { return };
    assert!(CudaDriver::open(1000).is_err());
    let wrong = MemorySource::Ipc { handle: [7; 64], bytes: 1 };
    println!("a handle of nothing: {}", driver.attach(wrong).unwrap_err());
    let file = std::fs::File::open("/dev/null").unwrap();
    let wrong = MemorySource::File { file: file.into(), bytes: 2 << 20 };
    println!("a file of nothing: {}", driver.attach(wrong).unwrap_err());
    assert!(driver.attach(MemorySource::Device { bytes: 1 << 50 }).is_err());
    let memory = driver.attach(MemorySource::Device { bytes: 4096 }).unwrap();
    let lane = driver.lane().unwrap();
    let run = CopyRun { from: 0, to: 4000, bytes: 97 };
    let error = lane.copy(&memory, &memory, &[run]).unwrap_err();
    assert_eq!(error, DriverError::Beyond { end: 4097, bytes: 4096 });
    driver.detach(memory).unwrap();
}

#[test]
fn gpu_copies_many_pages_in_many_calls() {
    let Some(driver) = device() else { return };
    // More pages than a kernel takes, a staging area has, and a batch has runs.
    let shape = PageShape { layers: 16, heads: 1, tokens: 16, content_bytes: 64 };
    let pages = 700;
    let arena = Arc::new(Arena::new(pages, shape.page_bytes()).unwrap());
    for slot in 0..pages {
        arena.write(SlotId(slot), &pattern(slot.into(), shape.page_bytes()));
    }
    let packed = KvLayout::packed(PageOrder::Blhnc, shape, pages).unwrap();
    let slots = packed.with_page_stride(arena.stride()).unwrap();
    let engine = KvLayout::packed(PageOrder::Lbhnc, shape, pages).unwrap();
    for way in [CopyWay::Runs, CopyWay::Kernel] {
        let attach = |source| KvMemory::attach(&driver, source).unwrap();
        let host = KvSide::new(attach(MemorySource::Arena(arena.clone())), slots).unwrap();
        let device = attach(MemorySource::Device { bytes: engine.end() });
        let device = KvSide::new(device, engine).unwrap();
        let there: Vec<_> = (0..pages).map(|page| PagePair { from: page, to: page }).collect();
        let turned: Vec<_> =
            (0..pages).map(|page| PagePair { from: page, to: pages - 1 - page }).collect();
        let before = whole(&arena);
        let mut load = KvRoute::new(host.clone(), device.clone(), by(way)).unwrap();
        let mut store = KvRoute::new(device, host, by(way)).unwrap();
        load.start(&there, &[]).unwrap().wait().unwrap();
        store.start(&turned, &[]).unwrap().wait().unwrap();
        let after = whole(&arena);
        let is_turned = |slot: usize| {
            let (a, b) = (slot * arena.stride(), (pages as usize - 1 - slot) * arena.stride());
            before[a..a + shape.page_bytes()] == after[b..b + shape.page_bytes()]
        };
        assert!((0..pages as usize).all(is_turned), "{way:?}");
    }
}
