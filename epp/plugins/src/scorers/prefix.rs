//! Scorers that go by what endpoints are believed to hold of a prompt.

use super::scorer;
use crate::SPANS;
use crate::context::{BuildContext, PrefixSource};
use crate::params::{Bound, Params};
use crate::settings::{self, PluginSettings};
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, PrefixMatch, Request};
use tracing::info_span;

/// `prefix-cache-scorer`: prefers endpoints that hold much of the prompt.
///
/// Score: `w · min(1, tokens / scale)² + (1 − w) · matched / total`, where `w` is
/// `matchLengthWeight` and `scale` is `matchLengthScaleTokens`; without a match, 0.
pub(crate) fn prefix_cache(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    scorer(PrefixCache {
        source: context.prefix_source(params),
        length_weight: params.number("matchLengthWeight", 0.0, Bound::Within(0.0, 1.0)),
        scale_tokens: params.number("matchLengthScaleTokens", 8192.0, Bound::Above(0.0)),
    })
}

/// `precise-prefix-cache-scorer`: the precise producer and the scorer of its matches in one.
///
/// Score: the matched blocks, each weighted by its tier, over the prompt's blocks.
pub(crate) fn precise_prefix_cache(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    let precise = settings::precise(params);
    context.new_precise_source();
    context.settle(PluginSettings::Precise(precise));
    scorer(WeightedShare)
}

/// `mm-embeddings-cache-scorer`: prefers endpoints that encoded the prompt's images before.
///
/// Score: bytes of the embeddings that it is believed to hold, over all of the prompt's.
pub(crate) fn multimodal(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    scorer(Multimodal)
}

struct PrefixCache {
    source: PrefixSource,
    length_weight: f64,
    scale_tokens: f64,
}

impl Scorer for PrefixCache {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        let _span = info_span!(target: SPANS, "score_prefix_cache").entered();
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let found = self.source.read(candidate).unwrap_or_default();
            let length = (found.matched_tokens() as f64 / self.scale_tokens).min(1.0).powi(2);
            *score =
                self.length_weight * length + (1.0 - self.length_weight) * weighted_share(found);
        }
    }
}

/// Share of the prompt's blocks that is matched, each block weighted by its tier.
fn weighted_share(found: PrefixMatch) -> f64 {
    match found.total_blocks {
        0 => 0.0,
        total => (found.weighted_blocks / f64::from(total)).clamp(0.0, 1.0),
    }
}

struct WeightedShare;

impl Scorer for WeightedShare {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        let _span = info_span!(target: SPANS, "score_prefix_cache").entered();
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = candidate.precise.map_or(0.0, weighted_share);
        }
    }
}

struct Multimodal;

impl Scorer for Multimodal {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = candidate.multimodal().unwrap_or(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, made, matched};
    use serde_json::{Value, json};
    use stator_epp_scheduler::{PrefixMatch, Request};

    fn check(type_name: &str, parameters: Value, wanted: &[f64]) {
        let fleet = Fleet::of(3);
        let mut candidates = fleet.candidates();
        candidates[0].approximate = Some(matched(2, 8));
        candidates[1].approximate = Some(matched(8, 8));
        let weighted = PrefixMatch { weighted_blocks: 3.2, ..matched(4, 8) };
        candidates[2].precise = Some(weighted);
        candidates[2].findings().multimodal = Some(0.75);
        let scorer = made(type_name, parameters).scorer.expect("it is a scorer");
        check_scores(&*scorer, &Request::default(), &candidates, wanted);
    }

    #[test]
    fn the_share_of_matched_blocks_is_the_score() {
        check("prefix-cache-scorer", Value::Null, &[0.25, 1.0, 0.0]);
        check("precise-prefix-cache-scorer", Value::Null, &[0.0, 0.0, 0.4]);
        check("mm-embeddings-cache-scorer", Value::Null, &[0.0, 0.0, 0.75]);
    }

    #[test]
    fn long_matches_can_count_for_their_length() {
        let parameters = json!({"matchLengthWeight": 0.5, "matchLengthScaleTokens": 64});
        check("prefix-cache-scorer", parameters, &[0.5 * 0.25 + 0.5 * 0.25, 1.0, 0.0]);
    }

    #[test]
    fn a_producer_that_is_not_there_is_an_error() {
        check_errors(
            "prefix-cache-scorer",
            json!({"prefixMatchInfoProducerName": "x", "matchLengthWeight": 2}),
            &[
                "prefixMatchInfoProducerName: no prefix producer is called \"x\"",
                "matchLengthWeight: 2 is not in 0..=1",
            ],
        );
    }
}
