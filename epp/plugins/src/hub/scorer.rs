//! `latency-observation-scorer-hub`.

use super::LatencyObserver;
use super::curve::Anchors;
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use crate::scorers::scorer;
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};
use std::sync::Arc;

/// `latency-observation-scorer-hub`: prefers endpoints whose time to the first token would be short
/// at the load that they have now, as `ttftPercentilesProducerName` has learnt it.
///
/// Score: `(max − ttft) / (max − min)` over the candidates, each time rounded to `roundTTFTStep`
/// seconds; all equal, 1. An endpoint of which nothing is known counts as the best one. An endpoint
/// of which too little is known gets 1 with the probability `explorationRate`, else 0, as long as
/// another is known well. `minInflightGap` is how far apart the loads of both anchors must be.
///
/// Source: the latency observation scorer of the llm-d router.
pub(crate) fn latency_observation(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    params.text("inFlightLoadProducerName");
    scorer(Observation {
        observed: context.latency_observer(params),
        exploration: params.number("explorationRate", 0.1, Bound::Within(0.0, 1.0)),
        gap: params.number("minInflightGap", 2.0, Bound::Above(0.0)),
        step: params.number("roundTTFTStep", 0.0, Bound::AtLeast(0.0)),
    })
}

struct Observation {
    /// `None` knows nothing: all candidates are equal.
    observed: Option<Arc<LatencyObserver>>,
    exploration: f64,
    gap: f64,
    step: f64,
}

impl Observation {
    /// Seconds until the first token; `None` where nothing is known.
    fn predict(&self, candidate: &Candidate<'_>, anchors: &Anchors) -> Option<f64> {
        let ttft = anchors.predict(candidate.in_flight.requests as f64, self.gap);
        let rounded = if self.step > 0.0 { (ttft / self.step).round() * self.step } else { ttft };
        (anchors.floor > 0.0).then_some(rounded)
    }
}

impl Scorer for Observation {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        now: Moment<'_>,
    ) {
        let known = |candidate: &&Candidate<'_>| {
            let observed = self.observed.as_ref();
            observed.map_or_else(Anchors::default, |observed| {
                observed.anchors(candidate.endpoint.worker, now.time)
            })
        };
        let known: Vec<_> = candidates.iter().map(known).collect();
        let predict =
            |(candidate, anchors): (&&Candidate<'_>, &Anchors)| self.predict(candidate, anchors);
        let predicted: Vec<_> = candidates.iter().zip(&known).map(predict).collect();
        let seconds = || predicted.iter().flatten().copied();
        let (min, max) = (seconds().fold(f64::INFINITY, f64::min), seconds().fold(0.0, f64::max));
        let anyone = known.iter().any(Anchors::trusted);
        for ((score, predicted), anchors) in scores.iter_mut().zip(&predicted).zip(&known) {
            *score = match predicted {
                // Some requests try unknown endpoints, or nothing would ever be learnt of them.
                _ if anyone && !anchors.trusted() => {
                    f64::from(u8::from(now.random.unit() < self.exploration))
                }
                Some(ttft) if max > min => (max - ttft) / (max - min),
                _ => 1.0,
            };
        }
    }
}
