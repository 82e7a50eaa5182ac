use super::*;
use crate::random::Random;
use proptest::{collection::vec, prelude::*};

const MIN: u64 = 20;

/// So many tokens of a prompt that nothing comes before.
fn work(tokens: f64) -> Work {
    Work::of(tokens, tokens)
}

/// A learner that saw an engine with 10 ms + 0.1 ms a token + 1 us for 100 pairs, and steps of 5 ms + 0.1 ms a request
/// + 2 us a block; the worker in slot 1 takes three times as long.
fn taught() -> Learner {
    let (mut learner, mut random) = (Learner::new(MIN), Random::new(3));
    for count in 0..4000u32 {
        let slot = count % 4;
        let slow = if slot == 1 { 3.0 } else { 1.0 };
        let tokens = 8000.0 * random.unit();
        let seconds = slow * (0.01 + 1e-4 * tokens + 1e-8 * work(tokens).pairs);
        learner.first_token(slot, FirstToken { work: work(tokens), seconds });
        let (requests, blocks) = (64.0 * random.unit(), 9000.0 * random.unit());
        let (step, prefilled) = (5e-3 + 1e-4 * requests + 2e-6 * blocks, 500.0 * random.unit());
        let seconds = slow * (16.0 * step + 1e-4 * prefilled);
        let prefilled = Work { tokens: prefilled, pairs: 0.0 };
        learner.gap(slot, Gap { tokens: 16.0, seconds, requests, blocks, prefilled });
    }
    learner
}

#[track_caller]
fn check(found: f64, wanted: f64, share: f64) {
    assert!((found / wanted - 1.0).abs() < share, "{found} is far from {wanted}");
}

#[test]
fn speeds_are_learnt_and_a_straggler_stands_out() {
    let learner = taught();
    assert!(learner.is_ready());
    let (good, slow) = (learner.speed(0), learner.speed(1));
    check(good.prefill(work(4000.0)), 0.49, 0.15);
    check(slow.prefill(work(4000.0)), 1.47, 0.15);
    // Of twice the length it is more than twice the time.
    check(good.prefill(work(8000.0)), 1.13, 0.15);
    check(good.step(32.0, 4000.0), 16.2e-3, 0.15);
    check(slow.step(32.0, 4000.0), 48.6e-3, 0.15);
    // An unknown one is like all together.
    let unknown = learner.speed(99).prefill(work(4000.0));
    assert!(good.prefill(work(4000.0)) < unknown && unknown < slow.prefill(work(4000.0)));
}

#[test]
fn a_worker_that_is_replaced_starts_anew() {
    let mut learner = taught();
    learner.forget(1);
    assert_eq!(learner.speed(1), learner.speed(99));
}

#[test]
fn nothing_is_said_before_enough_is_seen() {
    let mut learner = Learner::new(MIN);
    for _ in 0..MIN {
        assert!(!learner.is_ready());
        assert_eq!(learner.speed(0), Speed::default());
        assert_eq!(learner.transfer(0, 1, 10.0), None);
        learner.first_token(0, FirstToken { work: work(10.0), seconds: 0.1 });
        let gap =
            Gap { tokens: 8.0, seconds: 0.1, requests: 1.0, blocks: 1.0, prefilled: work(0.0) };
        learner.gap(0, gap);
        learner.transferred(0, 1, 10.0, 0.01);
    }
    assert!(learner.is_ready() && learner.transfer(0, 1, 10.0).is_some());
}

#[test]
fn a_slow_link_is_told_from_others() {
    let mut learner = Learner::new(MIN);
    for count in 0..400u32 {
        let blocks = f64::from(count % 50 + 1) * 20.0;
        let slow = if count.is_multiple_of(2) { 4.0 } else { 1.0 };
        learner.transferred(0, 1 + count % 2, blocks, slow * (1e-3 + 1e-4 * blocks));
    }
    let seconds = |to| learner.transfer(0, to, 500.0).expect("enough was seen");
    assert!(seconds(1) > 2.5 * seconds(2));
}

#[test]
fn absurd_times_are_ignored() {
    let mut learner = taught();
    let before = learner.speed(0);
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
        learner.first_token(0, FirstToken { work: work(100.0), seconds });
        let gap = Gap { tokens: 1.0, seconds, requests: 1.0, blocks: 1.0, prefilled: work(0.0) };
        learner.gap(0, gap);
        learner.transferred(0, 1, 5.0, seconds);
    }
    assert_eq!(learner.speed(0), before);
}

#[test]
fn arrivals_and_answers_are_averaged() {
    let mut learner = Learner::new(MIN);
    assert_eq!((learner.arrivals_per_s(), learner.output_tokens()), (0.0, None));
    (0..2000).for_each(|n| learner.arrived(f64::from(n) * 0.02));
    (0..2000).for_each(|n| learner.answered(100 + 100 * (n % 2)));
    check(learner.arrivals_per_s(), 50.0, 0.01);
    check(learner.output_tokens().expect("some ended"), 150.0, 0.02);
}

proptest! {
    /// Whatever an engine or a clock does, speeds are finite, and work never takes less than none.
    #[test]
    fn hostile_timings_are_contained(
        samples in vec((0u32..4, 0.0..1e9f64, -1.0..1e9f64, 0.0..1e6f64), 0..300),
    ) {
        let mut learner = Learner::new(4);
        for (slot, tokens, seconds, other) in samples {
            learner.first_token(slot, FirstToken { work: work(tokens), seconds });
            let prefilled = work(other);
            let gap = Gap { tokens, seconds, requests: other, blocks: tokens, prefilled };
            learner.gap(slot, gap);
            learner.transferred(slot, 3, tokens, seconds);
            let speed = learner.speed(slot);
            let (prefill, step) = (speed.prefill(work(1e6)), speed.step(1e3, 1e6));
            prop_assert!(prefill.is_finite() && prefill >= 0.0 && step.is_finite() && step >= 0.0);
            let transfer = learner.transfer(slot, 3, 1e6).unwrap_or_default();
            prop_assert!(transfer.is_finite() && transfer >= 0.0);
        }
    }
}
