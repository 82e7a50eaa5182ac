//! KV that another process computes and exports: mapped, stored, loaded, compared.

use crate::rig::{Memory, PAGE, arena, attach, page_of_layers, side};
use stator_cuda::cuda::CudaDriver;
use stator_cuda::driver::{Driver, IpcHandle, MemorySource};
use stator_cuda::fold::PagePair;
use stator_cuda::layout::PageOrder;
use stator_cuda::{KvRoute, RouteSettings};
use stator_kv::SlotId;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

fn open() -> Arc<CudaDriver> {
    CudaDriver::open(0).unwrap_or_else(|error| panic!("no device: {error}"))
}

fn handle(hex: &str) -> IpcHandle {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex digits");
    std::array::from_fn(byte)
}

/// Exchanges with memory by IPC handle, perhaps after an event of its process.
pub(crate) fn exchange_ipc(name: &str, bytes: &str, seeds: &str, event: &str) {
    let driver = open();
    let bytes = bytes.parse().expect("bytes");
    let memory = attach(&driver, MemorySource::Ipc { handle: handle(name), bytes });
    let event = (event != "-").then(|| handle(event));
    exchange(&driver, &memory, seeds, event);
}

/// Exchanges with memory by a file descriptor that the parent left open.
#[expect(unsafe_code, reason = "the parent names a descriptor")]
pub(crate) fn exchange_file(number: &str, bytes: &str, seeds: &str) {
    let driver = open();
    let number = number.parse().expect("a descriptor");
    // SAFETY: the parent left it open for this process, and nothing else here uses it.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    let memory = attach(&driver, MemorySource::File { file, bytes: bytes.parse().expect("bytes") });
    exchange(&driver, &memory, seeds, None);
}

/// Stores all pages, which must be those of the first seed, and loads those of the second.
fn exchange(driver: &Arc<CudaDriver>, memory: &Memory, seeds: &str, event: Option<IpcHandle>) {
    let (read, written) = seeds.split_once(',').expect("two seeds");
    let [read, written] = [read, written].map(|seed| seed.parse().expect("a seed"));
    let pages = (memory.attachment().bytes() / PAGE) as u32;
    let arena = arena(pages);
    let slots = side(&attach(driver, MemorySource::Arena(arena.clone())), PageOrder::Blhnc);
    let engine = side(memory, PageOrder::Lbhnc);
    let all: Vec<_> = (0..pages).map(|page| PagePair { from: page, to: page }).collect();
    let after: Vec<_> = event
        .map(|event| driver.foreign_fence(event).expect("an event of the other process"))
        .into_iter()
        .collect();
    let mut store =
        KvRoute::new(engine.clone(), slots.clone(), RouteSettings::default()).expect("a route");
    let started = Instant::now();
    store.start(&all, &after).expect("pages are there").wait().expect("the copies end");
    println!("stored after {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    let mut kv = vec![0; PAGE];
    for page in 0..pages {
        arena.read(SlotId(page), &mut kv);
        assert!(kv == page_of_layers(read, page, pages), "wrong bytes in page {page}");
    }
    println!("stored {pages} pages of the other process: all bytes equal");
    for page in 0..pages {
        arena.write(SlotId(page), &page_of_layers(written, page, pages));
    }
    let mut load = KvRoute::new(slots, engine, RouteSettings::default()).expect("a route");
    load.start(&all, &[]).expect("pages are there").wait().expect("the copies end");
    println!("loaded {pages} pages");
}

/// Stores the lower half of the pages and loads the upper half, over and over, until a line of
/// input comes. Every page that was stored must be that of the seed, and every page that is loaded
/// is that of the next seed.
pub(crate) fn hold(name: &str, bytes: &str, seed: &str) {
    let driver = open();
    let bytes = bytes.parse().expect("bytes");
    let seed: u32 = seed.parse().expect("a seed");
    let memory = attach(&driver, MemorySource::Ipc { handle: handle(name), bytes });
    let pages = (memory.attachment().bytes() / PAGE) as u32;
    let arena = arena(pages);
    let slots = side(&attach(&driver, MemorySource::Arena(arena.clone())), PageOrder::Blhnc);
    let engine = side(&memory, PageOrder::Lbhnc);
    let half = pages / 2;
    for page in half..pages {
        arena.write(SlotId(page), &page_of_layers(seed + 1, page, pages));
    }
    let pairs = |of: std::ops::Range<u32>| of.map(|page| PagePair { from: page, to: page });
    let (lower, upper): (Vec<_>, Vec<_>) = (pairs(0..half).collect(), pairs(half..pages).collect());
    let mut store =
        KvRoute::new(engine.clone(), slots.clone(), RouteSettings::default()).expect("a route");
    let mut load = KvRoute::new(slots, engine, RouteSettings::default()).expect("a route");
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        told.send(()).ok();
    });
    println!("holding");
    let mut rounds = 0;
    while tell.try_recv().is_err() {
        let moved = [store.start(&lower, &[]), load.start(&upper, &[])];
        for transit in moved {
            transit.expect("pages are there").wait().expect("the copies end");
        }
        rounds += 1;
    }
    let mut kv = vec![0; PAGE];
    for page in 0..half {
        arena.read(SlotId(page), &mut kv);
        assert!(kv == page_of_layers(seed, page, pages), "wrong bytes in page {page}");
    }
    println!("held {rounds} rounds: all bytes equal");
}
