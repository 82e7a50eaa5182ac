use super::*;
use crate::random::Random;
use proptest::{collection::vec, prelude::*};
use stator_protos::WorkerId;
use std::collections::HashSet;

const LEASE: Duration = Duration::from_millis(100);

fn worker(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number), rank: 0 }
}

fn sequence(from: u64, blocks: u64) -> Vec<SequenceHash> {
    (from..from + blocks).map(SequenceHash).collect()
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

#[track_caller]
fn check(tracker: &Tracker, requests: u64, prefill_tokens: u64, blocks: u64) {
    let expected = InFlight { requests, prefill_tokens, blocks };
    assert_eq!(tracker.in_flight(worker(1)), expected);
}

#[test]
fn a_request_counts_from_its_booking_to_its_release() {
    let mut tracker = Tracker::new(LEASE);
    let shared = sequence(0, 4);
    let footprint =
        Footprint { shared: &shared, own_blocks: 1, prefill_tokens: 70, ..Footprint::default() };
    let id = tracker.book(worker(1), footprint, at(0));
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
    let mut tracker = Tracker::new(LEASE);
    let (long, short) = (sequence(0, 6), sequence(0, 4));
    let footprint = |shared| Footprint { shared, own_blocks: 1, ..Footprint::default() };
    let first = tracker.book(worker(1), footprint(&long), at(0));
    let second = tracker.book(worker(1), footprint(&short), at(0));
    check(&tracker, 2, 0, 8);
    assert_eq!(tracker.overlap(worker(1), &sequence(0, 9)), 6);
    assert_eq!(tracker.overlap(worker(2), &sequence(0, 9)), 0);
    tracker.release(first);
    check(&tracker, 1, 0, 5);
    tracker.release(second);
    check(&tracker, 0, 0, 0);
}

#[test]
fn own_blocks_fade_as_the_expected_output_comes() {
    let mut tracker = Tracker::new(LEASE);
    let footprint =
        Footprint { own_blocks: 2, expected_output_blocks: Some(4), ..Footprint::default() };
    let id = tracker.book(worker(1), footprint, at(0));
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
    let mut tracker = Tracker::new(LEASE);
    let (long, lost) = (Footprint::default(), Footprint::default());
    let long = tracker.book(worker(1), long, at(0));
    tracker.book(worker(1), lost, at(10));
    tracker.grow(long, at(60));
    assert_eq!(tracker.expire(at(109)), 0);
    assert_eq!(tracker.expire(at(110)), 1);
    check(&tracker, 1, 0, 1);
    assert_eq!(tracker.expire(at(160)), 1);
    check(&tracker, 0, 0, 0);
    assert_eq!((tracker.bookings(), tracker.expired()), (0, 2));
}

#[test]
fn a_worker_takes_its_bookings_with_it() {
    let mut tracker = Tracker::new(LEASE);
    let shared = sequence(0, 3);
    let footprint = Footprint { shared: &shared, ..Footprint::default() };
    let gone = tracker.book(worker(1), footprint, at(0));
    let stays = tracker.book(worker(2), footprint, at(0));
    tracker.remove_worker(worker(1));
    assert!(!tracker.release(gone));
    let next = tracker.book(worker(1), footprint, at(0));
    check(&tracker, 1, 0, 3);
    assert!(next > stays, "an identity is never used twice");
}

/// The obvious tracker: a list of what runs, summed up anew for each question.
struct Running {
    id: BookingId,
    worker: WorkerRank,
    shared: Vec<SequenceHash>,
    own_blocks: u64,
    prefill_tokens: u64,
    until: Time,
}

fn sums(running: &[Running], worker: WorkerRank) -> InFlight {
    let here = || running.iter().filter(|running| running.worker == worker);
    let shared: HashSet<_> = here().flat_map(|running| &running.shared).collect();
    InFlight {
        requests: here().count() as u64,
        prefill_tokens: here().map(|running| running.prefill_tokens).sum(),
        blocks: shared.len() as u64 + here().map(|running| running.own_blocks).sum::<u64>(),
    }
}

/// One random step of one random life of a request.
fn step(tracker: &mut Tracker, running: &mut Vec<Running>, random: &mut Random, now: Time) {
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
        14 if random.below(20) == 0 => {
            let down = worker(random.below(3) as u64);
            tracker.remove_worker(down);
            running.retain(|running| running.worker != down);
        }
        _ => {
            let worker = worker(random.below(3) as u64);
            let shared = sequence(random.below(2) as u64 * 100, random.below(12) as u64);
            let (own_blocks, prefill_tokens) = (random.below(3) as u32, random.below(99) as u64);
            let footprint = Footprint {
                shared: &shared,
                own_blocks,
                prefill_tokens,
                expected_output_blocks: None,
            };
            let id = tracker.book(worker, footprint, now);
            let (own_blocks, until) = (own_blocks.into(), now.after(LEASE));
            running.push(Running { id, worker, shared, own_blocks, prefill_tokens, until });
        }
    }
}

#[test]
fn nothing_leaks_over_many_random_lives() {
    let (mut tracker, mut running, mut random) = (Tracker::new(LEASE), Vec::new(), Random::new(7));
    let mut now = at(0);
    for count in 0..120_000 {
        step(&mut tracker, &mut running, &mut random, now);
        if random.below(4) == 0 {
            now = now.after(Duration::from_millis(random.below(6) as u64));
            let before = running.len();
            running.retain(|running| running.until > now);
            assert_eq!(tracker.expire(now), (before - running.len()) as u64);
        }
        if count % 8 == 0 {
            let number = random.below(3) as u64;
            assert_eq!(tracker.in_flight(worker(number)), sums(&running, worker(number)));
        }
        assert_eq!(tracker.bookings(), running.len());
    }
    assert!(tracker.expired() > 0 && !running.is_empty());
    for running in running {
        assert!(tracker.release(running.id));
    }
    for number in 0..3 {
        assert_eq!(tracker.in_flight(worker(number)), InFlight::default());
    }
}

proptest! {
    #[test]
    fn agrees_with_sums_made_anew(seed: u64, steps in 1usize..200) {
        let (mut tracker, mut running) = (Tracker::new(LEASE), Vec::new());
        let mut random = Random::new(seed);
        for count in 0..steps {
            step(&mut tracker, &mut running, &mut random, at(count as u64 / 100));
            for number in 0..3 {
                prop_assert_eq!(tracker.in_flight(worker(number)), sums(&running, worker(number)));
            }
        }
    }

    /// Output that is expected to end fades, and still nothing is left of it.
    #[test]
    fn fading_blocks_balance(
        lives in vec((0u32..9, any::<Option<u8>>(), 0u32..40), 1..20),
    ) {
        let mut tracker = Tracker::new(LEASE);
        let mut ids = Vec::new();
        for (own_blocks, expected, grows) in lives {
            let expected_output_blocks = expected.map(u32::from);
            let footprint =
                Footprint { own_blocks, expected_output_blocks, ..Footprint::default() };
            let id = tracker.book(worker(1), footprint, at(0));
            (0..grows).for_each(|_| assert!(tracker.grow(id, at(0))));
            ids.push(id);
        }
        ids.into_iter().for_each(|id| assert!(tracker.release(id)));
        prop_assert_eq!(tracker.in_flight(worker(1)), InFlight::default());
    }
}
