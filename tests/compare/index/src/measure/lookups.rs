//! Lookups in a full index, quiet and with a writer on the other core.

use super::{Values, enter_us, just_made, since};
use crate::corpus::{Chain, Change, Corpus, continue_chain};
use crate::random::{Random, mix};
use crate::stats::mean;
use crate::subject::{Lane, Subject};
use std::hint::black_box;
use std::time::Instant;

/// Blocks of a churn event.
const TAIL_BLOCKS: usize = 64;
/// Tails that are there at a time.
const TAILS: usize = 1_024;
/// How long lookups run beside the writer, in seconds.
const LOADED_S: f64 = 1.5;

/// Looks every prompt up once, in random order, after a warm-up.
pub fn quiet<S: Subject>(subject: &S, corpus: &Corpus, values: &mut Values) {
    let queries = queries::<S>(corpus);
    let mut buffers = S::Buffers::default();
    for query in &queries[..queries.len() / 4] {
        black_box(subject.lookup(query, &mut buffers));
    }
    let (mut service_ns, mut depths, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for query in &queries {
        let query = just_made(query);
        let start = Instant::now();
        let result = subject.lookup(&query, &mut buffers);
        service_ns.push(start.elapsed().as_nanos() as f64);
        let workers = S::depths(&result, &buffers);
        depths.push(workers.iter().map(|&(_, depth)| f64::from(depth)).fold(0.0, f64::max));
        found.push(workers.len() as f64);
    }
    enter_us(values, "lookup, quiet,", service_ns);
    values.insert("mean match depth, blocks".into(), mean(&depths));
    values.insert("mean workers found".into(), mean(&found));
}

/// The same while a writer stores and removes blocks at `rate` blocks a second. They hang below
/// prompts that stay, so that answers do not change, and no two are the same.
pub fn loaded<S: Subject>(subject: &S, corpus: &Corpus, rate: f64, values: &mut Values) {
    let queries = queries::<S>(corpus);
    let (events, counts) = churn::<S>(corpus, (rate * LOADED_S) as usize / TAIL_BLOCKS);
    let mut buffers = S::Buffers::default();
    let (mut service_ns, mut next) = (Vec::new(), 0);
    let mut due = events.into_iter().enumerate().peekable();
    let interval_ns = TAIL_BLOCKS as f64 / rate * 1e9;
    let deadline_ns = |i: usize, start_ns: u64| start_ns + (i as f64 * interval_ns) as u64;
    let epoch = Instant::now();
    let mut lane = subject.lane(epoch, &counts);
    let start_ns = since(epoch);
    let mut sent = 0usize;
    while due.peek().is_some() {
        let query = just_made(&queries[next % queries.len()]);
        let before_ns = since(epoch);
        black_box(subject.lookup(&query, &mut buffers));
        let now_ns = since(epoch);
        service_ns.push((now_ns - before_ns) as f64);
        next += 1;
        while let Some((_, event)) = due.next_if(|(i, _)| deadline_ns(*i, start_ns) <= now_ns) {
            lane.send(event);
            sent += 1;
        }
    }
    let finished_ns = lane.finish();
    let late = finished_ns.last().map_or(0, |&ns| ns.saturating_sub(deadline_ns(sent, start_ns)));
    enter_us(values, "lookup, loaded,", service_ns);
    values.insert("loaded: writer behind at the end, ms".into(), late as f64 / 1e6);
}

/// Prompts that an index should know, in random order: all, or the latest where caches evict.
fn queries<S: Subject>(corpus: &Corpus) -> Vec<S::Query> {
    let known = if corpus.removed.is_empty() { 1 } else { 8 };
    let first = corpus.requests.len() - corpus.requests.len() / known;
    let latest = corpus.requests[first..].iter();
    let mut queries: Vec<S::Query> = latest.map(|r| S::query(corpus.chain(r))).collect();
    Random::new(1).shuffle(&mut queries);
    queries
}

/// Events that store tails of new blocks below the last request of each worker, and remove each
/// again when it is the oldest of [`TAILS`]; and how many of them each worker has.
fn churn<S: Subject>(corpus: &Corpus, events: usize) -> (Vec<S::Event>, Vec<usize>) {
    let mut last: Vec<Option<Chain<'_>>> = vec![None; corpus.workers as usize];
    for request in &corpus.requests {
        last[request.worker as usize] = Some(corpus.chain(request));
    }
    let last: Vec<(u32, Chain<'_>)> =
        (0..).zip(last).filter_map(|(worker, chain)| Some((worker, chain?))).collect();
    let tail = |number: usize| Tail::new(number, last[number % last.len()]);
    let mut counts = vec![0; corpus.workers as usize];
    let mut made = Vec::with_capacity(events);
    for number in 0..events.div_ceil(2) + TAILS {
        let stored = tail(number);
        let old = number.checked_sub(TAILS).map(tail);
        let changes = [Some(stored.stored()), old.as_ref().map(Tail::removed)];
        for change in changes.into_iter().flatten() {
            counts[change.worker() as usize] += 1;
            made.push(S::event(&change));
        }
    }
    (made, counts)
}

/// A prompt with new blocks at its end.
struct Tail {
    worker: u32,
    local: Vec<u64>,
    sequence: Vec<u64>,
    reversed: Vec<u64>,
}

impl Tail {
    fn new(number: usize, (worker, chain): (u32, Chain<'_>)) -> Self {
        let first = (number * TAIL_BLOCKS) as u64;
        // One block of the prompt stands before the new ones, as the parent.
        let parent = chain.sequence.len() - 1;
        let mut local = vec![chain.local[parent]];
        local.extend((first..first + TAIL_BLOCKS as u64).map(|block| mix(!block)));
        let mut sequence = vec![chain.sequence[parent]];
        sequence.extend(continue_chain(Some(chain.sequence[parent]), &local[1..]));
        let reversed = sequence[1..].iter().rev().copied().collect();
        Self { worker, local, sequence, reversed }
    }

    fn stored(&self) -> Change<'_> {
        let chain = Chain { local: &self.local, sequence: &self.sequence };
        Change::Stored { worker: self.worker, chain, start: 1 }
    }

    fn removed(&self) -> Change<'_> {
        Change::Removed { worker: self.worker, sequence: &self.reversed }
    }
}
