//! Decisions by what was learnt of times, and bookings that move.

use super::*;
use crate::cost::{CostModel, Prediction};
use crate::split::Split;

fn timed(cost: CostModel, workers: u64) -> Placement {
    placement(PlacementSettings { cost, ..PlacementSettings::default() }, workers)
}

/// Runs requests that take 1 ms a prompt token at worker 0, 5 ms at others, and 10 ms a token.
pub(super) fn teach(placement: &mut Placement, workers: u64) {
    for count in 0..400u64 {
        let start = count * 10_000;
        let (number, tokens) = (count % workers, 100 + count % 9 * 100);
        let pinned = Some(rank(number));
        let asked = PlacementRequest {
            pinned,
            prompt_tokens: tokens as u32,
            ..PlacementRequest::default()
        };
        let decision = placement.pick(&asked, Time::from_millis(start), 0).unwrap();
        let first = start + tokens * if number == 0 { 1 } else { 5 };
        assert!(placement.prefill_done(decision.booking, Time::from_millis(first)));
        assert!(placement.output_block(decision.booking, Time::from_millis(first + 160)));
        assert!(placement.release(decision.booking));
    }
}

pub(super) const TAUGHT: Time = Time(Duration::from_secs(4000));

#[test]
fn a_slow_worker_gets_less_once_it_is_known() {
    for (cost, even) in
        [(CostModel::Blocks, true), (CostModel::Auto, false), (CostModel::Time, false)]
    {
        let mut placement = timed(cost, 2);
        teach(&mut placement, 2);
        let mut counts = [0; 2];
        for number in 0..12 {
            let prompt = sequence(number * 100, 40);
            let decision = placement.pick(&request(&prompt), TAUGHT, number).unwrap();
            counts[decision.worker.worker.0 as usize] += 1;
        }
        assert_eq!(counts[0] == counts[1], even, "{cost}: {counts:?}");
        assert!(counts[0] >= counts[1]);
    }
}

#[test]
fn times_are_told_as_soon_as_they_are_known() {
    let mut placement = timed(CostModel::Blocks, 1);
    let prompt = sequence(0, 40);
    let asked = PlacementRequest { explain: true, ..request(&prompt) };
    assert_eq!(pick(&mut placement, &asked).predicted, None);
    let mut placement = timed(CostModel::Blocks, 1);
    teach(&mut placement, 1);
    let decision = placement.pick(&asked, TAUGHT, 0).unwrap();
    let Prediction { ttft_ms, itl_ms } = decision.predicted.expect("enough was seen");
    assert!((ttft_ms / 640.0 - 1.0).abs() < 0.1, "{ttft_ms}");
    assert!((itl_ms / 10.0 - 1.0).abs() < 0.1, "{itl_ms}");
    assert_eq!(decision.candidates[0].predicted, decision.predicted);
    let speed = placement.speed(rank(0)).expect("the worker is known");
    assert!((speed.prefill_token_s / 1e-3 - 1.0).abs() < 0.1);
    // Half of it is cached.
    placement.apply(rank(0), LIFE, &stored(&prompt[..20]));
    placement.release(decision.booking);
    let cached = placement.pick(&asked, TAUGHT, 0).unwrap().predicted.expect("as before");
    assert!((cached.ttft_ms / 320.0 - 1.0).abs() < 0.1);
}

#[test]
fn a_moved_request_counts_where_it_is() {
    let mut placement = in_mode(Mode::Kv, 2);
    let prompt = sequence(0, 10);
    let asked = PlacementRequest { pinned: Some(rank(0)), ..request(&prompt) };
    let booking = pick(&mut placement, &asked).booking;
    placement.output_tokens(booking, 15, Time::default());
    placement.output_tokens(booking, 2, Time::default());
    let load = placement.in_flight(rank(0));
    assert_eq!(load, InFlight { requests: 1, prefill_tokens: 160, blocks: 11 });
    assert!(placement.moved(booking, rank(1), Time::default()));
    assert_eq!(placement.booked_at(booking), Some(rank(1)));
    assert_eq!(
        (placement.in_flight(rank(0)), placement.in_flight(rank(1))),
        (InFlight::default(), load)
    );
    assert!(!placement.moved(booking, rank(9), Time::default()));
    placement.worker_down(rank(0));
    assert!(placement.release(booking) && !placement.moved(booking, rank(1), Time::default()));
    assert_eq!(placement.in_flight(rank(1)), InFlight::default());
    assert_eq!(placement.booked_at(booking), None);
}

#[test]
fn a_clock_that_goes_back_changes_nothing() {
    let mut placement = timed(CostModel::Auto, 1);
    let decision = placement.pick(&request(&sequence(0, 4)), TAUGHT, 0).unwrap();
    assert!(placement.prefill_done(decision.booking, Time::default()));
    assert!(placement.output_block(decision.booking, Time::default()));
    assert_eq!(placement.expire(Time::default()), 0);
    assert_eq!(placement.speed(rank(0)), Some(crate::Speed::default()));
}

/// A random fleet, random requests with everything that a request can ask, random ends: in the
/// end nothing is booked anywhere.
#[test]
fn nothing_leaks_over_many_random_requests() {
    let mut random = Random::new(11);
    let settings = PlacementSettings {
        cost: CostModel::Auto,
        split: Split::Always,
        ..PlacementSettings::default()
    };
    let mut placement = placement(settings, 8);
    let roles =
        [crate::Role::Aggregated, crate::Role::Prefill, crate::Role::Decode, crate::Role::Encode];
    let mut running: Vec<BookingId> = Vec::new();
    for count in 0..100_000u64 {
        let now = Time::from_millis(count);
        let number = random.below(8) as u64;
        match random.below(100) {
            0 => {
                placement.worker_down(rank(number));
            }
            1 | 2 => {
                placement.worker_up(Worker {
                    generation: Generation(1 + count / 15_000),
                    ..worker(number)
                });
            }
            3 => {
                let role = roles[random.below(4)];
                placement.set_profile(
                    rank(number),
                    crate::Profile { role, ..crate::Profile::default() },
                );
            }
            4..20 => {
                let prompt = sequence(random.below(3) as u64 * 100, random.below(30) as u64);
                let asked = PlacementRequest { encode: random.below(2) == 0, ..request(&prompt) };
                if let Ok(decision) = placement.pick(&asked, now, count) {
                    running.extend(decision.bookings());
                }
            }
            step if !running.is_empty() => {
                let at = random.below(running.len());
                let booking = running[at];
                match step {
                    20..35 => {
                        placement.prefill_done(booking, now);
                    }
                    35..50 => {
                        placement.output_tokens(booking, 9, now);
                    }
                    50..55 => {
                        placement.moved(booking, rank(number), now);
                    }
                    _ => {
                        placement.release(booking);
                        running.swap_remove(at);
                    }
                }
            }
            _ => {}
        }
    }
    assert!(running.len() < 1000);
    for booking in running {
        placement.release(booking);
    }
    assert_eq!(placement.stats().bookings, 0);
    for number in 0..8 {
        assert_eq!(placement.in_flight(rank(number)), InFlight::default());
    }
}

#[test]
fn an_answer_is_as_long_as_expected_within_its_limit() {
    for (expected, most, said) in [
        (None, None, None),
        (None, Some(9), Some(9)),
        (Some(5), None, Some(5)),
        (Some(5), Some(9), Some(5)),
        (Some(12), Some(9), Some(9)),
    ] {
        let asked = PlacementRequest {
            expected_output_tokens: expected,
            max_output_tokens: most,
            ..PlacementRequest::default()
        };
        assert_eq!(asked.said_output_tokens(), said);
    }
}
