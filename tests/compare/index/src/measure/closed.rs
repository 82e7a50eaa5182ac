//! As fast as it goes: all events at once on one lane, and the clock until the last is applied.

use super::{Values, all_counts, events};
use crate::corpus::Corpus;
use crate::machine::process_cpu;
use crate::subject::{Lane, Subject};
use std::time::Instant;

/// Fills an index with a corpus and enters how fast it went.
pub fn fill<S: Subject>(subject: &S, corpus: &Corpus, values: &mut Values) {
    let events = events::<S>(corpus);
    let blocks = corpus.changed_blocks() as f64;
    let epoch = Instant::now();
    let mut lane = subject.lane(epoch, &all_counts(corpus));
    let (start, start_cpu) = (epoch.elapsed(), process_cpu());
    for (event, _) in events {
        lane.send(event);
    }
    let finished_ns = lane.finish();
    let cpu = process_cpu() - start_cpu;
    let seconds = finished_ns.last().map_or(0.0, |&ns| ns as f64 / 1e9) - start.as_secs_f64();
    values.insert("ingest, M blocks/s".into(), blocks / seconds / 1e6);
    values.insert("ingest CPU, ns/block".into(), cpu.as_nanos() as f64 / blocks);
}
