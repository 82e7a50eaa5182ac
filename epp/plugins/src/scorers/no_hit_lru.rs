//! `no-hit-lru-scorer`.

use crate::context::{BuildContext, PrefixSource};
use crate::lru::LruKeys;
use crate::params::Params;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::plugin::{
    Moment, Observer, PlacedRequest, PluginParts, RequestProgress, Scorer,
};
use stator_epp_scheduler::{Candidate, Request, Time};
use stator_protos::WorkerRank;
use std::sync::Arc;

/// The profile whose pick computes the prompt where prompts are computed apart.
const PREFILL: &str = "prefill";

/// `no-hit-lru-scorer`: spreads prompts that nobody holds, so that caches grow evenly.
///
/// Score: 0.5 for all if any candidate holds a block of the prompt. Otherwise, of `n` candidates,
/// those that never got such a prompt score `1 − i / (n − 1)` in order, and the others
/// `1 − (never + p) / (n − 1)`, where `p` counts from the one that got one longest ago.
pub(crate) fn no_hit_lru(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    // Both never had an effect, but configurations carry them.
    params.ignore("prefixPluginType");
    params.ignore("prefixPluginName");
    let prefix = context.prefix_source(params);
    let size = params.whole("lruSize", 1024, 1..=1_000_000) as usize;
    let state = State { used: LruKeys::new(size), cold: None };
    let plugin = Arc::new(NoHitLru { prefix, state: Mutex::new(state) });
    PluginParts { scorer: Some(plugin.clone()), observer: Some(plugin), ..PluginParts::default() }
}

struct NoHitLru {
    prefix: PrefixSource,
    state: Mutex<State>,
}

struct State {
    /// Endpoints that got a prompt that nobody held.
    used: LruKeys<WorkerRank>,
    /// The request scored last, if nobody holds its prompt.
    cold: Option<String>,
}

impl Scorer for NoHitLru {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        _: Moment<'_>,
    ) {
        let hit = |candidate| self.prefix.read(candidate).is_some_and(|m| m.matched_blocks > 0);
        let mut state = self.state.lock();
        state.cold = None;
        if candidates.iter().copied().any(hit) {
            return scores.fill(0.5);
        }
        state.cold = Some(request.id.to_owned());
        let used = state.used.iter().zip(1..);
        let used: FxHashMap<WorkerRank, u32> = used.collect();
        // Ranks: the never used in their order, then the used, the one used longest ago first.
        let position = |at: &usize| used.get(&candidates[*at].endpoint.worker).map_or(0, |p| *p);
        let mut order: Vec<_> = (0..candidates.len()).collect();
        order.sort_by_key(position);
        let last = candidates.len().saturating_sub(1).max(1) as f64;
        for (rank, at) in order.into_iter().enumerate() {
            scores[at] = 1.0 - rank as f64 / last;
        }
    }
}

impl Observer for NoHitLru {
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, _: Time) {
        let mut state = self.state.lock();
        if state.cold.take().as_deref() != Some(request.id) {
            return;
        }
        let prefill = placed.routing.others.iter().filter(|(profile, _)| profile == PREFILL);
        for pick in std::iter::once(&placed.routing.primary).chain(prefill.map(|(_, pick)| pick)) {
            if let Some(target) = pick.targets.first() {
                state.used.touch(target.endpoint.worker);
            }
        }
    }

    fn first_token(&self, _: &RequestProgress<'_>, _: Time) {}

    fn ended(&self, _: &RequestProgress<'_>, _: Time) {}

    fn left(&self, worker: WorkerRank) {
        self.state.lock().used.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, check_scores, made, matched, routed};
    use serde_json::{Value, json};
    use stator_epp_scheduler::plugin::{PlacedRequest, PluginParts};
    use stator_epp_scheduler::{Request, Time};

    fn check(plugin: &PluginParts, fleet: &Fleet, request: &Request<'_>, wanted: &[f64]) {
        let scorer = plugin.scorer.as_deref().expect("it is a scorer");
        check_scores(scorer, request, &fleet.candidates(), wanted);
    }

    fn place(plugin: &PluginParts, fleet: &Fleet, request: &Request<'_>, target: usize) {
        let routing = routed(&fleet.candidates()[target]);
        let placed = PlacedRequest { ticket: 1, routing: &routing };
        let observer = plugin.observer.as_ref().expect("it is an observer");
        observer.placed(request, &placed, Time::default());
    }

    #[test]
    fn cold_prompts_go_round_by_least_recent_use() {
        let (plugin, fleet) = (made("no-hit-lru-scorer", Value::Null), Fleet::of(3));
        let request = Request { id: "a", ..Request::default() };
        check(&plugin, &fleet, &request, &[1.0, 0.5, 0.0]);
        place(&plugin, &fleet, &request, 0);
        check(&plugin, &fleet, &request, &[0.0, 1.0, 0.5]);
        place(&plugin, &fleet, &request, 2);
        check(&plugin, &fleet, &request, &[0.5, 1.0, 0.0]);
        plugin.observer.as_ref().expect("it is one").left(fleet.endpoints[2].worker);
        check(&plugin, &fleet, &request, &[0.0, 1.0, 0.5]);
    }

    #[test]
    fn a_hit_scores_all_alike_and_counts_for_nobody() {
        let (plugin, fleet) = (made("no-hit-lru-scorer", Value::Null), Fleet::of(2));
        let request = Request { id: "a", ..Request::default() };
        let mut candidates = fleet.candidates();
        candidates[1].approximate = Some(matched(1, 4));
        let scorer = plugin.scorer.as_deref().expect("it is a scorer");
        check_scores(scorer, &request, &candidates, &[0.5, 0.5]);
        place(&plugin, &fleet, &request, 0);
        check(&plugin, &fleet, &request, &[1.0, 0.0]);
    }

    #[test]
    fn a_single_endpoint_scores_one() {
        let (plugin, fleet) = (made("no-hit-lru-scorer", Value::Null), Fleet::of(1));
        check(&plugin, &fleet, &Request::default(), &[1.0]);
        check_errors(
            "no-hit-lru-scorer",
            json!({"lruSize": 0}),
            &["lruSize: 0 is not in 1..=1000000"],
        );
    }
}
