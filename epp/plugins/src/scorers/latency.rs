//! `latency-scorer`.

use super::scorer;
use crate::context::{BuildContext, PrefixSource, SloFactor};
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};

/// Spreads below this are none.
const EPSILON: f64 = 1e-9;

/// `latency-scorer`: places requests by how far predicted latencies stay from their objectives.
///
/// Headroom is `objective − prediction`, an absent objective being 0. If any candidate (or one
/// without a prediction) keeps both objectives, those score and the others get 0; otherwise the
/// idle ones, then those that break only the objective between tokens, only the one for the first
/// token, or both. Score within that group: both headrooms, scaled to 0..1 by their spread and
/// weighted, are `h`; with strategy `most` the score is `h`, with `least` (and always where
/// objectives are broken) `1 − h`. A headroom that all share does not count; all alike, 0.5.
///
/// Without any prediction: the weighted mean of free KV cache, queue shorter than the longest,
/// and share of the prompt that is held.
pub(crate) fn latency(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("latencyPredictionInfoProducerName");
    let mut weight = |name, default| params.number(name, default, Bound::AtLeast(0.0));
    let (ttft, tpot) = shares(weight("ttftWeight", 0.8), weight("tpotWeight", 0.2));
    let composite = [
        weight("compositeKVWeight", 1.0),
        weight("compositeQueueWeight", 1.0),
        weight("compositePrefixWeight", 1.0),
    ];
    scorer(Latency {
        ttft,
        tpot,
        composite,
        prefer_most: params
            .choice("headroomSelectionStrategy", &[("least", false), ("most", true)]),
        prefix: context.prefix_source(params),
        slo_factor: context.slo_factor(),
    })
}

/// `objective · factor − prediction` in milliseconds for both latencies, `None` without a
/// prediction.
pub(crate) fn headroom(
    request: &Request<'_>,
    candidate: &Candidate<'_>,
    slo_factor: &SloFactor,
) -> Option<(f64, f64)> {
    let predicted = candidate.latency()?;
    let factor = slo_factor.get().copied().unwrap_or(1.0);
    let objective = |slo: Option<std::time::Duration>| {
        slo.map_or(0.0, |slo| slo.as_secs_f64() * 1000.0 * factor)
    };
    let ttft = objective(request.slo_ttft) - predicted.ttft_ms;
    Some((ttft, objective(request.slo_tpot) - predicted.tpot_ms))
}

struct Latency {
    ttft: f64,
    tpot: f64,
    composite: [f64; 3],
    prefer_most: bool,
    prefix: PrefixSource,
    slo_factor: SloFactor,
}

/// Groups of candidates by the objectives that they break, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Kept,
    Idle,
    BetweenTokens,
    FirstToken,
    Both,
}

impl Scorer for Latency {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        let headrooms: Vec<_> =
            candidates.iter().map(|c| headroom(request, c, &self.slo_factor)).collect();
        if headrooms.iter().all(Option::is_none) {
            return self.score_without_predictions(candidates, scores);
        }
        let groups: Vec<_> = headrooms.iter().zip(candidates).map(|(h, c)| group(*h, c)).collect();
        let best = groups.iter().min().copied().unwrap_or(Group::Kept);
        let known = headrooms.iter().map(|h| h.unwrap_or_default());
        let known: Vec<_> = known.map(|(ttft, tpot)| (ttft.abs(), tpot.abs())).collect();
        let members: Vec<_> = (0..groups.len()).filter(|&at| groups[at] == best).collect();
        scores.fill(0.0);
        self.score_group(&known, &members, best == Group::Kept && self.prefer_most, scores);
    }
}

impl Latency {
    fn score_group(
        &self,
        headrooms: &[(f64, f64)],
        members: &[usize],
        most: bool,
        scores: &mut [f64],
    ) {
        let ttft = Spread::of(members.iter().map(|&at| headrooms[at].0));
        let tpot = Spread::of(members.iter().map(|&at| headrooms[at].1));
        let (ttft_weight, tpot_weight) = match (ttft.is_none(), tpot.is_none()) {
            (true, false) => (0.0, 1.0),
            (false, true) => (1.0, 0.0),
            _ => (self.ttft, self.tpot),
        };
        for &at in members {
            let scaled = ttft_weight * ttft.scale(headrooms[at].0)
                + tpot_weight * tpot.scale(headrooms[at].1);
            scores[at] = if most { scaled } else { 1.0 - scaled };
        }
    }

    fn score_without_predictions(&self, candidates: &[&Candidate<'_>], scores: &mut [f64]) {
        let longest = candidates.iter().map(|c| c.load.waiting).max().unwrap_or(0);
        let sum: f64 = self.composite.iter().sum();
        let [kv, queue, prefix] =
            if sum > 0.0 { self.composite.map(|w| w / sum) } else { [1.0, 0.0, 0.0] };
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let shorter = match longest {
                0 => 1.0,
                _ => f64::from(longest - candidate.load.waiting) / f64::from(longest),
            };
            let held = self.prefix.read(candidate).map_or(0.0, |found| found.share());
            *score = kv * (1.0 - candidate.load.kv_usage) + queue * shorter + prefix * held;
        }
    }
}

fn group(headroom: Option<(f64, f64)>, candidate: &Candidate<'_>) -> Group {
    let Some((ttft, tpot)) = headroom else { return Group::Kept };
    match (ttft < 0.0, tpot < 0.0) {
        (false, false) => Group::Kept,
        _ if candidate.in_flight.requests == 0 => Group::Idle,
        (false, true) => Group::BetweenTokens,
        (true, false) => Group::FirstToken,
        (true, true) => Group::Both,
    }
}

fn shares(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    if sum > 0.0 { (a / sum, b / sum) } else { (1.0, 0.0) }
}

/// Least and most of some numbers.
struct Spread {
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let spread = Self { min: f64::INFINITY, max: f64::NEG_INFINITY };
        values.fold(spread, |s, v| Self { min: s.min.min(v), max: s.max.max(v) })
    }

    fn is_none(&self) -> bool {
        self.max - self.min <= EPSILON
    }

    fn scale(&self, value: f64) -> f64 {
        if self.is_none() { 0.5 } else { (value - self.min) / (self.max - self.min) }
    }
}

#[cfg(test)]
#[path = "latency_tests.rs"]
mod tests;
