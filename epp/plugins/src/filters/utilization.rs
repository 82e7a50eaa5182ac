//! `utilization-filter`.

use super::{filter, retain};
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, Request};

/// `utilization-filter`: drops endpoints above any of some limits.
///
/// Each of `conditions` names a `metric` (requests in flight, running or waiting, or KV cache
/// usage from 0 to 1) and the most that it may be. With `fallbackOnEmpty` all are kept where all
/// would be dropped.
pub(crate) fn utilization(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let conditions = params.list("conditions", condition);
    if conditions.is_empty() {
        params.wrong("conditions", "must have one entry or more");
    }
    filter(Utilization { conditions, or_all: params.flag("fallbackOnEmpty", false) })
}

type Metric = fn(&Candidate<'_>) -> f64;

struct Condition {
    metric: Metric,
    max: f64,
}

fn condition(params: &mut Params<'_>) -> Condition {
    for name in ["metric", "maxValue"] {
        if !params.has(name) {
            params.wrong(name, "is required");
        }
    }
    let metric = params.choice::<Metric>(
        "metric",
        &[
            ("active-requests", |c| c.in_flight.requests as f64),
            ("running-requests", |c| c.load.running.into()),
            ("waiting-queue", |c| c.load.waiting.into()),
            ("kv-cache-utilization", |c| c.load.kv_usage),
        ],
    );
    Condition { metric, max: params.number("maxValue", 0.0, Bound::AtLeast(0.0)) }
}

struct Utilization {
    conditions: Vec<Condition>,
    or_all: bool,
}

impl Filter for Utilization {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        let below = |candidate| self.conditions.iter().all(|c| (c.metric)(candidate) <= c.max);
        let kept: Vec<_> = candidates.iter().copied().map(below).collect();
        retain(candidates, &kept, self.or_all);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, kept, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::Request;

    fn check(parameters: Value, wanted: &[u64]) {
        let mut fleet = Fleet::of(3);
        fleet.loads[0].waiting = 4;
        fleet.loads[1].kv_usage = 0.95;
        fleet.in_flight[2].requests = 9;
        let filter = made("utilization-filter", parameters).filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &Request::default(), fleet.candidates()), wanted);
    }

    fn below(metric: &str, max: f64) -> Value {
        json!({"metric": metric, "maxValue": max})
    }

    #[test]
    fn endpoints_above_any_limit_are_dropped() {
        check(json!({"conditions": [below("waiting-queue", 3.0)]}), &[1, 2]);
        check(json!({"conditions": [below("kv-cache-utilization", 0.9)]}), &[0, 2]);
        check(json!({"conditions": [below("running-requests", 0.0)]}), &[0, 1, 2]);
        let all = json!([
            below("waiting-queue", 3.0),
            below("kv-cache-utilization", 0.9),
            below("active-requests", 8.0),
        ]);
        check(json!({"conditions": all}), &[]);
        check(json!({"conditions": all, "fallbackOnEmpty": true}), &[0, 1, 2]);
    }

    #[test]
    fn conditions_are_complete() {
        let wanted = "conditions: must have one entry or more";
        check_errors("utilization-filter", Value::Null, &[wanted]);
        check_errors(
            "utilization-filter",
            json!({"conditions": [{}, {"metric": "age", "maxValue": -1}]}),
            &[
                "conditions[0].metric: is required",
                "conditions[0].maxValue: is required",
                "conditions[1].metric: \"age\" is none of active-requests, running-requests, \
                 waiting-queue, kv-cache-utilization",
                "conditions[1].maxValue: -1 is less than 0",
            ],
        );
    }
}
