//! Scorers that go by what this picker has sent.

use super::scorer;
use crate::context::{BuildContext, PrefixSource};
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};

/// `active-request-scorer`: prefers endpoints with few requests in flight.
///
/// Score: 1 up to `idleThreshold` requests, else `(max − requests) / max · maxBusyScore`, where
/// `max` is the most that any candidate has.
pub(crate) fn active_request(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    // Both have no effect any more, but configurations still carry them.
    params.ignore("requestTimeout");
    params.text("inFlightLoadProducerName");
    scorer(ActiveRequests {
        idle_threshold: params.whole("idleThreshold", 0, 0..=u64::MAX),
        max_busy_score: params.number("maxBusyScore", 1.0, Bound::Within(0.0, 1.0)),
    })
}

/// `token-load-scorer`: prefers endpoints with few tokens to compute, this prompt's included.
///
/// Score: `1 − min(in flight + uncached, T) / T` with `T = queueThresholdTokens`; *uncached* are
/// the prompt's tokens that the endpoint is not believed to hold.
pub(crate) fn token_load(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("inFlightLoadProducerName");
    scorer(TokenLoad {
        threshold: params.whole("queueThresholdTokens", 4_194_304, 1..=u64::MAX) as f64,
        prefix: context.prefix_source(params),
    })
}

/// Tokens of the prompt that a candidate would have to compute.
pub(crate) fn uncached_tokens(
    request: &Request<'_>,
    candidate: &Candidate<'_>,
    prefix: PrefixSource,
) -> u64 {
    let cached = prefix.read(candidate).or(candidate.prefix()).map_or(0, |m| m.matched_tokens());
    u64::from(request.prompt.tokens).saturating_sub(cached)
}

struct ActiveRequests {
    idle_threshold: u64,
    max_busy_score: f64,
}

impl Scorer for ActiveRequests {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        let max = candidates.iter().map(|c| c.in_flight.requests).max().unwrap_or(0);
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let requests = candidate.in_flight.requests;
            *score = if requests <= self.idle_threshold {
                1.0
            } else {
                (max - requests) as f64 / max as f64 * self.max_busy_score
            };
        }
    }
}

struct TokenLoad {
    threshold: f64,
    prefix: PrefixSource,
}

impl Scorer for TokenLoad {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let uncached = uncached_tokens(request, candidate, self.prefix);
            let tokens = candidate.in_flight.tokens.saturating_add(uncached) as f64;
            *score = 1.0 - tokens.min(self.threshold) / self.threshold;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, made, matched};
    use serde_json::json;
    use stator_epp_scheduler::{InFlight, Prompt, Request};

    fn sent(requests: u64, tokens: u64) -> InFlight {
        InFlight { requests, tokens }
    }

    #[test]
    fn idle_endpoints_score_one_and_busy_ones_by_their_requests() {
        let mut fleet = Fleet::of(3);
        fleet.in_flight = vec![sent(0, 0), sent(2, 0), sent(4, 0)];
        let scorer = |parameters| made("active-request-scorer", parameters).scorer;
        let check = |parameters, wanted: &[f64]| {
            let scorer = scorer(parameters).expect("it is a scorer");
            check_scores(&*scorer, &Request::default(), &fleet.candidates(), wanted);
        };
        check(json!({}), &[1.0, 0.5, 0.0]);
        check(json!({"idleThreshold": 2, "maxBusyScore": 0.5}), &[1.0, 1.0, 0.0]);
        check(json!({"maxBusyScore": 0.5}), &[1.0, 0.25, 0.0]);
        let wanted = "maxBusyScore: 2 is not in 0..=1";
        check_errors("active-request-scorer", json!({"maxBusyScore": 2}), &[wanted]);
    }

    #[test]
    fn token_load_counts_what_is_in_flight_and_not_cached() {
        let mut fleet = Fleet::of(3);
        fleet.in_flight = vec![sent(1, 20), sent(1, 0), sent(1, 1000)];
        let mut candidates = fleet.candidates();
        candidates[1].approximate = Some(matched(2, 4));
        let prompt = Prompt { tokens: 64, ..Prompt::default() };
        let request = Request { prompt, ..Request::default() };
        let scorer = made("token-load-scorer", json!({"queueThresholdTokens": 100})).scorer;
        let scorer = scorer.expect("it is a scorer");
        check_scores(&*scorer, &request, &candidates, &[0.16, 0.68, 0.0]);
        let wanted = "queueThresholdTokens: 0 is less than 1";
        check_errors("token-load-scorer", json!({"queueThresholdTokens": 0}), &[wanted]);
    }
}
