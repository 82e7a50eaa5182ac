use super::*;
use proptest::{collection::vec, prelude::*};

/// Compute that blocks outside the device save, by their weights.
fn by_weights(weights: &WeightSettings, [_, host, disk, remote]: [u32; 4]) -> f64 {
    let WeightSettings { host_cache_hit_weight, disk_cache_hit_weight, .. } = *weights;
    host_cache_hit_weight * f64::from(host)
        + disk_cache_hit_weight * f64::from(disk)
        + weights.shared_cache_multiplier * f64::from(remote)
}

/// A prompt of 160 tokens in 10 blocks; 2 blocks in use elsewhere.
fn inputs(by_medium: [u32; 4], backlog_tokens: u64) -> Inputs {
    let backlog_tokens = backlog_tokens as f64;
    Inputs {
        prompt_tokens: 160,
        prompt_blocks: 10,
        block_size: 16,
        overlap: Overlap::new(by_medium),
        outer_credit: by_weights(&DEFAULT(), by_medium),
        backlog_tokens,
        least_backlog_tokens: 0.0,
        potential_blocks: 12.0,
        requests: 3.0,
    }
}

#[track_caller]
fn check(settings: WeightSettings, inputs: Inputs, expected: f64) {
    let total = score(&Weights::new(settings).unwrap(), &inputs).total;
    assert!((total - expected).abs() < 1e-9, "{total} is not {expected}");
}

const DEFAULT: fn() -> WeightSettings = WeightSettings::default;

#[test]
fn an_idle_worker_costs_the_prompt_twice() {
    check(DEFAULT(), inputs([0; 4], 0), 10.0 + 12.0);
}

#[test]
fn each_medium_saves_its_share() {
    check(DEFAULT(), inputs([4, 0, 0, 0], 0), 6.0 + 12.0);
    check(DEFAULT(), inputs([4, 2, 4, 0], 0), 10.0 - 4.0 - 1.5 - 1.0 + 12.0);
    check(DEFAULT(), inputs([0, 0, 0, 4], 0), 8.0 + 12.0);
}

#[test]
fn backlog_costs_and_credit_may_pay_for_it() {
    check(DEFAULT(), inputs([4, 0, 0, 0], 80), 15.0 - 4.0 + 12.0);
    let settings = WeightSettings { overlap_score_credit: 100.0, ..DEFAULT() };
    check(settings, inputs([4, 0, 0, 0], 80), 12.0);
}

#[test]
fn weights_scale_prefill_and_requests() {
    let settings =
        WeightSettings { prefill_load_scale: 2.0, decode_active_request_weight: 5.0, ..DEFAULT() };
    check(settings, inputs([4, 0, 0, 0], 0), 12.0 + 12.0 + 15.0);
}

#[test]
fn credit_decays_with_the_backlog_beyond_the_least() {
    let settings = WeightSettings { overlap_score_credit_decay: 1.0, ..DEFAULT() };
    // 160 tokens of excess are 10 blocks, one request's length: half of the credit is left.
    check(settings, inputs([4, 2, 0, 0], 160), 20.0 - 2.0 - 1.5 + 12.0);
    let level = Inputs { least_backlog_tokens: 160.0, ..inputs([4, 2, 0, 0], 160) };
    check(settings, level, 20.0 - 4.0 - 1.5 + 12.0);
}

#[test]
fn what_was_measured_counts_in_place_of_weights() {
    let measured = Inputs { outer_credit: 1.25, ..inputs([4, 2, 1, 0], 0) };
    check(DEFAULT(), measured, 10.0 - 4.0 - 1.25 + 12.0);
    let lent = Inputs { outer_credit: 3.0, ..inputs([0; 4], 0) };
    check(DEFAULT(), lent, 10.0 - 3.0 + 12.0);
}

#[test]
fn without_prefill_the_credit_is_taken_from_decode() {
    let settings = WeightSettings { track_prefill_tokens: false, ..DEFAULT() };
    check(settings, inputs([4, 0, 0, 0], 80), 8.0);
    check(settings, inputs([0; 4], 80), 12.0);
    let settings = WeightSettings { overlap_score_credit: 9.0, ..settings };
    check(settings, inputs([4, 0, 0, 0], 80), 0.0);
}

#[test]
fn all_unusable_weights_are_named_at_once() {
    let settings = WeightSettings {
        temperature: f64::NAN,
        prefill_load_scale: -1.0,
        host_cache_hit_weight: f64::INFINITY,
        disk_cache_hit_weight: 1_000_001.0,
        ..DEFAULT()
    };
    let text = Weights::new(settings).unwrap_err().to_string();
    assert_eq!(
        text,
        "host_cache_hit_weight: inf is not in 0..=1000000; \
         disk_cache_hit_weight: 1000001 is not in 0..=1000000; \
         prefill_load_scale: -1 is not in 0..=1000000; \
         temperature: NaN is not in 0..=1000000"
    );
}

