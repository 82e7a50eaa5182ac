//! What holds however long it runs: nothing is lost or served twice, nothing leaks.

use super::{ms, queues_of};
use crate::{
    BandPolicy, BandSettings, Bounds, Fairness, FlowId, Ordering, QueueEntry, QueueHead,
    QueueSettings, QueueTicket, Queues, Verdict,
};
use std::collections::BTreeMap;

/// Bytes per waiting request and per flow, see [`Queues`] and [`QueueSettings::idle_flows_max`].
const REQUEST_BYTES: usize = 280;
const FLOW_BYTES: usize = 500;
const BAND_BYTES: usize = 8 * 1024;

/// Numbers that look random and are always the same.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

fn settings(fairness: Fairness, ordering: Ordering) -> QueueSettings {
    let bounds = Bounds { requests: 300, bytes: Some(20_000), tokens: Some(100_000) };
    let policy = BandPolicy { bounds, ttl: ms(400), fairness, ordering };
    QueueSettings {
        bands: vec![BandSettings { priority: 0, policy }],
        default_band: policy,
        default_negative_band: policy,
        bands_max: 5,
        total: Bounds { requests: 700, bytes: Some(60_000), tokens: Some(250_000) },
        displace: true,
        evict_hopeless: true,
        idle_flows_max: 100,
        ..QueueSettings::default()
    }
}

/// One life after the other, with a record of what became of each.
struct Lives {
    queues: Queues<u32>,
    numbers: Numbers,
    now_ms: u64,
    waiting: BTreeMap<u32, QueueTicket>,
    born: u32,
}

impl Lives {
    fn new(settings: QueueSettings, seed: u64) -> Self {
        let (queues, numbers) = (queues_of(settings), Numbers(seed));
        Self { queues, numbers, now_ms: 0, waiting: BTreeMap::new(), born: 0 }
    }

    fn push(&mut self) {
        let entry = QueueEntry {
            priority: self.numbers.below(7) as i32 - 3,
            flow: FlowId(self.numbers.below(50) * self.numbers.below(50)),
            tokens: self.numbers.below(800) as u32,
            bytes: self.numbers.below(200),
            deadline: (self.numbers.below(3) == 0).then(|| ms(self.now_ms + 200)),
            objective: (self.numbers.below(2) == 0).then(|| ms(self.numbers.below(500))),
            jump: self.numbers.below(4) as u32,
            payload: self.born,
        };
        let mut displaced = Vec::new();
        let result = self.queues.push(entry, ms(self.now_ms), &mut displaced);
        displaced.iter().for_each(|gone| self.gone(gone.payload));
        match result {
            Ok(ticket) => drop(self.waiting.insert(self.born, ticket)),
            Err(rejected) => assert_eq!(rejected.payload, self.born),
        }
        self.born += 1;
    }

    fn pop(&mut self) {
        let (mut dispatched, numbers) = (Vec::new(), &mut self.numbers);
        let mut verdict = |_: &QueueHead, _: &mut u32| match numbers.below(20) {
            0..14 => Verdict::Go,
            14..18 => Verdict::Wait,
            _ => Verdict::Stop,
        };
        self.queues.pop(ms(self.now_ms), &mut verdict, &mut dispatched);
        dispatched.iter().for_each(|gone| self.gone(gone.payload));
    }

    fn cancel(&mut self) {
        let one = self.numbers.below(u64::from(self.born) + 1) as u32;
        if let Some((&payload, &ticket)) = self.waiting.range(one..).next() {
            assert_eq!(self.queues.cancel(ticket, ms(self.now_ms)), Some(payload));
            self.gone(payload);
        }
    }

    fn expire(&mut self) {
        self.now_ms += self.numbers.below(20);
        let mut evicted = Vec::new();
        self.queues.expire(ms(self.now_ms), &mut evicted);
        evicted.iter().for_each(|gone| self.gone(gone.payload));
    }

    fn gone(&mut self, payload: u32) {
        assert!(self.waiting.remove(&payload).is_some(), "{payload} did not wait");
    }

