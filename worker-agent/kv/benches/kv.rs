//! Speed of copying, checking and finding blocks. Prints a table; takes about ten seconds.
//!
//! `cargo bench -p stator-kv --bench kv [part of a line's name]`
//!
//! Every line is the median of repetitions that alternate with those of the line it is compared
//! with, so that a noisy machine disturbs both alike.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use stator_kv::arena::Arena;
use stator_kv::cache::{CacheSettings, Progress, TieredCache};
use stator_kv::store::RequestId;
use stator_kv::{Block, BlockForm, SlotId};
use stator_protos::name::BlockName;

/// Blocks that are copied in turn: more than the caches hold.
const SLOTS: u32 = 64;
const REPETITIONS: usize = 31;

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |what: &str| only.as_ref().is_none_or(|only| what.contains(only.as_str()));
    println!("{:<44} {:>10} {:>10} {:>8}", "", "KiB", "GB/s", "ratio");
    for kib in [32, 256, 2048] {
        copies(&wanted, kib << 10);
    }
    println!("{:<44} {:>10} {:>10}", "", "KiB", "us");
    for kib in [32, 2048] {
        answers(&wanted, kib << 10);
    }
}

fn copies(wanted: &dyn Fn(&str) -> bool, bytes: usize) {
    let arena = Arena::new(SLOTS, bytes).expect("the machine has 128 MiB");
    let mut engine = vec![1u8; bytes * SLOTS as usize];
    let plain: Vec<_> = vec![2u8; bytes * SLOTS as usize];
    (0..SLOTS).for_each(|slot| arena.write(SlotId(slot), &plain[..bytes]));
    let name = BlockName(7);
    let block = |slot: u32| slot as usize * bytes..(slot as usize + 1) * bytes;
    // The yardstick: the same copy between vectors of this process.
    let mut memcpy = |slot| engine[block(slot)].copy_from_slice(&plain[block(slot)]);
    let mut engine2 = vec![1u8; bytes * SLOTS as usize];
    let ways: [(&str, &mut dyn FnMut(u32)); 6] = [
        ("copy: memcpy", &mut memcpy),
        ("copy: into the arena", &mut |slot| arena.write(SlotId(slot), &plain[block(slot)])),
        ("copy: into the arena, with checksum", &mut |slot| {
            black_box(arena.write_checked(SlotId(slot), name, &plain[block(slot)]));
        }),
        ("copy: out of the arena", &mut |slot| {
            arena.read(SlotId(slot), &mut engine2[block(slot)]);
        }),
        ("copy: checksum of a slot", &mut |slot| {
            black_box(arena.checksum(SlotId(slot), name));
        }),
        ("copy: checksum of a slice", &mut |slot| {
            black_box(stator_kv::checksum::checksum(name, &plain[block(slot)]));
        }),
    ];
    compare(wanted, bytes, ways);
}

/// A question for blocks that are all in host memory, and its end, with and without a look at their
/// bytes.
fn answers(wanted: &dyn Fn(&str) -> bool, bytes: usize) {
    const BLOCKS: usize = 46;
    let form = BlockForm { fingerprint: [0; 32], block_bytes: bytes };
    for verify_host in [false, true] {
        let what = if verify_host { "cache: verified answer" } else { "cache: answer" };
        let what = format!("{what} of {BLOCKS} blocks");
        if !wanted(&what) {
            continue;
        }
        let settings = CacheSettings { verify_host, ..CacheSettings::new(4 * BLOCKS as u32) };
        let cache = TieredCache::open(form, settings).expect("the machine has 128 MiB");
        let (news, progress) = channel();
        let client = cache.connect(Arc::new(move |of| _ = news.send(of)));
        let names: Vec<_> = (0..BLOCKS as u128).map(BlockName).collect();
        let block = |name: &BlockName| Block {
            name: *name,
            hash: None,
            parent: None,
            depth: name.0 as u32,
            tenant: stator_kv::TenantKey::default(),
        };
        let slots = client.grant(BLOCKS);
        let filled: Vec<_> = slots.into_iter().zip(names.iter().map(block)).collect();
        client.filled(&filled);
        let median = median(|| {
            let started = Instant::now();
            let found = client.ask(RequestId(1), &names, Duration::ZERO);
            let mut ready = found.ready.len();
            // Large blocks are looked at after the answer.
            while ready < BLOCKS {
                let more: Progress = progress.recv().expect("the client lives");
                ready += more.slots.len();
            }
            client.end(RequestId(1));
            started.elapsed()
        });
        println!("{what:<44} {:>10} {:>10.1}", bytes >> 10, median.as_secs_f64() * 1e6);
    }
}

fn compare<const N: usize>(
    wanted: &dyn Fn(&str) -> bool,
    bytes: usize,
    mut ways: [(&str, &mut dyn FnMut(u32)); N],
) {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..REPETITIONS {
        for ((_, way), times) in ways.iter_mut().zip(&mut times) {
            let started = Instant::now();
            (0..SLOTS).for_each(&mut *way);
            times.push(started.elapsed());
        }
    }
    let medians = times.map(|mut times| {
        times.sort_unstable();
        times[REPETITIONS / 2].as_secs_f64()
    });
    for ((what, _), median) in ways.iter().zip(medians).filter(|((what, _), _)| wanted(what)) {
        let rate = bytes as f64 * f64::from(SLOTS) / median / 1e9;
        println!("{what:<44} {:>10} {rate:>10.2} {:>8.2}", bytes >> 10, medians[0] / median);
    }
}

fn median(mut run: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<_> = (0..REPETITIONS).map(|_| run()).collect();
    times.sort_unstable();
    times[REPETITIONS / 2]
}