#[test]
fn a_request_overrides_what_it_names_and_is_checked_too() {
    let overrides = Overrides { temperature: Some(0.5), ..Overrides::default() };
    let weights = Weights::default().overridden(&overrides).unwrap();
    assert_eq!(*weights.settings(), WeightSettings { temperature: 0.5, ..DEFAULT() });
    let overrides = Overrides { overlap_score_credit: Some(f64::NAN), ..overrides };
    let InvalidWeights(invalid) = Weights::default().overridden(&overrides).unwrap_err();
    assert_eq!(invalid.len(), 1);
    assert_eq!(Weights::default().overridden(&Overrides::default()), Ok(Weights::default()));
}

/// How often each of `costs` is chosen in 10,000 draws.
fn draws(costs: &[f64], temperature: f64) -> Vec<u32> {
    let mut counts = vec![0; costs.len()];
    for seed in 0..10_000 {
        let chosen = choose(costs, temperature, &mut Random::new(seed)).unwrap();
        counts[chosen] += 1;
    }
    counts
}

#[test]
fn equal_costs_are_chosen_alike() {
    for counts in [draws(&[3.0, 1.0, 1.0, 1.0], 0.0), draws(&[2.0; 3], 1.0)] {
        let chosen = counts.iter().filter(|&&count| count > 0);
        assert!(chosen.clone().all(|count| (3_133..3_533).contains(count)), "{counts:?}");
        assert_eq!(chosen.count(), 3);
    }
}

#[test]
fn temperature_spreads_as_softmax_does() {
    let counts = draws(&[10.0, 20.0, 15.0], 0.5);
    // exp(0), exp(-2), exp(-1) over their sum.
    for (count, expected) in counts.into_iter().zip([6_652, 900, 2_447]) {
        assert!(i64::from(count).abs_diff(expected) < 200, "{count} is far from {expected}");
    }
}

#[test]
fn nothing_is_chosen_of_nothing() {
    assert_eq!(choose(&[], 0.0, &mut Random::new(0)), None);
    assert_eq!(choose(&[], 1.0, &mut Random::new(0)), None);
    let none = f64::INFINITY;
    assert_eq!(choose(&[none, none], 0.0, &mut Random::new(0)), None);
    assert_eq!(choose(&[none, 1.0, none], 0.0, &mut Random::new(0)), Some(1));
}

proptest! {
    #[test]
    fn any_weights_give_a_finite_cost_that_no_more_overlap_raises(
        weights in vec(0.0..=Weights::MAX, 8),
        track_prefill_tokens: bool,
        by_medium in [0u32..100, 0u32..100, 0u32..100, 0u32..100],
        backlog_tokens: u64,
        least_backlog_tokens: u64,
        potential_blocks: u64,
    ) {
        let weights = Weights::new(WeightSettings {
            overlap_score_credit: weights[0],
            overlap_score_credit_decay: weights[1],
            host_cache_hit_weight: weights[2],
            disk_cache_hit_weight: weights[3],
            shared_cache_multiplier: weights[4],
            prefill_load_scale: weights[5],
            decode_active_request_weight: weights[6],
            temperature: weights[7],
            track_prefill_tokens,
            ..WeightSettings::default()
        }).unwrap();
        let (least_backlog_tokens, potential_blocks) =
            (least_backlog_tokens as f64, potential_blocks as f64);
        let outer_credit = by_weights(weights.settings(), by_medium);
        let base = Inputs { outer_credit, least_backlog_tokens, potential_blocks, ..inputs(by_medium, backlog_tokens) };
        let score_of = |inputs: &Inputs| score(&weights, inputs);
        prop_assert!(score_of(&base).total.is_finite());
        let none = Inputs { overlap: Overlap::default(), outer_credit: 0.0, ..base };
        prop_assert!(score_of(&base).total <= score_of(&none).total);
    }

    #[test]
    fn the_coldest_choice_is_a_least_cost(costs in vec(0.0..5.0f64, 1..20), seed: u64) {
        let costs: Vec<f64> = costs.into_iter().map(f64::round).collect();
        let chosen = choose(&costs, 0.0, &mut Random::new(seed)).unwrap();
        prop_assert!(costs.iter().all(|&cost| cost >= costs[chosen]));
    }

    #[test]
    fn any_temperature_chooses_something(
        costs in vec(0.0..1e30f64, 1..20), temperature in 0.0..Weights::MAX, seed: u64,
    ) {
        let chosen = choose(&costs, temperature, &mut Random::new(seed));
        prop_assert!(chosen.is_some_and(|chosen| chosen < costs.len()));
    }
}
