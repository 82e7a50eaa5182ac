//! Scorers rank endpoints.

pub(crate) mod context_length;
pub(crate) mod header_label;
pub(crate) mod kv_aware;
pub(crate) mod latency;
pub(crate) mod lmetric;
pub(crate) mod load;
pub(crate) mod lora;
pub(crate) mod no_hit_lru;
pub(crate) mod prefix;
pub(crate) mod tokens;

use stator_epp_scheduler::Candidate;
use stator_epp_scheduler::plugin::{PluginParts, Scorer};
use std::sync::Arc;

/// A plug-in that is a scorer and nothing else.
pub(crate) fn scorer(scorer: impl Scorer + 'static) -> PluginParts {
    PluginParts { scorer: Some(Arc::new(scorer)), ..PluginParts::default() }
}

/// Scores the least cost best, linear between: `(max − cost) / (max − min)` over the candidates;
/// all equal, 1. No cost is below 0.
pub(crate) fn least_is_best(
    cost: impl Fn(&Candidate<'_>) -> f64,
    candidates: &[&Candidate<'_>],
    scores: &mut [f64],
) {
    let costs = || candidates.iter().map(|candidate| cost(candidate));
    let min = costs().fold(f64::INFINITY, f64::min);
    let max = costs().fold(0.0, f64::max);
    for (score, cost) in scores.iter_mut().zip(costs()) {
        *score = if max > min { (max - cost) / (max - min) } else { 1.0 };
    }
}
