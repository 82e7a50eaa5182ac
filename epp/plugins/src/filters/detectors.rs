//! Saturation detectors, which are filters too.
//!
//! How full a pool is, is for flow control to say from the same [`Detector`]; here an endpoint
//! that is full takes no more.

use super::{filter, prefer};
use crate::context::BuildContext;
use crate::params::Params;
use crate::settings::{self, Concurrency, Detector, PluginSettings, Utilization};
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, Request, Time};
use std::time::Duration;

/// `utilization-detector`: keeps endpoints with a fresh report whose queue and KV cache are at
/// most `threshold · (1 + headroom)`. Where none is, all are kept.
pub(crate) fn utilization(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let detector = settings::utilization_detector(params);
    context.settle(PluginSettings::Detector(Detector::Utilization(detector)));
    filter(ByUtilization(detector))
}

/// `concurrency-detector`: keeps endpoints with less in flight than `limit · (1 + headroom)`, in
/// requests, tokens, or both by `concurrencyMode`.
pub(crate) fn concurrency(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let detector = settings::concurrency_detector(params);
    context.settle(PluginSettings::Detector(Detector::Concurrency(detector)));
    filter(ByConcurrency(detector))
}

struct ByUtilization(Utilization);

impl Filter for ByUtilization {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, now: Moment<'_>) {
        let limits = &self.0;
        let room = 1.0 + limits.headroom;
        prefer(candidates, |candidate| {
            let load = candidate.load;
            is_fresh(load.updated, now.time, limits.staleness)
                && f64::from(load.waiting) <= limits.queue_depth * room
                && load.kv_usage <= limits.kv_usage * room
        });
    }
}

fn is_fresh(updated: Option<Time>, now: Time, staleness: Duration) -> bool {
    updated.is_some_and(|updated| now <= updated.after(staleness))
}

struct ByConcurrency(Concurrency);

impl Filter for ByConcurrency {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        candidates.retain(|c| self.0.fullness(c.in_flight) < 1.0 + self.0.headroom);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::plugin::Moment;
    use stator_epp_scheduler::{InFlight, Random, Request, Time};

    fn check(type_name: &str, parameters: Value, fleet: &Fleet, wanted: &[u64]) {
        let filter = made(type_name, parameters).filter.expect("it is a filter");
        let all = fleet.candidates();
        let mut candidates = all.iter().collect();
        let now = Moment { time: Time::from_millis(1000), random: &mut Random::new(1) };
        filter.filter(&Request::default(), &mut candidates, now);
        let kept: Vec<_> = candidates.iter().map(|c| c.endpoint.worker.worker.0).collect();
        assert_eq!(kept, wanted);
    }

    #[test]
    fn endpoints_that_are_full_or_silent_are_dropped() {
        let mut fleet = Fleet::of(4);
        fleet.loads.iter_mut().for_each(|load| load.updated = Some(Time::from_millis(900)));
        fleet.loads[0].waiting = 6;
        fleet.loads[1].kv_usage = 0.9;
        fleet.loads[2].updated = Some(Time::from_millis(700));
        check("utilization-detector", Value::Null, &fleet, &[3]);
        check("utilization-detector", json!({"headroom": 0.2}), &fleet, &[0, 1, 3]);
        let patient = json!({"metricsStalenessThreshold": "1s"});
        check("utilization-detector", patient, &fleet, &[2, 3]);
        fleet.loads[3].updated = None;
        check("utilization-detector", Value::Null, &fleet, &[0, 1, 2, 3]);
    }

    #[test]
    fn endpoints_with_too_much_in_flight_are_dropped() {
        let mut fleet = Fleet::of(3);
        fleet.in_flight[1] = InFlight { requests: 100, tokens: 10 };
        fleet.in_flight[2] = InFlight { requests: 1, tokens: 1_000_000 };
        let check = |parameters, wanted: &[u64]| {
            check("concurrency-detector", parameters, &fleet, wanted);
        };
        check(Value::Null, &[0, 2]);
        check(json!({"concurrencyMode": "tokens"}), &[0, 1]);
        check(json!({"mode": "hybrid"}), &[0]);
        check(json!({"headroom": 0.1}), &[0, 1, 2]);
    }

    #[test]
    fn limits_are_checked() {
        check_errors(
            "utilization-detector",
            json!({"queueDepthThreshold": 0, "kvCacheUtilThreshold": 1.2, "headroom": -1}),
            &[
                "queueDepthThreshold: 0 is not above 0",
                "kvCacheUtilThreshold: 1.2 is not above 0 and at most 1",
                "headroom: -1 is less than 0",
            ],
        );
        check_errors(
            "concurrency-detector",
            json!({"maxConcurrency": 0, "concurrencyMode": "both"}),
            &[
                "concurrencyMode: \"both\" is none of requests, tokens, hybrid",
                "maxConcurrency: 0 is less than 1",
            ],
        );
    }
}
