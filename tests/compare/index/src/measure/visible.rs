//! How soon an event is visible when events come at a fixed rate and nobody asks anything.

use super::{Values, all_counts, enter_us, events, since, wait_until};
use crate::corpus::Corpus;
use crate::subject::{Lane, Subject};
use std::time::Instant;

/// Sends a corpus's events so that their blocks come at `rate` blocks a second.
pub fn paced<S: Subject>(subject: &S, corpus: &Corpus, rate: f64, values: &mut Values) {
    let events = events::<S>(corpus);
    let epoch = Instant::now();
    let mut lane = subject.lane(epoch, &all_counts(corpus));
    let start_ns = since(epoch) + 1_000_000;
    let (mut due, mut blocks_before) = (Vec::with_capacity(events.len()), 0);
    for (event, blocks) in events {
        let due_ns = start_ns + (blocks_before as f64 / rate * 1e9) as u64;
        wait_until(epoch, due_ns);
        lane.send(event);
        due.push(due_ns);
        blocks_before += blocks;
    }
    let finished_ns = lane.finish();
    let window_ns = blocks_before as f64 / rate * 1e9;
    let last_ns = finished_ns.last().map_or(0, |ns| ns - start_ns) as f64;
    let visible = due.iter().zip(&finished_ns).map(|(due, done)| (done - due) as f64).collect();
    enter_us(values, "event visible after", visible);
    values.insert("visible: drained span / window".into(), last_ns / window_ns);
}
