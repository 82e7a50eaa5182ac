//! `lmetric-scorer`.

use super::{least_is_best, scorer};
use crate::context::{BuildContext, PrefixSource};
use crate::params::Params;
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};

/// `lmetric-scorer`: prefers endpoints with little left to compute of the prompt and few requests
/// in flight, in one product.
///
/// Score: `(max − cost) / (max − min)` over the candidates, with `cost = uncached · (requests + 1)`;
/// all equal, 1. *Uncached* are the tokens of the prompt's blocks that the endpoint is not believed
/// to hold.
///
/// Source: the LMetric scorer of the llm-d router.
pub(crate) fn lmetric(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("inFlightLoadProducerName");
    scorer(Lmetric { prefix: context.prefix_source(params) })
}

struct Lmetric {
    prefix: PrefixSource,
}

impl Lmetric {
    fn cost(&self, candidate: &Candidate<'_>) -> f64 {
        let found = self.prefix.read(candidate).unwrap_or_default();
        let uncached = found.total_blocks.saturating_sub(found.matched_blocks);
        let tokens = u64::from(uncached) * u64::from(found.block_size);
        tokens as f64 * (candidate.in_flight.requests.saturating_add(1)) as f64
    }
}

impl Scorer for Lmetric {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        least_is_best(|candidate| self.cost(candidate), candidates, scores);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, made, matched};
    use serde_json::json;
    use stator_epp_scheduler::{InFlight, Request};

    /// Scores of endpoints with so many requests in flight that hold so many of 10 blocks.
    fn check(endpoints: &[(u64, u32)], wanted: &[f64]) {
        let mut fleet = Fleet::of(endpoints.len() as u8);
        let sent = |&(requests, _): &(u64, u32)| InFlight { requests, tokens: 0 };
        fleet.in_flight = endpoints.iter().map(sent).collect();
        let mut candidates = fleet.candidates();
        for (candidate, (_, blocks)) in candidates.iter_mut().zip(endpoints) {
            candidate.approximate = Some(matched(*blocks, 10));
        }
        let scorer = made("lmetric-scorer", json!({})).scorer.expect("it is a scorer");
        check_scores(&*scorer, &Request::default(), &candidates, wanted);
    }

    #[test]
    fn what_is_left_to_compute_counts_as_often_as_requests_run() {
        // Costs of 160 · 1, 80 · 2 and 16 · 6 tokens.
        check(&[(0, 0), (1, 5), (5, 9)], &[0.0, 0.0, 1.0]);
        // Costs of 160, 320 and 0 tokens.
        check(&[(0, 0), (1, 0), (9, 10)], &[0.5, 0.0, 1.0]);
        check(&[(3, 5), (3, 5)], &[1.0, 1.0]);
    }

    #[test]
    fn a_producer_that_is_not_there_is_an_error() {
        let wanted = "prefixMatchInfoProducerName: no prefix producer is called \"x\"";
        check_errors("lmetric-scorer", json!({"prefixMatchInfoProducerName": "x"}), &[wanted]);
    }
}
