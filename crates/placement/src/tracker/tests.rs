use super::*;
use crate::random::Random;
use proptest::{collection::vec, prelude::*};
use std::collections::HashSet;

const LEASE: Duration = Duration::from_millis(100);
const BLOCK_SIZE: u32 = 16;

fn sequence(from: u64, blocks: u64) -> Vec<SequenceHash> {
    (from..from + blocks).map(SequenceHash).collect()
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// A tracker and whoever learns from it.
struct Tracked(Tracker, Learner);

impl Tracked {
    fn new() -> Self {
        Self(Tracker::new(LEASE, BLOCK_SIZE), Learner::new(4))
    }

    fn book(&mut self, slot: u32, footprint: Footprint<'_>, now: Time) -> BookingId {
        self.0.book(slot, footprint, now, &Speed::default())
    }

    fn prefill_done(&mut self, id: BookingId, now: Time) -> bool {
        self.0.prefill_done(id, now, &mut self.1)
    }

    fn grow(&mut self, id: BookingId, now: Time) -> bool {
        self.0.output(id, BLOCK_SIZE, now, &mut self.1)
    }

    fn release(&mut self, id: BookingId) -> bool {
        self.0.release(id, at(0)).is_some()
    }

    fn in_flight(&self, slot: u32) -> InFlight {
        self.0.loads().total(slot)
    }

    fn overlap(&self, slot: u32, sequence: &[SequenceHash]) -> u32 {
        self.0.running().overlap(slot, sequence)
    }
}

#[track_caller]
fn check(tracker: &Tracked, requests: u64, prefill_tokens: u64, blocks: u64) {
    let expected = InFlight { requests, prefill_tokens, blocks };
    assert_eq!(tracker.in_flight(1), expected);
}

#[test]
fn a_request_counts_from_its_booking_to_its_release() {
    let mut tracker = Tracked::new();
    let shared = sequence(0, 4);
    let footprint =
        Footprint { shared: &shared, own_blocks: 1, prefill_tokens: 70, ..Footprint::default() };
    let id = tracker.book(1, footprint, at(0));
    check(&tracker, 1, 70, 5);
    assert!(tracker.prefill_done(id, at(1)));
    assert!(tracker.prefill_done(id, at(1)), "to say it again changes nothing");
    check(&tracker, 1, 0, 5);
    assert!(tracker.grow(id, at(2)));
    check(&tracker, 1, 0, 6);
    assert!(tracker.release(id));
    check(&tracker, 0, 0, 0);
    assert!(!tracker.release(id) && !tracker.grow(id, at(3)) && !tracker.prefill_done(id, at(3)));
    check(&tracker, 0, 0, 0);
}

#[test]
fn a_common_prefix_counts_once() {
    let mut tracker = Tracked::new();
    let (long, short) = (sequence(0, 6), sequence(0, 4));
    let footprint = |shared| Footprint { shared, own_blocks: 1, ..Footprint::default() };
    let first = tracker.book(1, footprint(&long), at(0));
    let second = tracker.book(1, footprint(&short), at(0));
    check(&tracker, 2, 0, 8);
    assert_eq!(tracker.overlap(1, &sequence(0, 9)), 6);
    assert_eq!(tracker.overlap(2, &sequence(0, 9)), 0);
    tracker.release(first);
    check(&tracker, 1, 0, 5);
    tracker.release(second);
    check(&tracker, 0, 0, 0);
}

#[test]
fn own_blocks_fade_as_the_expected_output_comes() {
    let mut tracker = Tracked::new();
    let footprint =
        Footprint { own_blocks: 2, expected_output_blocks: Some(4), ..Footprint::default() };
    let id = tracker.book(1, footprint, at(0));
    // (2 + n) * (4 - n) / 4, rounded up.
    for blocks in [2, 3, 2, 2, 0, 0] {
        check(&tracker, 1, 0, blocks);
        tracker.grow(id, at(0));
    }
    tracker.release(id);
    check(&tracker, 0, 0, 0);
}

#[test]
fn progress_renews_a_booking_and_silence_ends_it() {
    let mut tracker = Tracked::new();
    let (long, lost) = (Footprint::default(), Footprint::default());
    let long = tracker.book(1, long, at(0));
    tracker.book(1, lost, at(10));
    tracker.grow(long, at(60));
    assert_eq!(tracker.0.expire(at(109)), 0);
    assert_eq!(tracker.0.expire(at(110)), 1);
    check(&tracker, 1, 0, 1);
    assert_eq!(tracker.0.expire(at(160)), 1);
    check(&tracker, 0, 0, 0);
    assert_eq!((tracker.0.bookings(), tracker.0.expired()), (0, 2));
}

#[test]
fn a_worker_takes_its_bookings_with_it() {
    let mut tracker = Tracked::new();
    let shared = sequence(0, 3);
    let footprint = Footprint { shared: &shared, ..Footprint::default() };
    let gone = tracker.book(1, footprint, at(0));
    let stays = tracker.book(2, footprint, at(0));
    tracker.0.clear(1, at(0));
    assert!(!tracker.release(gone));
    let next = tracker.book(1, footprint, at(0));
    check(&tracker, 1, 0, 3);
    assert!(next > stays, "an identity is never used twice");
}

/// The obvious tracker: a list of what runs, summed up anew for each question.
struct RunningPrefixes {
    id: BookingId,
    worker: u32,
    shared: Vec<SequenceHash>,
    own_blocks: u64,
    prefill_tokens: u64,
    until: Time,
}

fn sums(running: &[RunningPrefixes], worker: u32) -> InFlight {
    let here = || running.iter().filter(|running| running.worker == worker);
    let shared: HashSet<_> = here().flat_map(|running| &running.shared).collect();
    InFlight {
        requests: here().count() as u64,
        prefill_tokens: here().map(|running| running.prefill_tokens).sum(),
        blocks: shared.len() as u64 + here().map(|running| running.own_blocks).sum::<u64>(),
    }
}

/// One random step of one random life of a request.
fn step(tracker: &mut Tracked, running: &mut Vec<RunningPrefixes>, random: &mut Random, now: Time) {
    let chosen = random.below(running.len());
    match random.below(if running.len() > 40 { 16 } else { 20 }) {
        0..6 if !running.is_empty() => {
            assert!(tracker.release(running.swap_remove(chosen).id));
        }
        6..10 if !running.is_empty() => {
            assert!(tracker.prefill_done(running[chosen].id, now));
            running[chosen].prefill_tokens = 0;
            running[chosen].until = now.after(LEASE);
        }
        10..14 if !running.is_empty() => {
            assert!(tracker.grow(running[chosen].id, now));
            running[chosen].own_blocks += 1;
            running[chosen].until = now.after(LEASE);
        }
        15 if !running.is_empty() => {
            let to = random.below(3) as u32;
            assert!(tracker.0.moved(running[chosen].id, to, now));
            (running[chosen].worker, running[chosen].until) = (to, now.after(LEASE));
        }
        14 if random.below(20) == 0 => {
            let down = random.below(3) as u32;
            tracker.0.clear(down, now);
            running.retain(|running| running.worker != down);
        }
        _ => {
            let worker = random.below(3) as u32;
            let shared = sequence(random.below(2) as u64 * 100, random.below(12) as u64);
            let (own_blocks, prefill_tokens) = (random.below(3) as u32, random.below(99) as u64);
            let footprint = Footprint {
                shared: &shared,
                own_blocks,
                prefill_tokens,
                prompt_tokens: 100,
                loads: false,
                expected_output_blocks: None,
            };
            let id = tracker.book(worker, footprint, now);
            let (own_blocks, until) = (own_blocks.into(), now.after(LEASE));
            running.push(RunningPrefixes { id, worker, shared, own_blocks, prefill_tokens, until });
        }
    }
}

#[test]
fn nothing_leaks_over_many_random_lives() {
    let (mut tracker, mut running, mut random) = (Tracked::new(), Vec::new(), Random::new(7));
    let mut now = at(0);
    for count in 0..1_000_000 {
        step(&mut tracker, &mut running, &mut random, now);
        if random.below(4) == 0 {
            now = now.after(Duration::from_millis(random.below(6) as u64));
            let before = running.len();
            running.retain(|running| running.until > now);
            assert_eq!(tracker.0.expire(now), (before - running.len()) as u64);
        }
        if count % 64 == 0 {
            let number = random.below(3) as u32;
            assert_eq!(tracker.in_flight(number), sums(&running, number));
        }
        assert_eq!(tracker.0.bookings(), running.len());
    }
    assert!(tracker.0.expired() > 0 && !running.is_empty());
    for running in running {
        assert!(tracker.release(running.id));
    }
    for number in 0..3 {
        assert_eq!(tracker.in_flight(number), InFlight::default());
    }
}

proptest! {
    #[test]
    fn agrees_with_sums_made_anew(seed: u64, steps in 1usize..200) {
        let (mut tracker, mut running) = (Tracked::new(), Vec::new());
        let mut random = Random::new(seed);
        for count in 0..steps {
            step(&mut tracker, &mut running, &mut random, at(count as u64 / 100));
            for number in 0..3 {
                prop_assert_eq!(tracker.in_flight(number), sums(&running, number));
            }
        }
    }

    /// Output that is expected to end fades, and still nothing is left of it.
    #[test]
    fn fading_blocks_balance(
        lives in vec((0u32..9, any::<Option<u8>>(), 0u32..40), 1..20),
    ) {
        let mut tracker = Tracked::new();
        let mut ids = Vec::new();
        for (own_blocks, expected, grows) in lives {
            let expected_output_blocks = expected.map(u32::from);
            let footprint =
                Footprint { own_blocks, expected_output_blocks, ..Footprint::default() };
            let id = tracker.book(1, footprint, at(0));
            (0..grows).for_each(|_| assert!(tracker.grow(id, at(0))));
            ids.push(id);
        }
        ids.into_iter().for_each(|id| assert!(tracker.release(id)));
        prop_assert_eq!(tracker.in_flight(1), InFlight::default());
    }
}

/// Books a prompt of so many tokens.
fn book_tokens(tracker: &mut Tracked, tokens: u64, now: Time) -> BookingId {
    tracker.book(1, Footprint { prefill_tokens: tokens, ..Footprint::default() }, now)
}

#[test]
fn a_backlog_shrinks_as_its_first_prompt_is_computed_and_no_further() {
    let mut tracker = Tracked::new();
    let first = book_tokens(&mut tracker, 100, at(0));
    let second = book_tokens(&mut tracker, 50, at(0));
    let third = book_tokens(&mut tracker, 30, at(0));
    let speed = Speed { prefill_token_s: 1e-3, ..Speed::default() };
    let backlog = |tracker: &Tracked, ms: u64| {
        let left = tracker.0.loads().sums_of(1).backlog(ms as f64 / 1e3, &speed);
        (left.tokens * 1e6).round() / 1e6
    };
    assert_eq!([0, 40, 100, 5000].map(|ms| backlog(&tracker, ms)), [180.0, 140.0, 80.0, 80.0]);
    let unknown = tracker.0.loads().sums_of(1).backlog(5.0, &Speed::default());
    assert_eq!(unknown.tokens, 180.0, "its speed is unknown");
    assert!(tracker.release(second));
    assert!(tracker.prefill_done(first, at(90)));
    assert_eq!([90, 100, 900].map(|ms| backlog(&tracker, ms)), [30.0, 20.0, 0.0]);
    assert!(tracker.release(third));
    assert_eq!(backlog(&tracker, 900), 0.0);
}

#[test]
fn a_backlog_knows_how_long_prompts_are() {
    let mut tracker = Tracked::new();
    let long =
        |prompt_tokens| Footprint { prefill_tokens: 10, prompt_tokens, ..Footprint::default() };
    let ids = [long(10), long(1_000)].map(|footprint| tracker.book(1, footprint, at(0)));
    let backlog = |tracker: &Tracked| tracker.0.loads().sums_of(1).backlog(0.0, &Speed::default());
    assert_eq!(backlog(&tracker), Work { tokens: 20.0, pairs: 50.0 + 9_950.0 });
    tracker.prefill_done(ids[0], at(1));
    assert_eq!(backlog(&tracker), Work { tokens: 10.0, pairs: 9_950.0 });
    assert_eq!(tracker.0.loads().computed(1), Work { tokens: 10.0, pairs: 50.0 });
    tracker.release(ids[1]);
    assert_eq!(backlog(&tracker), Work::default());
}

#[test]
fn a_prompt_that_never_ends_does_not_gather_those_behind_it() {
    let mut tracker = Tracked::new();
    book_tokens(&mut tracker, 1, at(0));
    for _ in 0..10_000 {
        let id = book_tokens(&mut tracker, 1, at(0));
        assert!(tracker.release(id));
    }
    assert!(tracker.0.loads().waiting(1) < 64);
}

#[test]
fn times_to_first_tokens_and_between_them_are_learnt() {
    let mut tracker = Tracked::new();
    for count in 0..400 {
        let (start, tokens) = (count * 1000, 100 + count % 7 * 100);
        let id = book_tokens(&mut tracker, tokens, at(start));
        // 20 ms, and 0.2 ms a token; 5 ms between tokens.
        assert!(tracker.prefill_done(id, at(start + 20 + tokens / 5)));
        assert!(tracker.grow(id, at(start + 20 + tokens / 5 + 80)));
        assert!(tracker.release(id));
    }
    let speed = tracker.1.speed(1);
    let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.05;
    assert!(near(speed.prefill(Work { tokens: 600.0, pairs: 0.0 }), 0.14), "{speed:?}");
    assert!(near(speed.step(1.0, 1.0), 5e-3), "{speed:?}");
}

#[test]
fn everybodys_share_is_told_by_requests() {
    let mut tracker = Tracked::new();
    assert_eq!(tracker.0.loads().everybody(), 1.0);
    let id = tracker.book(1, Footprint::default(), at(0));
    let others = InFlight { requests: 1, ..InFlight::default() };
    tracker.0.loads_mut().set_peers(2, others, 0.0);
    tracker.0.loads_mut().report(1, others, at(0), LEASE);
    assert_eq!(tracker.0.loads().everybody(), 3.0);
    tracker.0.loads_mut().set_peers(2, InFlight { requests: 1 << 40, ..others }, 0.0);
    assert_eq!(tracker.0.loads().everybody(), 64.0);
    tracker.0.loads_mut().set_peers(2, InFlight::default(), 0.0);
    tracker.0.expire(at(101));
    assert_eq!(tracker.0.loads().everybody(), 1.0);
    tracker.release(id);
    assert_eq!(tracker.0.loads().everybody(), 1.0);
}
