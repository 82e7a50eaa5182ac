//! Plug-ins that keep the requests of a session on one endpoint.
//!
//! The placement core binds sessions too, for `kv-aware` and the proxy. These are llm-d's, work
//! without that cost, insist where the core only prefers, and let the client carry the endpoint.

mod identity;
mod source;
mod token;

pub(crate) use identity::{agent_identity, session_id};
pub use source::IdSource;

use crate::context::BuildContext;
use crate::expiring::Expiring;
use crate::filters::prefer;
use crate::params::{Bound, Params};
use identity::id_sources;
use parking_lot::Mutex;
use source::first;
use stator_epp_scheduler::plugin::{
    Filter, IndexListener, Moment, Observer, Pick, PlacedRequest, PluginParts, RequestProgress,
    ResponseHeaders, Routing, Scorer, SharedIndex,
};
use stator_epp_scheduler::{Candidate, Endpoint, EngineLoad, Request, Time};
use stator_protos::WorkerRank;
use stator_protos::hash::{SequenceHash, name_hash};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Header of the token unless configured otherwise.
const TOKEN_HEADER: &str = "x-session-token";
/// Most sessions that are remembered, about 100 bytes each.
pub(crate) const MAX_SESSIONS: usize = 500_000;

/// `session-affinity-filter`: keeps the endpoint that served a session before, where it is among
/// the candidates; else all.
///
/// With `strategy: encoded_endpoint_header` the client carries the endpoint in a header, which is
/// set on every answer; with `session_id` the session's identity comes from `sessionIdConfig` and
/// its endpoint is remembered for `evictionTtlSeconds` after its last use, by all replicas of the
/// picker. `profileName` binds to the pick of that profile instead of the one that answers.
pub(crate) fn affinity_filter(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let affinity = Arc::new(affinity(params, context));
    PluginParts { filter: Some(affinity.clone()), ..followed(&affinity) }
}

/// `session-affinity-scorer`: prefers the endpoint that served a session before.
///
/// Score: 1 for that endpoint, else 0. Parameters as for `session-affinity-filter`.
pub(crate) fn affinity_scorer(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let affinity = Arc::new(affinity(params, context));
    PluginParts { scorer: Some(affinity.clone()), ..followed(&affinity) }
}

/// The parts that remember a session's endpoint: answers carry it, or requests are followed.
fn followed(affinity: &Arc<Affinity>) -> PluginParts {
    match affinity.strategy {
        Strategy::Token { .. } => {
            PluginParts { response_headers: Some(affinity.clone()), ..PluginParts::default() }
        }
        Strategy::Id { .. } => PluginParts {
            observer: Some(affinity.clone()),
            shared: Some(affinity.clone()),
            ..PluginParts::default()
        },
    }
}

struct Affinity {
    strategy: Strategy,
    /// `None` is the profile that answers.
    profile: Option<String>,
    /// Listener that tells other replicas where sessions go.
    listener: OnceLock<Arc<dyn IndexListener>>,
}

enum Strategy {
    Token {
        header: &'static str,
    },
    /// Endpoints by the hashes of identities.
    Id {
        sources: Vec<IdSource>,
        bindings: Mutex<Expiring<u64, WorkerRank>>,
    },
}

fn affinity(params: &mut Params<'_>, context: &mut BuildContext) -> Affinity {
    let by_id =
        params.choice("strategy", &[("encoded_endpoint_header", false), ("session_id", true)]);
    let profile = params.has("profileName").then(|| context.profile(params, "profileName", ""));
    let header = params.text("header");
    let header = params
        .within("encodedEndpointHeaderConfig", |params| params.text("header"))
        .or(header)
        .unwrap_or_else(|| TOKEN_HEADER.to_owned());
    let (sources, ttl) = params.within("sessionIdConfig", |params| {
        // What expired is dropped as others are added, so that there is nothing to sweep.
        params.number("evictionSweepSeconds", 10.0, Bound::Above(0.0));
        let ttl = params.number("evictionTtlSeconds", 300.0, Bound::Within(0.001, 1e9));
        (id_sources(params, context), Duration::from_secs_f64(ttl))
    });
    let strategy = if by_id {
        Strategy::Id { sources, bindings: Mutex::new(Expiring::new(MAX_SESSIONS, ttl)) }
    } else {
        // The names of headers on answers live as long as the process; there is one of these for
        // each configured plug-in.
        Strategy::Token { header: header.to_ascii_lowercase().leak() }
    };
    Affinity { strategy, profile, listener: OnceLock::new() }
}

