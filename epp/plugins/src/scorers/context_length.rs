//! `context-length-aware`.

use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Label that names the prompt lengths that an endpoint is for.
const LABEL: &str = "llm-d.ai/context-length-range";
/// Highest score of an endpoint whose range the prompt is outside of.
const OUTSIDE: f64 = 0.3;

/// `context-length-aware`: sends prompts to endpoints that are meant for their length, which a
/// label tells as `min-max` tokens.
///
/// Score within the range of width `w`: `0.3 + 0.7 · (0.7 / (1 + w / 10000) + 0.3 · (max − n) / w)`,
/// or 1 if `w` is 0; outside by `d` tokens: `0.3 / (1 + d / 1000)`; without the label 0.5; with
/// one that is no range 0. With `enableFiltering` it also drops endpoints whose range the prompt
/// is outside of, or is none.
pub(crate) fn context_length_aware(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let label = params.text("label").unwrap_or_else(|| LABEL.to_owned());
    let enabled = params.flag("enableFiltering", false);
    let plugin = Arc::new(ContextLengthAware { label, enabled });
    PluginParts { filter: Some(plugin.clone()), scorer: Some(plugin), ..PluginParts::default() }
}

struct ContextLengthAware {
    label: String,
    enabled: bool,
}

impl Filter for ContextLengthAware {
    fn filter(&self, request: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        if self.enabled {
            let tokens = request.prompt.tokens;
            candidates.retain(|candidate| match candidate.endpoint.label(&self.label) {
                None => true,
                Some(label) => parse(label).is_some_and(|range| range.contains(&tokens)),
            });
        }
    }
}

impl Scorer for ContextLengthAware {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = match candidate.endpoint.label(&self.label) {
                None => 0.5,
                Some(label) => parse(label).map_or(0.0, |range| fit(&range, request.prompt.tokens)),
            };
        }
    }
}

fn parse(label: &str) -> Option<RangeInclusive<u32>> {
    let (min, max) = label.split_once('-')?;
    let (min, max) = (min.trim().parse().ok()?, max.trim().parse().ok()?);
    (min <= max).then_some(min..=max)
}

fn fit(range: &RangeInclusive<u32>, tokens: u32) -> f64 {
    let (min, max) = (*range.start(), *range.end());
    if !range.contains(&tokens) {
        let distance = if tokens > max { tokens - max } else { min - tokens };
        return OUTSIDE / (1.0 + f64::from(distance) / 1000.0);
    }
    if min == max {
        return 1.0;
    }
    let width = f64::from(max - min);
    let tightness = 1.0 / (1.0 + width / 10_000.0);
    let headroom = f64::from(max - tokens) / width;
    OUTSIDE + (1.0 - OUTSIDE) * (0.7 * tightness + 0.3 * headroom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, check_errors, check_scores, kept, made};
    use serde_json::json;
    use stator_epp_scheduler::Prompt;

    fn fleet() -> Fleet {
        Fleet::labelled(&[
            &[(LABEL, "0-2000")],
            &[(LABEL, "2000-12000")],
            &[],
            &[(LABEL, "long")],
            &[(LABEL, "1000-1000")],
        ])
    }

    fn request(tokens: u32) -> Request<'static> {
        Request { prompt: Prompt { tokens, ..Prompt::default() }, ..Request::default() }
    }

    #[test]
    fn tight_ranges_around_the_prompt_score_high() {
        let plugin = made("context-length-aware", json!({}));
        let scorer = plugin.scorer.expect("it is a scorer");
        let tight = 0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 0.5);
        let wanted = [tight, 0.3 / 2.0, 0.5, 0.0, 1.0];
        check_scores(&*scorer, &request(1000), &fleet().candidates(), &wanted);
        let filter = plugin.filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &request(1000), fleet().candidates()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn filtering_drops_what_the_prompt_does_not_fit() {
        let plugin = made("context-length-aware", json!({"enableFiltering": true}));
        let filter = plugin.filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &request(2000), fleet().candidates()), [0, 1, 2]);
        let wanted = "enableFiltering: \"yes\" is not true or false";
        check_errors("context-length-aware", json!({"enableFiltering": "yes"}), &[wanted]);
    }
}
