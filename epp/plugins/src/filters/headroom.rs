//! `slo-headroom-tier-filter`.

use super::{filter, retain};
use crate::context::{BuildContext, SloFactor};
use crate::params::{Bound, Params};
use crate::scorers::latency::headroom;
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, Request};

/// `slo-headroom-tier-filter`: keeps endpoints that are predicted to meet a request's objectives.
///
/// Where some meet both and others do not (or have no prediction), the former are kept; with
/// probability `epsilonExploreNeg` the latter instead, so that they are not starved for ever.
/// Without any prediction all are kept.
pub(crate) fn headroom_tier(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("latencyPredictionInfoProducerName");
    filter(HeadroomTier {
        explore: params.number("epsilonExploreNeg", 0.01, Bound::Within(0.0, 1.0)),
        slo_factor: context.slo_factor(),
    })
}

struct HeadroomTier {
    explore: f64,
    slo_factor: SloFactor,
}

impl Filter for HeadroomTier {
    fn filter(&self, request: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, now: Moment<'_>) {
        let meets = |candidate| {
            let headroom = headroom(request, candidate, &self.slo_factor);
            headroom.is_some_and(|(ttft, tpot)| ttft >= 0.0 && tpot >= 0.0)
        };
        let mut kept: Vec<_> = candidates.iter().copied().map(meets).collect();
        if kept.contains(&false) && now.random.unit() < self.explore {
            kept.iter_mut().for_each(|kept| *kept = !*kept);
        }
        retain(candidates, &kept, true);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, kept, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::{PredictedLatency, Request};
    use std::time::Duration;

    fn check(parameters: Value, ttfts: &[Option<f64>], wanted: &[u64]) {
        let fleet = Fleet::of(ttfts.len() as u8);
        let mut candidates = fleet.candidates();
        for (candidate, ttft) in candidates.iter_mut().zip(ttfts) {
            candidate.findings().latency =
                ttft.map(|ttft_ms| PredictedLatency { ttft_ms, tpot_ms: 0.0 });
        }
        let slo_ttft = Some(Duration::from_millis(100));
        let request = Request { slo_ttft, ..Request::default() };
        let filter = made("slo-headroom-tier-filter", parameters).filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &request, candidates), wanted);
    }

    #[test]
    fn endpoints_that_meet_the_objectives_come_first() {
        let never = json!({"epsilonExploreNeg": 0});
        check(never.clone(), &[Some(100.0), Some(101.0), None], &[0]);
        check(never.clone(), &[Some(200.0), None], &[0, 1]);
        check(never, &[None, None], &[0, 1]);
        check(json!({"epsilonExploreNeg": 1}), &[Some(100.0), Some(101.0), None], &[1, 2]);
        let wanted = "epsilonExploreNeg: 2 is not in 0..=1";
        check_errors("slo-headroom-tier-filter", json!({"epsilonExploreNeg": 2}), &[wanted]);
    }
}
