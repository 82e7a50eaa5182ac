//! `p2p-source-producer`.

use super::{PREFILL, computes};
use crate::context::{BuildContext, PrefixSource};
use crate::params::Params;
use stator_epp_scheduler::plugin::{PluginParts, RouteHeaders, Routing};
use stator_epp_scheduler::{Candidate, Random, Request};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Header that names the endpoint to pull KV from.
///
/// Source: the peer-to-peer pull of the llm-d routing sidecar.
const HEADER: &str = "x-kv-cache-source-host-port";

/// `p2p-source-producer`: tells the endpoint that computes a prompt where to pull from what it
/// does not hold itself.
///
/// The source is one of those that hold most tokens of the prompt, with a chance in proportion to
/// `1 / (1 + waiting)` that the request's id decides. It is named if it holds at least
/// `minCachedTokenDelta` tokens more than the endpoint of the profile `prefillProfileName`, or
/// else the one that answers.
pub(crate) fn p2p_source(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let plugin = P2pSource {
        min_delta: params.whole("minCachedTokenDelta", 1, 1..=u64::MAX),
        prefill: params.text("prefillProfileName").unwrap_or_else(|| PREFILL.to_owned()),
        prefix: context.prefix_source(params),
    };
    PluginParts { route_headers: Some(Arc::new(plugin)), ..PluginParts::default() }
}

struct P2pSource {
    min_delta: u64,
    prefill: String,
    prefix: PrefixSource,
}

impl P2pSource {
    fn cached(&self, candidate: &Candidate<'_>) -> u64 {
        self.prefix.read(candidate).map_or(0, |found| found.matched_tokens())
    }
}

impl RouteHeaders for P2pSource {
    fn route_headers(
        &self,
        request: &Request<'_>,
        candidates: &[Candidate<'_>],
        routing: &Routing<'_>,
    ) -> Vec<(&'static str, String)> {
        let Some(most) = candidates.iter().map(|c| self.cached(c)).max() else {
            return Vec::new();
        };
        let target = computes(routing, &self.prefill).targets.first();
        let own = target.map_or(0, |target| {
            let known = candidates.iter().find(|c| c.endpoint.worker == target.endpoint.worker);
            self.cached(known.unwrap_or(target))
        });
        if most.saturating_sub(own) < self.min_delta {
            return Vec::new();
        }
        let weight = |c: &Candidate<'_>| 1.0 / (1.0 + f64::from(c.load.waiting));
        let sources = || candidates.iter().filter(|c| self.cached(c) == most);
        let sum: f64 = sources().map(weight).sum();
        // Seeded by the request's id: the same request draws the same source.
        let mut rest = Random::new(xxh3_64(request.id.as_bytes())).unit() * sum;
        let chosen = sources().find(|source| {
            rest -= weight(source);
            rest <= 0.0
        });
        let source = chosen.or_else(|| sources().next_back());
        source.map(|source| (HEADER, source.endpoint.address.to_string())).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, made, matched, routed};
    use serde_json::{Value, json};
    use stator_epp_scheduler::Request;
    use stator_epp_scheduler::plugin::Pick;

    /// Four endpoints that hold 0, 4, 8 and 8 blocks; prompts are computed by `computes`.
    fn header(parameters: Value, id: &str, computes: usize, apart: bool) -> Option<String> {
        let mut fleet = Fleet::of(4);
        fleet.loads[3].waiting = 9;
        let mut candidates = fleet.candidates();
        for (candidate, blocks) in candidates.iter_mut().zip([0, 4, 8, 8]) {
            candidate.approximate = Some(matched(blocks, 10));
        }
        let mut routing = routed(&candidates[if apart { 2 } else { computes }]);
        if apart {
            let targets = vec![candidates[computes].clone()];
            routing.others.push(("prefill".to_owned(), Pick { targets }));
        }
        let plugin = made("p2p-source-producer", parameters).route_headers;
        let request = Request { id, ..Request::default() };
        let headers =
            plugin.expect("it writes headers").route_headers(&request, &candidates, &routing);
        headers.into_iter().next().map(|(name, value)| format!("{name}: {value}"))
    }

    #[test]
    fn whoever_holds_most_is_named_unless_it_computes() {
        let named = header(Value::Null, "a", 0, false).expect("a source is named");
        assert!(named.starts_with("x-kv-cache-source-host-port: 10.0.0."), "{named}");
        assert_eq!(header(Value::Null, "a", 2, false), None);
        assert!(header(Value::Null, "a", 0, true).is_some());
        // The second holds 64 tokens less than the third.
        assert!(header(json!({"minCachedTokenDelta": 64}), "a", 1, false).is_some());
        assert_eq!(header(json!({"minCachedTokenDelta": 65}), "a", 1, false), None);
    }

    #[test]
    fn busy_sources_are_named_less_often() {
        let ids = (0..1000).map(|id: u32| id.to_string());
        let named = ids.filter_map(|id| header(Value::Null, &id, 0, false));
        let idle = named.filter(|named| named.ends_with("10.0.0.3:8000")).count();
        // One of two, with ten times the weight of the other.
        assert!((880..940).contains(&idle), "{idle}");
    }

    #[test]
    fn some_tokens_must_be_gained() {
        let wanted = "minCachedTokenDelta: 0 is less than 1";
        check_errors("p2p-source-producer", json!({"minCachedTokenDelta": 0}), &[wanted]);
    }
}