impl Affinity {
    /// Position of the candidate that served the request's session before.
    fn bound(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        now: Time,
    ) -> Option<usize> {
        match &self.strategy {
            Strategy::Token { header } => {
                let name = token::decode(request.headers.get(header)?)?;
                candidates.iter().position(|candidate| token::names(&name, candidate.endpoint))
            }
            Strategy::Id { sources, bindings } => {
                let id = name_hash(first(sources, request.headers)?);
                let worker = *bindings.lock().get(&id, now)?;
                candidates.iter().position(|candidate| candidate.endpoint.worker == worker)
            }
        }
    }

    /// The pick that a session is bound to.
    fn pick<'r, 'a>(&self, routing: &'r Routing<'a>) -> Option<&'r Pick<'a>> {
        let Some(profile) = &self.profile else { return Some(&routing.primary) };
        routing.others.iter().find(|(name, _)| name == profile).map(|(_, pick)| pick)
    }
}

impl Filter for Affinity {
    fn filter(&self, request: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, now: Moment<'_>) {
        let Some(bound) = self.bound(request, candidates, now.time) else { return };
        let mut position = 0..;
        prefer(candidates, |_| position.next() == Some(bound));
    }
}

impl Scorer for Affinity {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        now: Moment<'_>,
    ) {
        scores.fill(0.0);
        if let Some(bound) = self.bound(request, candidates, now.time) {
            scores[bound] = 1.0;
        }
    }
}

impl ResponseHeaders for Affinity {
    fn response_headers(
        &self,
        _: &Request<'_>,
        routing: &Routing<'_>,
    ) -> Vec<(&'static str, String)> {
        let Strategy::Token { header } = &self.strategy else { return Vec::new() };
        let target = self.pick(routing).and_then(|pick| pick.targets.first());
        let token = target.map(|target| (*header, token::encode(target.endpoint)));
        token.into_iter().collect()
    }
}

impl Observer for Affinity {
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, now: Time) {
        let Strategy::Id { sources, bindings } = &self.strategy else { return };
        let target = self.pick(placed.routing).and_then(|pick| pick.targets.first());
        let (Some(id), Some(target)) = (first(sources, request.headers), target) else { return };
        let (id, worker) = (name_hash(id), target.endpoint.worker);
        bindings.lock().insert(id, worker, now);
        if let Some(listener) = self.listener.get() {
            listener.sent(worker, &[SequenceHash(id)]);
        }
    }

    fn first_token(&self, _: &RequestProgress<'_>, _: Time) {}

    fn ended(&self, _: &RequestProgress<'_>, _: Time) {}
}

impl SharedIndex for Affinity {
    fn tell(&self, listener: Arc<dyn IndexListener>) {
        // The first listener stays: there is one for the life of the process.
        let _ = self.listener.set(listener);
    }

    fn sent(&self, endpoint: &Endpoint, _: &EngineLoad, sessions: &[SequenceHash], now: Time) {
        let Strategy::Id { bindings, .. } = &self.strategy else { return };
        let mut bindings = bindings.lock();
        sessions.iter().for_each(|id| bindings.insert(id.0, endpoint.worker, now));
    }

    fn predictions(&self, from: usize, most: usize) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        let Strategy::Id { bindings, .. } = &self.strategy else { return None };
        let bindings = bindings.lock();
        let part = bindings.part(from, most)?;
        Some(part.map(|(id, worker)| (*worker, SequenceHash(id))).collect())
    }
}

#[cfg(test)]
mod tests;
