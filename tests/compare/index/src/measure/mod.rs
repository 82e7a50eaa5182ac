//! The measurements. Each runs in a process of its own and returns named values.

pub mod closed;
pub mod hashing;
pub mod lookups;
pub mod memory;
pub mod open;
pub mod snapshot;
pub mod verify;
pub mod visible;

use crate::corpus::{Change, Corpus};
use crate::stats::percentile;
use crate::subject::Subject;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What a trial measured, by names that end with their unit.
pub type Values = BTreeMap<String, f64>;

/// Enters median and 99th percentile of times in nanoseconds, in microseconds.
fn enter_us(values: &mut Values, name: &str, mut ns: Vec<f64>) {
    for (suffix, q) in [("p50", 0.5), ("p99", 0.99)] {
        values.insert(format!("{name} {suffix}, µs"), percentile(&mut ns, q) / 1e3);
    }
}

/// A prompt that is in the caches: whoever looks one up has just hashed it.
fn just_made<Q: Clone>(query: &Q) -> Q {
    black_box(query.clone())
}

/// All events of a corpus in order, in the form that a subject takes, and the blocks of each.
fn events<S: Subject>(corpus: &Corpus) -> Vec<(S::Event, usize)> {
    let changes = corpus.requests.iter().flat_map(|request| corpus.changes(request));
    changes.map(|change| (S::event(&change), change.blocks())).collect()
}

/// How many events each worker has.
fn counts<'a>(workers: u32, changes: impl Iterator<Item = Change<'a>>) -> Vec<usize> {
    let mut counts = vec![0; workers as usize];
    for change in changes {
        counts[change.worker() as usize] += 1;
    }
    counts
}

/// How many events each worker has in a whole corpus.
fn all_counts(corpus: &Corpus) -> Vec<usize> {
    counts(corpus.workers, corpus.requests.iter().flat_map(|request| corpus.changes(request)))
}

/// Waits for a point in time without giving the core away, and returns how late it is, in
/// nanoseconds from the epoch.
fn wait_until(epoch: Instant, deadline_ns: u64) -> u64 {
    loop {
        let now_ns = since(epoch);
        if now_ns >= deadline_ns {
            return now_ns;
        }
        // Far from the deadline the core may rest.
        match Duration::from_nanos(deadline_ns - now_ns) {
            left if left > Duration::from_millis(2) => {
                std::thread::sleep(left - Duration::from_millis(1));
            }
            _ => std::hint::spin_loop(),
        }
    }
}

fn since(epoch: Instant) -> u64 {
    epoch.elapsed().as_nanos() as u64
}
