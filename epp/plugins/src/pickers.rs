//! Pickers choose among scored endpoints. All take `maxNumOfEndpoints`, 1 by default: the first is
//! the choice, the others are fallbacks.

use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::Random;
use stator_epp_scheduler::plugin::{Picker, PluginParts};
use std::sync::Arc;

/// `max-score-picker`: the highest scores; equal ones in random order.
pub(crate) fn max_score(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    picker(params, best)
}

/// `random-picker`: any, whatever the scores.
pub(crate) fn random(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    picker(params, |scores, count, random| {
        let mut order = shuffled(scores.len(), random);
        order.truncate(count);
        order
    })
}

/// `weighted-random-picker`: any, with a chance in proportion to its score. Those with a score of
/// 0 come last, in random order.
///
/// Source: weighted sampling without replacement by keys `U^(1/w)` of Efraimidis and Spirakis.
pub(crate) fn weighted_random(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    picker(params, |scores, count, random| {
        // The logarithm of the key, which orders alike and does not underflow for small scores.
        let mut key = |score: f64| match score > 0.0 {
            true => (1.0 - random.unit()).ln() / score,
            false => f64::NEG_INFINITY,
        };
        let keys: Vec<_> = scores.iter().map(|score| key(*score)).collect();
        best(&keys, count, random)
    })
}

/// Chooses positions, best first, the second argument at most.
type Choose = fn(&[f64], usize, &mut Random) -> Vec<usize>;

struct First {
    count: usize,
    choose: Choose,
}

fn picker(params: &mut Params<'_>, choose: Choose) -> PluginParts {
    let count = params.whole("maxNumOfEndpoints", 1, 1..=1000) as usize;
    PluginParts { picker: Some(Arc::new(First { count, choose })), ..PluginParts::default() }
}

impl Picker for First {
    fn pick(&self, scores: &[f64], random: &mut Random) -> Vec<usize> {
        (self.choose)(scores, self.count, random)
    }
}

/// The highest numbers in their order, equal ones in random order.
fn best(keys: &[f64], count: usize, random: &mut Random) -> Vec<usize> {
    if count == 1 {
        return highest(keys, random).into_iter().collect();
    }
    let mut order = shuffled(keys.len(), random);
    let higher = |a: &usize, b: &usize| keys[*b].total_cmp(&keys[*a]);
    // Of many endpoints one is wanted: those behind it need no order.
    if count < order.len() {
        order.select_nth_unstable_by(count, higher);
        order.truncate(count);
    }
    order.sort_unstable_by(higher);
    order
}

/// One of the highest numbers; without an order of all, and with chance asked once.
fn highest(keys: &[f64], random: &mut Random) -> Option<usize> {
    let max = keys.iter().fold(f64::NEG_INFINITY, |max, &key| if key > max { key } else { max });
    let ties = keys.iter().filter(|key| **key == max).count();
    let nth = random.below(ties);
    keys.iter().enumerate().filter(|(_, key)| **key == max).nth(nth).map(|(at, _)| at)
}

fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<_> = (0..count).collect();
    random.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_errors, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::Random;

    /// How often each is picked first in 10,000 picks.
    fn shares(type_name: &str, scores: &[f64]) -> Vec<f64> {
        let picker = made(type_name, Value::Null).picker.expect("it is a picker");
        let mut random = Random::new(7);
        let mut counts = vec![0.0; scores.len()];
        for _ in 0..10_000 {
            counts[picker.pick(scores, &mut random)[0]] += 1e-4;
        }
        counts
    }

    fn check(type_name: &str, scores: &[f64], wanted: &[f64]) {
        let shares = shares(type_name, scores);
        let alike = shares.iter().zip(wanted).all(|(share, wanted)| (share - wanted).abs() < 0.03);
        assert!(alike, "{shares:?} is not {wanted:?}");
    }

    #[test]
    fn the_highest_score_is_picked_and_ties_are_broken_by_chance() {
        check("max-score-picker", &[0.1, 0.9, 0.5], &[0.0, 1.0, 0.0]);
        check("max-score-picker", &[0.5, 0.5, 0.1, 0.5], &[1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0]);
    }

    #[test]
    fn random_picks_ignore_scores_and_weighted_ones_follow_them() {
        check("random-picker", &[0.1, 0.9], &[0.5, 0.5]);
        check("weighted-random-picker", &[0.1, 0.3, 0.0, 0.6], &[0.1, 0.3, 0.0, 0.6]);
        check("weighted-random-picker", &[0.0, 0.0], &[0.5, 0.5]);
    }

    #[test]
    fn fallbacks_follow_in_order() {
        let parameters = json!({"maxNumOfEndpoints": 3});
        let picker = made("max-score-picker", parameters).picker.expect("it is a picker");
        let mut random = Random::new(1);
        assert_eq!(picker.pick(&[0.1, 0.9, 0.5, 0.0], &mut random), [1, 2, 0]);
        assert_eq!(picker.pick(&[0.1, 0.9], &mut random), [1, 0]);
        assert_eq!(picker.pick(&[], &mut random), [0; 0]);
        let wanted = "maxNumOfEndpoints: 0 is not in 1..=1000";
        check_errors("random-picker", json!({"maxNumOfEndpoints": 0}), &[wanted]);
    }
}
