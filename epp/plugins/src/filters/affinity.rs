//! `prefix-cache-affinity-filter`.

use super::{filter, retain};
use crate::context::{BuildContext, PrefixSource};
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, Request};

/// `prefix-cache-affinity-filter`: sends a prompt to endpoints that hold it, until they are busy.
///
/// Keeps the candidates that hold at least `affinityThreshold` of the prompt's blocks, the
/// *sticky* ones. All are kept if there are none; with `explorationProbability`, by chance; and
/// if the least time to the first token of the sticky exceeds that of the others by more than
/// `maxTTFTPenaltyMs` (0: never), or is not known. That time is `tokens in flight /
/// peakPrefillThroughput`, or predicted with `ttftSource: latencyPredictor`. With
/// `maxTokensInFlightPenalty` above 0 all are kept too where the least tokens in flight of the
/// sticky exceed those of the others by more.
pub(crate) fn prefix_cache_affinity(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    params.text("latencyPredictionInfoProducerName");
    params.text("inFlightLoadProducerName");
    let throughput = params.number("peakPrefillThroughput", 15_928.0, Bound::Above(0.0));
    filter(Affinity {
        prefix: context.prefix_source(params),
        threshold: params.number("affinityThreshold", 0.8, Bound::Within(0.0, 1.0)),
        exploration: params.number("explorationProbability", 0.0, Bound::Within(0.0, 1.0)),
        max_penalty_tokens: params.whole("maxTokensInFlightPenalty", 0, 0..=u64::MAX),
        max_penalty_ms: params.number("maxTTFTPenaltyMs", 18_000.0, Bound::AtLeast(0.0)),
        tokens_per_ms: params.choice(
            "ttftSource",
            &[("prefillThroughput", Some(throughput / 1000.0)), ("latencyPredictor", None)],
        ),
    })
}

struct Affinity {
    prefix: PrefixSource,
    threshold: f64,
    exploration: f64,
    max_penalty_ms: f64,
    /// 0 is never.
    max_penalty_tokens: u64,
    /// `None` goes by predictions.
    tokens_per_ms: Option<f64>,
}

impl Filter for Affinity {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, now: Moment<'_>) {
        if self.threshold == 0.0 || now.random.unit() < self.exploration {
            return;
        }
        let share = |c: &Candidate<'_>| self.prefix.read(c).map_or(0.0, |found| found.share());
        let sticky: Vec<_> = candidates.iter().map(|c| share(c) >= self.threshold).collect();
        if !self.too_busy(candidates, &sticky) && !self.too_full(candidates, &sticky) {
            retain(candidates, &sticky, true);
        }
    }
}

impl Affinity {
    fn too_busy(&self, candidates: &[&Candidate<'_>], sticky: &[bool]) -> bool {
        if self.max_penalty_ms == 0.0 || !sticky.contains(&false) {
            return false;
        }
        let least = |of: bool| {
            let group = candidates.iter().zip(sticky).filter(|(_, sticky)| **sticky == of);
            group.filter_map(|(candidate, _)| self.ttft_ms(candidate)).reduce(f64::min)
        };
        match (least(true), least(false)) {
            (Some(sticky), Some(other)) => sticky - other > self.max_penalty_ms,
            _ => true,
        }
    }

    fn too_full(&self, candidates: &[&Candidate<'_>], sticky: &[bool]) -> bool {
        let least = |of: bool| {
            let group = candidates.iter().zip(sticky).filter(|(_, sticky)| **sticky == of);
            group.map(|(candidate, _)| candidate.in_flight.tokens).min()
        };
        let (Some(sticky), Some(other)) = (least(true), least(false)) else { return false };
        self.max_penalty_tokens > 0 && sticky.saturating_sub(other) > self.max_penalty_tokens
    }

    fn ttft_ms(&self, candidate: &Candidate<'_>) -> Option<f64> {
        match self.tokens_per_ms {
            Some(rate) => Some(candidate.in_flight.tokens as f64 / rate),
            None => candidate.latency().map(|predicted| predicted.ttft_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, kept, made, matched};
    use serde_json::{Value, json};
    use stator_epp_scheduler::{PredictedLatency, Request};

    /// Three endpoints; the first holds 9 of 10 blocks and has so many tokens in flight.
    fn check(parameters: Value, tokens: u64, wanted: &[u64]) {
        let mut fleet = Fleet::of(3);
        fleet.in_flight[0].tokens = tokens;
        let mut candidates = fleet.candidates();
        candidates[0].approximate = Some(matched(9, 10));
        candidates[1].approximate = Some(matched(5, 10));
        candidates[0].findings().latency = Some(PredictedLatency { ttft_ms: 50.0, tpot_ms: 1.0 });
        candidates[1].findings().latency = Some(PredictedLatency { ttft_ms: 20.0, tpot_ms: 1.0 });
        let plugin = made("prefix-cache-affinity-filter", parameters);
        let filter = plugin.filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &Request::default(), candidates), wanted);
    }

    #[test]
    fn endpoints_that_hold_the_prompt_are_kept_until_busy() {
        let all = [0, 1, 2];
        check(json!({}), 0, &[0]);
        check(json!({"affinityThreshold": 0.5}), 0, &[0, 1]);
        check(json!({"affinityThreshold": 0.95}), 0, &all);
        check(json!({"affinityThreshold": 0}), 0, &all);
        check(json!({"explorationProbability": 1}), 0, &all);
        // 15,928 tokens a second for 18 s is the most that others are waited for.
        check(json!({}), 286_000, &[0]);
        check(json!({}), 287_000, &all);
        check(json!({"maxTTFTPenaltyMs": 0}), 1_000_000, &[0]);
        let tokens = json!({"maxTTFTPenaltyMs": 0, "maxTokensInFlightPenalty": 286_720});
        check(tokens.clone(), 286_720, &[0]);
        check(tokens, 286_721, &all);
        check(json!({"maxTTFTPenaltyMs": 10, "peakPrefillThroughput": 1000}), 11, &all);
    }

    #[test]
    fn predicted_latencies_can_break_the_affinity() {
        let parameters =
            |penalty| json!({"ttftSource": "latencyPredictor", "maxTTFTPenaltyMs": penalty});
        check(parameters(30), 0, &[0]);
        check(parameters(29), 0, &[0, 1, 2]);
    }

    #[test]
    fn ranges_are_checked() {
        check_errors(
            "prefix-cache-affinity-filter",
            json!({"affinityThreshold": 1.5, "ttftSource": "guess", "peakPrefillThroughput": 0}),
            &[
                "peakPrefillThroughput: 0 is not above 0",
                "affinityThreshold: 1.5 is not in 0..=1",
                "ttftSource: \"guess\" is none of prefillThroughput, latencyPredictor",
            ],
        );
    }
}
