//! Time to push one request and pop another with 10,000 waiting in 1,000 flows, for each fairness
//! policy, beside a plain binary heap that knows neither flows nor bounds nor deadlines.

use stator_queue::{
    BandPolicy, BandSettings, Bounds, CheckedSettings, DispatchedRequest, Fairness, FlowId,
    QueueEntry, QueueHead, QueueSettings, Queues, Verdict,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::{Duration, Instant};

const WAITING: u64 = 10_000;
const FLOWS: u64 = 1_000;
const STEPS: u64 = 2_000_000;
/// Runs of each, of which the fastest counts.
const RUNS: u32 = 5;

fn main() {
    println!("{WAITING} waiting, {FLOWS} flows: ns per push and pop");
    report("binary heap", heap);
    let policies = [
        ("global strict", Fairness::GlobalStrict),
        ("round robin", Fairness::RoundRobin),
        ("deficit round robin", Fairness::Drr { quantum_tokens: 2048 }),
        ("virtual token counters", Fairness::Vtc { input_weight: 1, output_weight: 2 }),
    ];
    for (name, fairness) in policies {
        report(name, || queue(fairness));
    }
}

fn report(name: &str, mut run: impl FnMut() -> Duration) {
    let fastest = (0..RUNS).map(|_| run()).min().unwrap_or_default();
    println!("{name:>24}: {:>6.1}", fastest.as_nanos() as f64 / STEPS as f64);
}

/// Numbers that look random and are always the same.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

fn heap() -> Duration {
    let (mut heap, mut numbers) = (BinaryHeap::new(), Numbers(1));
    let mut push = |heap: &mut BinaryHeap<_>, time: u64| {
        let (flow, tokens) = (numbers.below(FLOWS), numbers.below(4096));
        heap.push(Reverse((time, flow, tokens)));
    };
    (0..WAITING).for_each(|time| push(&mut heap, time));
    let started = Instant::now();
    for step in 0..STEPS {
        push(&mut heap, WAITING + step);
        black_box(heap.pop());
    }
    started.elapsed()
}

fn queue(fairness: Fairness) -> Duration {
    let policy = BandPolicy { fairness, bounds: Bounds::MAX, ..BandPolicy::default() };
    let bands = vec![BandSettings { priority: 0, policy }];
    let settings = CheckedSettings::new(QueueSettings { bands, ..QueueSettings::default() });
    let mut queues = Queues::new(settings.expect("the settings are valid"));
    let (mut numbers, mut displaced) = (Numbers(1), Vec::new());
    let mut push = |queues: &mut Queues<u64>, time: u64| {
        let flow = FlowId(numbers.below(FLOWS));
        let tokens = numbers.below(4096) as u32;
        let entry = QueueEntry { flow, tokens, payload: time, ..QueueEntry::default() };
        let pushed = queues.push(entry, Duration::from_micros(time), &mut displaced);
        pushed.expect("there is room");
    };
    (0..WAITING).for_each(|time| push(&mut queues, time));
    let mut dispatched: Vec<DispatchedRequest<u64>> = Vec::new();
    let started = Instant::now();
    for step in 0..STEPS {
        let time = WAITING + step;
        push(&mut queues, time);
        let mut left = 1;
        let mut verdict = |_: &QueueHead, _: &mut u64| match left {
            0 => Verdict::Stop,
            _ => {
                left -= 1;
                Verdict::Go
            }
        };
        queues.pop(Duration::from_micros(time), &mut verdict, &mut dispatched);
        black_box(dispatched.drain(..).count());
    }
    started.elapsed()
}
