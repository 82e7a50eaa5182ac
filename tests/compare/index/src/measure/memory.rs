//! What an index takes, by an allocator that counts and by what the system says.

use super::{Values, counts};
use crate::alloc::live_bytes;
use crate::corpus::{Change, Corpus};
use crate::machine::resident_bytes;
use crate::subject::{Lane, Subject};
use rustc_hash::FxHashMap;
use std::time::Instant;

/// Requests whose events are made at a time, so that events take no memory to speak of.
const PART: usize = 64;

/// Fills an index that `make` makes, has it do what it leaves for the background, and enters its
/// bytes per block. Counting is on.
pub fn fill<S: Subject>(make: impl FnOnce() -> S, corpus: &Corpus, values: &mut Values) {
    let (live_before, resident_before) = (live_bytes(), resident_bytes());
    let subject = make();
    for part in corpus.requests.chunks(PART) {
        let changes = || part.iter().flat_map(|request| corpus.changes(request));
        let mut lane = subject.lane(Instant::now(), &counts(corpus.workers, changes()));
        changes().for_each(|change| lane.send(S::event(&change)));
        lane.finish();
    }
    subject.maintain();
    // Tables on the heap are in both: the larger is nearer to the truth.
    let live = (live_bytes() - live_before).max(subject.own_bytes() as isize) as f64;
    let resident = resident_bytes() - resident_before;
    drop(subject);
    let (held, distinct) = blocks_at_the_end(corpus);
    values.insert("held blocks, M".into(), held / 1e6);
    values.insert("distinct blocks, M".into(), distinct / 1e6);
    values.insert("bytes/distinct block".into(), live / distinct);
    values.insert("bytes/held block".into(), live / held);
    values.insert("RSS bytes/held block".into(), resident / held);
}

/// Blocks that workers hold after all changes: each once for every holder, and each once.
fn blocks_at_the_end(corpus: &Corpus) -> (f64, f64) {
    let mut holders: FxHashMap<u64, i64> = FxHashMap::default();
    for change in corpus.requests.iter().flat_map(|request| corpus.changes(request)) {
        let (blocks, by) = match change {
            Change::Stored { chain, start, .. } => (&chain.sequence[start..], 1),
            Change::Removed { sequence, .. } => (sequence, -1),
        };
        blocks.iter().for_each(|&hash| *holders.entry(hash).or_default() += by);
    }
    let held: i64 = holders.values().sum();
    (held as f64, holders.values().filter(|&&n| n > 0).count() as f64)
}