    fn check(&self) {
        let stats = self.queues.stats(ms(self.now_ms));
        assert_eq!(stats.waiting.requests, self.waiting.len() as u64);
        let within = |usage: crate::QueueUsage, requests, bytes, tokens| {
            usage.requests <= requests && usage.bytes <= bytes && usage.tokens <= tokens
        };
        assert!(within(stats.waiting, 700, 60_000, 250_000), "{:?}", stats.waiting);
        for band in stats.bands {
            assert!(within(band.waiting, 300, 20_000, 100_000), "{band:?}");
            assert!(band.flows <= 100 + band.flows_waiting);
        }
    }
}

#[test]
fn every_request_ends_once_and_no_bound_is_exceeded() {
    let fairness = [
        Fairness::GlobalStrict,
        Fairness::RoundRobin,
        Fairness::Drr { quantum_tokens: 100 },
        Fairness::Vtc { input_weight: 1, output_weight: 2 },
    ];
    let ordering = [
        Ordering::Fcfs,
        Ordering::ShortestPrompt { ageing_tokens_per_s: 500 },
        Ordering::WeightedShortest,
        Ordering::SloDeadline,
    ];
    for (seed, (fairness, ordering)) in fairness.into_iter().zip(ordering).enumerate() {
        let mut lives = Lives::new(settings(fairness, ordering), seed as u64);
        for _ in 0..50_000 {
            match lives.numbers.below(10) {
                0..6 => lives.push(),
                6 => lives.pop(),
                7 => lives.cancel(),
                8 => lives.expire(),
                _ => lives.check(),
            }
        }
        let mut rest = Vec::new();
        lives.queues.close(ms(lives.now_ms), &mut rest);
        rest.iter().for_each(|gone| lives.gone(gone.payload));
        assert_eq!(lives.waiting.len(), 0);
        lives.check();
    }
}

#[test]
fn a_million_requests_leave_no_memory_behind() {
    let fairness = Fairness::Drr { quantum_tokens: 1000 };
    let mut queues = queues_of(QueueSettings {
        bands: vec![BandSettings {
            priority: 0,
            policy: BandPolicy { fairness, bounds: Bounds::MAX, ..BandPolicy::default() },
        }],
        idle_flows_max: 500,
        ..QueueSettings::default()
    });
    let (mut numbers, mut waiting) = (Numbers(1), 0usize);
    let mut dispatched = Vec::new();
    for number in 0..1_000_000u64 {
        let now = ms(number / 100);
        let (flow, tokens) = (FlowId(numbers.below(1_000_000)), numbers.below(3000) as u32);
        let entry = QueueEntry { flow, tokens, ..QueueEntry::default() };
        queues.push(entry, now, &mut Vec::new()).expect("there is room");
        waiting += 1;
        let mut left = if waiting == 1000 { 1 + numbers.below(1000) } else { 0 };
        let mut verdict = |_: &QueueHead, _: &mut u32| {
            let go = left > 0;
            left = left.saturating_sub(1);
            if go { Verdict::Go } else { Verdict::Stop }
        };
        queues.pop(now, &mut verdict, &mut dispatched);
        waiting -= dispatched.drain(..).count();
        if number % 997 == 0 {
            let (requests, flows) = (1000 * REQUEST_BYTES, 1500 * FLOW_BYTES);
            assert!(queues.memory_bytes() <= requests + flows + BAND_BYTES, "after {number}");
        }
    }
}

#[test]
fn a_waiting_request_takes_as_little_as_it_says() {
    let mut queues = queues_of(QueueSettings {
        bands: vec![BandSettings {
            priority: 0,
            policy: BandPolicy { bounds: Bounds::MAX, ..BandPolicy::default() },
        }],
        ..QueueSettings::default()
    });
    for _ in 0..100_000 {
        queues.push(QueueEntry::default(), ms(0), &mut Vec::new()).expect("there is room");
    }
    let bytes = queues.memory_bytes();
    assert!(bytes <= 100_000 * REQUEST_BYTES + BAND_BYTES, "{}", bytes / 100_000);
    queues.close(ms(1), &mut Vec::new());
}
