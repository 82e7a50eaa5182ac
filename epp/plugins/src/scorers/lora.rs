//! `lora-affinity-scorer`.

use super::scorer;
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::{Moment, PluginParts, Scorer};
use stator_epp_scheduler::{Candidate, Lora, Request};

/// `lora-affinity-scorer`: prefers endpoints where the request's adapter runs, or can be loaded.
///
/// The placement core prefers loaded adapters as well, in the cost of `kv-aware`; this scorer is for
/// configurations without it, and knows slots.
///
/// Score: 1 where the adapter runs, 0.8 where a slot is free, 0.6 where it waits for one, else 0.
pub(crate) fn lora_affinity(_: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    scorer(LoraAffinity)
}

struct LoraAffinity;

impl Scorer for LoraAffinity {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let lora = candidate.load.lora.as_ref();
            *score = lora.map_or(0.0, |lora| affinity(lora, request.model));
        }
    }
}

fn affinity(lora: &Lora, model: &str) -> f64 {
    let among = |adapters: &[String]| adapters.iter().any(|adapter| adapter == model);
    let taken = lora.running.len() + lora.waiting.len();
    if among(&lora.running) {
        1.0
    } else if taken < lora.max as usize {
        0.8
    } else if among(&lora.waiting) {
        0.6
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_scores, made};
    use serde_json::Value;
    use stator_epp_scheduler::{EngineLoad, Lora, Request};

    #[test]
    fn an_active_adapter_beats_a_free_slot_beats_a_waiting_one() {
        let lora = |max, running: &[&str], waiting: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let lora = Lora { max, running: owned(running), waiting: owned(waiting) };
            EngineLoad { lora: Some(lora), ..EngineLoad::default() }
        };
        let mut fleet = Fleet::of(5);
        fleet.loads = vec![
            lora(2, &["sql", "art"], &[]),
            lora(2, &["art"], &[]),
            lora(2, &["art"], &["sql"]),
            lora(1, &["art"], &[]),
            EngineLoad::default(),
        ];
        let request = Request { model: "sql", ..Request::default() };
        let scorer = made("lora-affinity-scorer", Value::Null).scorer.expect("it is a scorer");
        check_scores(&*scorer, &request, &fleet.candidates(), &[1.0, 0.8, 0.6, 0.0, 0.0]);
    }
}
