//! Admitters refuse requests that are not worth serving now, of negative priority only.

use crate::context::{BuildContext, SloFactor};
use crate::params::{Bound, Params};
use crate::scorers::latency::headroom;
use stator_epp_scheduler::plugin::{Admitter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, Request};
use std::sync::Arc;

/// KV cache usage below which an engine has hardly served, so that predictions for it are weak.
const COLD: f64 = 0.02;

/// `latency-slo-admitter`: refuses a request that no endpoint is predicted to serve in time.
///
/// It must have an objective and there must be a prediction; no prediction meets both objectives,
/// no endpoint is idle, and none is cold (KV cache usage below 2 %).
pub(crate) fn latency_slo(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("latencyPredictionInfoProducerName");
    admitter(LatencySlo { slo_factor: context.slo_factor() })
}

/// `probabilistic-admitter`: refuses more and more requests as the pool fills up.
///
/// Chance: `min(saturation^power · k, 1)`, where saturation is the mean over the endpoints of
/// `max(waiting / queueDepthThreshold, usage / kvCacheUtilThreshold)`.
pub(crate) fn probabilistic(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let mut above_zero = |name, default| params.number(name, default, Bound::Above(0.0));
    admitter(Probabilistic {
        queue_depth: above_zero("queueDepthThreshold", 5.0),
        kv_usage: above_zero("kvCacheUtilThreshold", 0.8),
        power: above_zero("power", 5.0),
        k: above_zero("k", 300.0),
    })
}

fn admitter(admitter: impl Admitter + 'static) -> PluginParts {
    PluginParts { admitter: Some(Arc::new(admitter)), ..PluginParts::default() }
}

struct LatencySlo {
    slo_factor: SloFactor,
}

impl Admitter for LatencySlo {
    fn admit(
        &self,
        request: &Request<'_>,
        candidates: &[Candidate<'_>],
        _: Moment<'_>,
    ) -> Result<(), String> {
        let judged = request.priority < 0
            && (request.slo_ttft.is_some() || request.slo_tpot.is_some())
            && candidates.iter().any(|candidate| candidate.latency().is_some());
        let can_serve = |c: &Candidate<'_>| {
            let meets = headroom(request, c, &self.slo_factor).is_some_and(|(ttft, tpot)| {
                // An absent objective is met.
                (ttft >= 0.0 || request.slo_ttft.is_none())
                    && (tpot >= 0.0 || request.slo_tpot.is_none())
            });
            meets || c.load.running == 0 || c.load.kv_usage < COLD
        };
        if judged && !candidates.iter().any(can_serve) {
            return Err("no endpoint can meet the latency objectives".to_owned());
        }
        Ok(())
    }
}

struct Probabilistic {
    queue_depth: f64,
    kv_usage: f64,
    power: f64,
    k: f64,
}

impl Admitter for Probabilistic {
    fn admit(
        &self,
        request: &Request<'_>,
        candidates: &[Candidate<'_>],
        now: Moment<'_>,
    ) -> Result<(), String> {
        if request.priority >= 0 || candidates.is_empty() {
            return Ok(());
        }
        let fullness = |candidate: &Candidate<'_>| {
            let queue = f64::from(candidate.load.waiting) / self.queue_depth;
            queue.max(candidate.load.kv_usage / self.kv_usage)
        };
        let sum: f64 = candidates.iter().map(fullness).sum();
        let saturation = sum / candidates.len() as f64;
        let chance = (saturation.powf(self.power) * self.k).min(1.0);
        if now.random.unit() < chance {
            return Err(format!("the pool is too full, saturation {saturation:.3}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::plugin::Moment;
    use stator_epp_scheduler::{Candidate, PredictedLatency, Random, Request, Time};
    use std::time::Duration;

    fn refusals(
        type_name: &str,
        parameters: Value,
        request: &Request<'_>,
        candidates: &[Candidate<'_>],
    ) -> usize {
        let admitter = made(type_name, parameters).admitter.expect("it is an admitter");
        let mut random = Random::new(3);
        let mut refused = || {
            let now = Moment { time: Time::default(), random: &mut random };
            admitter.admit(request, candidates, now).is_err()
        };
        (0..1000).filter(|_| refused()).count()
    }

    fn sheddable() -> Request<'static> {
        let slo_ttft = Some(Duration::from_millis(100));
        Request { priority: -1, slo_ttft, ..Request::default() }
    }

    #[test]
    fn requests_that_nobody_serves_in_time_are_refused() {
        let mut fleet = Fleet::of(2);
        for load in &mut fleet.loads {
            (load.running, load.kv_usage) = (3, 0.5);
        }
        let check = |fleet: &Fleet, ttft_ms: Option<f64>, request: &Request<'_>, refused: bool| {
            let mut candidates = fleet.candidates();
            candidates[1].findings().latency =
                ttft_ms.map(|ttft_ms| PredictedLatency { ttft_ms, tpot_ms: 1.0 });
            let refusals = refusals("latency-slo-admitter", Value::Null, request, &candidates);
            assert_eq!(refusals, if refused { 1000 } else { 0 });
        };
        check(&fleet, Some(200.0), &sheddable(), true);
        check(&fleet, Some(100.0), &sheddable(), false);
        check(&fleet, None, &sheddable(), false);
        check(&fleet, Some(200.0), &Request { priority: 0, ..sheddable() }, false);
        check(&fleet, Some(200.0), &Request { slo_ttft: None, ..sheddable() }, false);
        fleet.loads[0].kv_usage = 0.01;
        check(&fleet, Some(200.0), &sheddable(), false);
        (fleet.loads[0].kv_usage, fleet.loads[0].running) = (0.5, 0);
        check(&fleet, Some(200.0), &sheddable(), false);
    }

    #[test]
    fn a_fuller_pool_refuses_more() {
        let mut fleet = Fleet::of(2);
        fleet.loads[0].waiting = 5;
        // Saturation is 0.5; the chance is 0.5² · 2.
        let parameters = json!({"power": 2, "k": 2});
        let check = |fleet: &Fleet, request: &Request<'_>| {
            let candidates = fleet.candidates();
            refusals("probabilistic-admitter", parameters.clone(), request, &candidates)
        };
        let refusals = check(&fleet, &sheddable());
        assert!((450..550).contains(&refusals), "{refusals}");
        assert_eq!(check(&fleet, &Request::default()), 0);
        assert_eq!(check(&Fleet::of(0), &sheddable()), 0);
        check_errors(
            "probabilistic-admitter",
            json!({"power": 0, "k": -1}),
            &["power: 0 is not above 0", "k: -1 is not above 0"],
        );
    }
}
