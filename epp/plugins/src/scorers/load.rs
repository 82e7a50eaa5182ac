//! Scorers that go by what engines report about their load.

use super::{least_is_best, scorer};
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};

/// `queue-scorer`: prefers short queues.
///
/// Score: `(max − waiting) / (max − min)` over the candidates; all equal, 1.
pub(crate) fn queue(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    scorer(Least(|candidate| candidate.load.waiting))
}

/// `running-requests-size-scorer`: prefers small batches.
///
/// Score: `(max − running) / (max − min)` over the candidates; all equal, 1.
pub(crate) fn running(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    scorer(Least(|candidate| candidate.load.running))
}

/// `kv-cache-utilization-scorer`: prefers free KV cache.
///
/// Score: `1 − usage`.
pub(crate) fn kv_cache_utilization(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    scorer(FreeKvCache)
}

/// `load-aware-scorer`: prefers no queue to any queue, and short ones to long ones.
///
/// Score: 0.5 without a queue, else `0.5 · (1 − min(waiting, threshold) / threshold)`.
pub(crate) fn load_aware(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let threshold = params.number("threshold", 128.0, Bound::Above(0.0));
    scorer(LoadAware { threshold })
}

/// Least of a count is best, linear between.
struct Least(fn(&Candidate<'_>) -> u32);

impl Scorer for Least {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        least_is_best(|candidate| f64::from((self.0)(candidate)), candidates, scores);
    }
}

struct FreeKvCache;

impl Scorer for FreeKvCache {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = 1.0 - candidate.load.kv_usage;
        }
    }
}

struct LoadAware {
    threshold: f64,
}

impl Scorer for LoadAware {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let waiting = f64::from(candidate.load.waiting).min(self.threshold);
            *score = 0.5 * (1.0 - waiting / self.threshold);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::{EngineLoad, Request};

    fn check(type_name: &str, fleet: &Fleet, wanted: &[f64]) {
        let scorer = made(type_name, Value::Null).scorer.expect("it is a scorer");
        check_scores(&*scorer, &Request::default(), &fleet.candidates(), wanted);
    }

    fn waiting(waiting: u32) -> EngineLoad {
        EngineLoad { waiting, ..EngineLoad::default() }
    }

    #[test]
    fn short_queues_score_high() {
        check("queue-scorer", &Fleet::loaded(&[10, 0, 5], waiting), &[0.0, 1.0, 0.5]);
        check("queue-scorer", &Fleet::loaded(&[7, 7], waiting), &[1.0, 1.0]);
    }

    #[test]
    fn small_batches_score_high() {
        let running = |running| EngineLoad { running, ..EngineLoad::default() };
        let fleet = Fleet::loaded(&[4, 8, 0], running);
        check("running-requests-size-scorer", &fleet, &[0.5, 0.0, 1.0]);
    }

    #[test]
    fn free_kv_cache_scores_high() {
        let usage = |kv_usage| EngineLoad { kv_usage, ..EngineLoad::default() };
        check("kv-cache-utilization-scorer", &Fleet::loaded(&[0.25, 1.0], usage), &[0.75, 0.0]);
    }

    #[test]
    fn a_queue_halves_at_most_and_bottoms_out_at_the_threshold() {
        let fleet = Fleet::loaded(&[0, 64, 128, 500], waiting);
        check("load-aware-scorer", &fleet, &[0.5, 0.25, 0.0, 0.0]);
        let wanted = "threshold: 0 is not above 0";
        check_errors("load-aware-scorer", json!({"threshold": 0}), &[wanted]);
    }
}
