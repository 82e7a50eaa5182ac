//! Readers while writers change everything around them.

use super::*;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

const STABLE: u64 = 300;
const ROUNDS: u64 = 100;

/// Blocks of one sequence, unlike those of others.
fn chain(number: u64, length: u64) -> Vec<u64> {
    (0..length).map(|place| number << 32 | (place + 1)).collect()
}

/// A worker that comes and goes, with blocks that others have and blocks of its own.
fn churn(index: &Index, number: u64) {
    for round in 0..ROUNDS {
        let (shared, own) = (chain(0, STABLE / 2), chain(number << 16 | round, 40));
        let life = Generation(round / 8);
        index.insert(worker(number), life);
        index.apply(worker(number), life, &on_device(&shared));
        let applied = index.apply(worker(number), life, &stored(&own, None, Medium::Host));
        let found = overlap(index, worker(number), &own).blocks();
        assert_eq!((applied, found), (EventEffect::Yes, 40));
        match round % 8 {
            2 => index.unknown(worker(number)),
            5 => index.remove(worker(number)),
            6 => _ = index.apply(worker(number), life, &KvEvent::Cleared),
            _ => _ = index.apply(worker(number), life, &removed(&shared, Medium::Device)),
        }
        assert_eq!(overlap(index, worker(number), &shared).blocks(), 0);
        let blocks = sequence(&own).into_iter().map(|hash| (hash, Medium::Disk));
        if index.replace(worker(number), life, blocks) == EventEffect::Yes {
            assert_eq!(overlap(index, worker(number), &own), Overlap::new([0, 0, 40, 0]));
        }
        index.predict(worker(number), &sequence(&own), Time::from_millis(round));
        index.expire(Time::from_millis(round.saturating_sub(3)));
        index.maintain(2000);
    }
}

fn read(index: &Index, done: &AtomicBool) {
    let (stable, alien) = (sequence(&chain(0, STABLE)), sequence(&chain(1 << 20, 50)));
    let mut out = Overlaps::default();
    while !done.load(Relaxed) {
        index.overlap(&stable, &mut out);
        assert_eq!(out.of(worker(0)), Overlap::new([STABLE as u32, 0, 0, 0]));
        let mut found = HashSet::new();
        for (of, overlap) in out.iter() {
            assert!(found.insert(of), "each worker comes once");
            let most = if of == worker(0) { STABLE } else { STABLE / 2 };
            assert!(overlap.on(Medium::Device) <= most as u32);
            assert_eq!(overlap.blocks(), overlap.on(Medium::Device), "it is on no other medium");
        }
        index.overlap(&alien, &mut out);
        assert_eq!(out.iter().count(), 0);
        let held = held(index, worker(0)).expect("its state is known");
        assert_eq!(held.blocks.len() as u64, STABLE);
    }
}

#[test]
fn what_stays_is_always_found() {
    let index = index();
    index.apply(worker(0), LIFE, &on_device(&chain(0, STABLE)));
    let (index, done) = (&index, &AtomicBool::new(false));
    std::thread::scope(|threads| {
        let readers = [(); 2].map(|()| threads.spawn(|| read(index, done)));
        let writers = [4, 5].map(|number| threads.spawn(move || churn(index, number)));
        let written = writers.map(|writer| writer.join());
        done.store(true, Relaxed);
        for reader in readers {
            reader.join().expect("what is read is right");
        }
        for written in written {
            written.expect("what is written is visible at once");
        }
    });
    (1..6).for_each(|number| index.remove(worker(number)));
    maintain(index);
    let stats = index.stats();
    assert_eq!((stats.blocks as u64, stats.held as u64, stats.sets), (STABLE, STABLE, 1));
}
