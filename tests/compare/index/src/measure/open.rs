//! Open loop: prompts and events come when they are due, whether or not the index keeps up.
//!
//! Source: the rules of Dynamo's and SMG's own measurements. Prompts go before events that are
//! due at the same time; the clock stops when the last of all is done; block operations are
//! blocks asked for, stored and removed. Waiting counts from the time when something was due.

use super::{Values, all_counts, enter_us, just_made, since, wait_until};
use crate::corpus::Corpus;
use crate::subject::{Lane, Subject};
use std::hint::black_box;
use std::time::Instant;

/// What happens when: a prompt, and then what it changed.
struct Step<S: Subject> {
    due_ns: u64,
    query: S::Query,
    events: Vec<S::Event>,
}

/// When an event was due and when it was sent.
struct Sent {
    due_ns: u64,
    sent_ns: u64,
}

/// Replays a corpus at `rate` block operations a second; 0 makes everything due at once, so that
/// only the whole has a meaning.
pub fn replay<S: Subject>(subject: &S, corpus: &Corpus, rate: f64, values: &mut Values) {
    let operations = (corpus.local.len() + corpus.changed_blocks()) as f64;
    let window_ns = if rate > 0.0 { operations / rate * 1e9 } else { 0.0 };
    let steps = steps::<S>(corpus, window_ns);
    let mut buffers = S::Buffers::default();
    let [mut wait_ns, mut service_ns, mut total_ns] = [const { Vec::new() }; 3];
    let mut sent = Vec::new();
    let epoch = Instant::now();
    let mut lane = subject.lane(epoch, &all_counts(corpus));
    let start_ns = since(epoch) + 1_000_000;
    for step in steps {
        let due_ns = start_ns + step.due_ns;
        let query = just_made(&step.query);
        let begun_ns = wait_until(epoch, due_ns);
        black_box(subject.lookup(&query, &mut buffers));
        let done_ns = since(epoch);
        wait_ns.push((begun_ns - due_ns) as f64);
        service_ns.push((done_ns - begun_ns) as f64);
        total_ns.push((done_ns - due_ns) as f64);
        for event in step.events {
            lane.send(event);
            sent.push(Sent { due_ns, sent_ns: since(epoch) });
        }
    }
    let issued_ns = since(epoch) - start_ns;
    let finished_ns = lane.finish();
    let last_ns = finished_ns.iter().copied().max().unwrap_or(0) - start_ns;
    let span_ns = last_ns.max(issued_ns) as f64;
    values.insert("replay, M block-ops/s".into(), operations / span_ns * 1e3);
    if rate > 0.0 {
        values.insert("issue span / window".into(), issued_ns as f64 / window_ns);
        values.insert("drained span / window".into(), span_ns / window_ns);
        enter_us(values, "lookup wait", wait_ns);
        enter_us(values, "lookup scheduled to complete", total_ns);
        enter_us(values, "lookup service", service_ns);
        enter_events(values, &sent, &finished_ns);
    }
}

fn steps<S: Subject>(corpus: &Corpus, window_ns: f64) -> Vec<Step<S>> {
    let steps = corpus.requests.iter().map(|request| Step {
        due_ns: (request.at * window_ns) as u64,
        query: S::query(corpus.chain(request)),
        events: corpus.changes(request).map(|change| S::event(&change)).collect(),
    });
    steps.collect()
}

/// Enters how long events waited, took, and were late. A lane does one after the other, so that
/// one begins when it was sent or when the one before it was done.
fn enter_events(values: &mut Values, sent: &[Sent], finished_ns: &[u64]) {
    let [mut wait, mut service, mut total] = [const { Vec::new() }; 3];
    let mut free_ns = 0;
    for (sent, &finished_ns) in sent.iter().zip(finished_ns) {
        let begun_ns = sent.sent_ns.max(free_ns).min(finished_ns);
        wait.push((begun_ns - sent.due_ns.min(begun_ns)) as f64);
        service.push((finished_ns - begun_ns) as f64);
        total.push((finished_ns - sent.due_ns) as f64);
        free_ns = finished_ns;
    }
    enter_us(values, "event wait", wait);
    enter_us(values, "event service", service);
    enter_us(values, "event scheduled to visible", total);
}
