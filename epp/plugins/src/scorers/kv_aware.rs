//! `kv-aware`.

use super::scorer;
use crate::context::{BuildContext, KvCost};
use crate::params::{Bound, Params};
use crate::session::MAX_SESSIONS;
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Request};
use stator_placement::{Affinity, CostModel, SessionSettings, WeightSettings, Weights};
use std::time::Duration;

/// `kv-aware`: prefers what the placement core would choose: endpoints where little is left to
/// compute of the prompt, counting what they hold in every tier, what is queued before it, and
/// what they are decoding.
///
/// Score: `1 − (cost − min) / (max − min)` over the candidates; all equal, 1; without a cost, 0.
/// `cost` is what costs are counted in: `blocks`, by the weights that are the other parameters, or
/// `time`, learnt from the streamed answers that pass through the picker, or `auto`, time once
/// enough was seen of them. Labels that a request prefers, its adapter where it is loaded, and the
/// endpoint of its session's last request make an endpoint cheaper. Sessions do so for
/// `sessionTtlSeconds` after their last request and weigh `sessionWeight`; they are off by default.
///
/// `session-affinity-*` and `lora-affinity-scorer` decide the same of configurations that have no
/// `kv-aware`: where both stand, both count.
///
/// The weights are named as in the cost function, in camel case; without
/// those that have no meaning here: a picker, not the scorer, chooses among scores, and tokens of
/// answers are counted at their end.
pub(crate) fn kv_aware(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let defaults = WeightSettings::default();
    let models = [CostModel::Auto, CostModel::Blocks, CostModel::Time];
    let model = params.choice("cost", &models.map(|model| (model.name(), model)));
    let mut weight = |name, default| params.number(name, default, Bound::Within(0.0, Weights::MAX));
    let settings = WeightSettings {
        overlap_score_credit: weight("overlapScoreCredit", defaults.overlap_score_credit),
        overlap_score_credit_decay: weight(
            "overlapScoreCreditDecay",
            defaults.overlap_score_credit_decay,
        ),
        host_cache_hit_weight: weight("hostCacheHitWeight", defaults.host_cache_hit_weight),
        disk_cache_hit_weight: weight("diskCacheHitWeight", defaults.disk_cache_hit_weight),
        shared_cache_multiplier: weight("sharedCacheMultiplier", defaults.shared_cache_multiplier),
        prefill_load_scale: weight("prefillLoadScale", defaults.prefill_load_scale),
        decode_active_request_weight: weight(
            "decodeActiveRequestWeight",
            defaults.decode_active_request_weight,
        ),
        track_prefill_tokens: params.flag("trackPrefillTokens", defaults.track_prefill_tokens),
        assume_kv_reuse: params.flag("assumeKvReuse", defaults.assume_kv_reuse),
        ..defaults
    };
    let sessions = sessions(params);
    let cost = Weights::new(settings).map(|weights| KvCost { model, weights, sessions });
    match (cost, context.kv_cost) {
        (Ok(cost), Some(other)) if cost != other => {
            params.wrong("parameters", "differ from those of another kv-aware plug-in");
        }
        (Ok(cost), _) => context.kv_cost = Some(cost),
        // Whatever is out of range has left its own error above.
        (Err(_), _) => {}
    }
    scorer(KvAware)
}

fn sessions(params: &mut Params<'_>) -> Option<SessionSettings> {
    let ttl = params.number("sessionTtlSeconds", 0.0, Bound::Within(0.0, 1e9));
    let weight = params.number("sessionWeight", 1.0, Bound::Within(0.0, Weights::MAX));
    let (ttl, affinity) = (Duration::from_secs_f64(ttl), Affinity::Soft(weight));
    (!ttl.is_zero()).then(|| SessionSettings::new(affinity, ttl, MAX_SESSIONS))
}

struct KvAware;

impl Scorer for KvAware {
    fn score(
        &self,
        _: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        // Once over the candidates, which are far apart: costs go where scores will be, and none is
        // infinity.
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = candidate.cost.unwrap_or(f64::INFINITY);
            // Costs are never NaN; comparisons are less work than what heeds it.
            min = if *score < min { *score } else { min };
            max = if *score < f64::INFINITY && *score > max { *score } else { max };
        }
        let range = max - min;
        for score in scores {
            let share = if range > 0.0 { 1.0 - (*score - min) / range } else { 1.0 };
            *score = if *score < f64::INFINITY { share } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, made};
    use crate::{BuildContext, KvCost, build};
    use serde_json::{Value, json};
    use stator_epp_scheduler::Request;
    use stator_placement::{Affinity, CostModel};

    fn check(costs: &[Option<f64>], wanted: &[f64]) {
        let fleet = Fleet::of(costs.len() as u8);
        let mut candidates = fleet.candidates();
        for (candidate, cost) in candidates.iter_mut().zip(costs) {
            candidate.cost = *cost;
        }
        let scorer = made("kv-aware", Value::Null).scorer.expect("it is a scorer");
        check_scores(&*scorer, &Request::default(), &candidates, wanted);
    }

    #[test]
    fn the_least_cost_scores_one_and_no_cost_scores_nothing() {
        check(&[Some(10.0), Some(30.0), Some(15.0), None], &[1.0, 0.0, 0.75, 0.0]);
        check(&[Some(4.0), Some(4.0)], &[1.0, 1.0]);
        check(&[None], &[0.0]);
    }

    #[test]
    fn the_weights_are_handed_on() {
        let mut context = BuildContext::new(vec!["default".to_owned()]);
        let parameters = json!({"overlapScoreCredit": 2, "prefillLoadScale": 0.5, "cost": "blocks",
                "sessionTtlSeconds": 300});
        build("kv-aware", "kv", &parameters, &mut context).expect("the weights are right");
        let KvCost { model, weights, sessions } =
            context.kv_cost.expect("the scorer needs the cost");
        assert_eq!(model, CostModel::Blocks);
        assert_eq!(sessions.map(|sessions| sessions.affinity()), Some(Affinity::Soft(1.0)));
        assert_eq!(weights.settings().overlap_score_credit, 2.0);
        assert_eq!(weights.settings().prefill_load_scale, 0.5);
        let others = build("kv-aware", "other", &Value::Null, &mut context);
        let wanted = "parameters: differ from those of another kv-aware plug-in";
        assert_eq!(others.err(), Some(vec![wanted.to_owned()]));
    }

    #[test]
    fn weights_out_of_range_are_refused() {
        check_errors(
            "kv-aware",
            json!({"prefillLoadScale": -1, "assumeKvReuse": 3, "temperature": 1, "cost": "ms"}),
            &[
                "cost: \"ms\" is none of auto, blocks, time",
                "prefillLoadScale: -1 is not in 0..=1000000",
                "assumeKvReuse: 3 is not true or false",
                "temperature: unknown parameter, known are cost, overlapScoreCredit, \
                 overlapScoreCreditDecay, hostCacheHitWeight, diskCacheHitWeight, \
                 sharedCacheMultiplier, prefillLoadScale, decodeActiveRequestWeight, \
                 trackPrefillTokens, assumeKvReuse, sessionTtlSeconds, sessionWeight",
            ],
        );
    }
}
