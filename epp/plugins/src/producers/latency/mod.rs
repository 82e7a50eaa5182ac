//! `predicted-latency-producer`.
//!
//! The placement core learns too: the speeds of one worker, for a cost that compares workers. This
//! one predicts latencies of a request from an endpoint's load, for scorers and admitters of llm-d
//! that hold them against objectives.

mod model;

use super::{PREFILL, computes};
use crate::context::{BuildContext, PrefixSource};
use crate::expiring::Expiring;
use crate::params::{Bound, Params};
use crate::scorers::tokens::uncached_tokens;
use model::LinearModel;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::plugin::{
    LatencyOutcome, Meter, MeteredPlugin, Observer, Pick, PlacedRequest, PluginParts, Producer,
    RequestLatencies, RequestProgress, Routing,
};
use stator_epp_scheduler::{Candidate, PredictedLatency, Request, Time};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Most requests that are followed at once; others are not learned from.
const MAX_FOLLOWED: usize = 100_000;
/// Most of a model's name that is kept of a request that is followed: more than metrics keep, so
/// that what is cut off is no other model there.
const NAME_CHARS_MAX: usize = 300;
/// Most roles that have a model of their own; others share one.
const MAX_ROLES: usize = 16;
/// Features of a prediction: a constant, requests waiting and running, KV cache usage, thousands of
/// tokens to compute for the request and in flight before it, and, if configured, MiB of media to
/// encode.
const FEATURES: usize = 7;
const MIB: f64 = 1_048_576.0;

type Features = [f64; FEATURES];

/// `predicted-latency-producer`: predicts the time to the first token and the mean time between
/// tokens for each endpoint, from its load and from how requests fared before.
///
/// Both are linear in six features (see [`FEATURES`]), fitted in this process by recursive least
/// squares with forgetting, one pair of models for each value of `endpointRoleLabel` (without it,
/// for each role); nothing is predicted before twenty requests were seen to end. With
/// `useEncoderCacheFeatures` a seventh is what `mm-embeddings-cache-producer` believes an endpoint
/// has still to encode. With `streamingMode` the first token is timed on streamed answers, else the
/// whole answer is, and tokens are not. `sloBufferFactor` scales the objectives that predictions
/// are held against; requests are followed for `contextTTL`; `predictInProduce: false` learns
/// without predicting.
///
/// The llm-d router trains trees in a service beside it instead. How often it samples an answer's
/// tokens (`samplingMean`, `maxDecodeTokenSamplesForPrediction`, which newer ones ignore too) is
/// accepted with a note that it has no effect: all tokens of all answers count here.
pub(crate) fn predicted(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.number("samplingMean", 1000.0, Bound::Above(0.0));
    params.whole("maxDecodeTokenSamplesForPrediction", 0, 0..=u64::MAX);
    for sampling in ["samplingMean", "maxDecodeTokenSamplesForPrediction"] {
        params.without_effect(sampling);
    }
    params.text("inFlightLoadProducerName");
    let ttl = params.duration("contextTTL", Duration::from_secs(300));
    let factor = params.number("sloBufferFactor", 1.0, Bound::Above(0.0));
    // One predictor learns from all answers; a second one would learn the same.
    context.claim("predicted-latency-producer", params);
    context.slo_factor().get_or_init(|| factor);
    let state = State { models: FxHashMap::default(), followed: Expiring::new(MAX_FOLLOWED, ttl) };
    let plugin = Arc::new(Predictor {
        streaming: params.flag("streamingMode", false),
        predicts: params.flag("predictInProduce", true),
        encodes: params.flag("useEncoderCacheFeatures", false),
        role_label: params.text("endpointRoleLabel"),
        prefix: context.prefix_source(params),
        state: Mutex::new(state),
        meter: OnceLock::new(),
    });
    PluginParts {
        producer: Some(plugin.clone()),
        observer: Some(plugin.clone()),
        measured: Some(plugin),
        ..PluginParts::default()
    }
}

struct Predictor {
    streaming: bool,
    predicts: bool,
    /// Whether the last feature counts.
    encodes: bool,
    role_label: Option<String>,
    prefix: PrefixSource,
    state: Mutex<State>,
    /// Meter that counts predictions and latencies.
    meter: OnceLock<Arc<dyn Meter>>,
}

struct State {
    models: FxHashMap<u64, Models>,
    followed: Expiring<u64, FollowedRequest>,
}

/// The models of one role.
struct Models {
    ttft_ms: LinearModel<FEATURES>,
    tpot_ms: LinearModel<FEATURES>,
}

/// A request that was placed and has not ended.
struct FollowedRequest {
    placed: Time,
    first_token: Option<Time>,
    streamed: bool,
    /// Role and features of the endpoint that computes the prompt, and of the one that answers.
    computes: (u64, Features),
    answers: (u64, Features),
    /// Facts for the meter; `None` without one.
    facts: Option<MeterFacts>,
}

/// Facts about a request that the meter gets at its end.
struct MeterFacts {
    asked_model: String,
    model: String,
    /// Predictions and objectives of both latencies, in milliseconds.
    ttft: (Option<f64>, Option<f64>),
    tpot: (Option<f64>, Option<f64>),
}

impl MeterFacts {
    fn of(request: &Request<'_>, routing: &Routing<'_>) -> Self {
        let predicted = |pick: &Pick<'_>| pick.targets.first().and_then(Candidate::latency);
        let ttft = predicted(computes(routing, PREFILL)).map(|latency| latency.ttft_ms);
        let tpot = predicted(&routing.primary).map(|latency| latency.tpot_ms);
        let ms =
            |objective: Option<Duration>| objective.map(|wanted| wanted.as_secs_f64() * 1000.0);
        Self {
            asked_model: request.asked_model.chars().take(NAME_CHARS_MAX).collect(),
            model: request.model.chars().take(NAME_CHARS_MAX).collect(),
            ttft: (ttft, ms(request.slo_ttft)),
            // No time at all is what is said while too little is known.
            tpot: (tpot.filter(|tpot| *tpot > 0.0), ms(request.slo_tpot)),
        }
    }

    fn tell(&self, meter: &dyn Meter, ttft_ms: f64, tpot_ms: Option<f64>) {
        let timing = |measured_ms, (predicted_ms, objective_ms)| LatencyOutcome {
            measured_ms,
            predicted_ms,
            objective_ms,
        };
        meter.fared(&RequestLatencies {
            asked_model: &self.asked_model,
            model: &self.model,
            ttft: timing(ttft_ms, self.ttft),
            tpot: tpot_ms.map(|tpot_ms| timing(tpot_ms, self.tpot)),
        });
    }
}

impl Predictor {
    fn role(&self, candidate: &Candidate<'_>) -> u64 {
        match &self.role_label {
            Some(label) => candidate.endpoint.label(label).map_or(0, |v| xxh3_64(v.as_bytes())),
            None => {
                let roles = candidate.endpoint.roles;
                u64::from(roles.prefill) | u64::from(roles.decode) << 1
            }
        }
    }

    fn features(&self, request: &Request<'_>, candidate: &Candidate<'_>) -> Features {
        let load = candidate.load;
        [
            1.0,
            load.waiting.into(),
            load.running.into(),
            load.kv_usage,
            uncached_tokens(request, candidate, self.prefix) as f64 / 1000.0,
            candidate.in_flight.tokens as f64 / 1000.0,
            if self.encodes { unencoded_mib(request, candidate) } else { 0.0 },
        ]
    }

    /// Features that count.
    fn used(&self) -> usize {
        if self.encodes { FEATURES } else { FEATURES - 1 }
    }

    fn seen(&self, request: &Request<'_>, pick: &Pick<'_>) -> Option<(u64, Features)> {
        let target = pick.targets.first()?;
        Some((self.role(target), self.features(request, target)))
    }
}

impl State {
    /// The models of a role, which go by so many features.
    fn models(&mut self, role: u64, used: usize) -> &mut Models {
        let known = self.models.len() < MAX_ROLES || self.models.contains_key(&role);
        let fresh = || Models { ttft_ms: LinearModel::of(used), tpot_ms: LinearModel::of(used) };
        self.models.entry(if known { role } else { 0 }).or_insert_with(fresh)
    }
}

/// MiB of a prompt's media that an endpoint has to encode; all of it where nobody knows better.
fn unencoded_mib(request: &Request<'_>, candidate: &Candidate<'_>) -> f64 {
    let bytes: u64 = request.prompt.multimodal.iter().map(|item| item.size_bytes).sum();
    bytes as f64 / MIB * (1.0 - candidate.multimodal().unwrap_or(0.0))
}

impl Producer for Predictor {
    fn produce(&self, request: &Request<'_>, candidates: &mut [Candidate<'_>], _: Time) {
        if !self.predicts {
            return;
        }
        let mut state = self.state.lock();
        for candidate in candidates {
            let models = state.models(self.role(candidate), self.used());
            let features = self.features(request, candidate);
            candidate.findings().latency = models.ttft_ms.predict(&features).map(|ttft_ms| {
                let tpot_ms = models.tpot_ms.predict(&features).unwrap_or(0.0);
                PredictedLatency { ttft_ms, tpot_ms }
            });
        }
    }
}

impl MeteredPlugin for Predictor {
    fn measure_with(&self, meter: Arc<dyn Meter>) {
        // The first meter stays: there is one for the life of the process.
        let _ = self.meter.set(meter);
    }
}

impl Observer for Predictor {
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, now: Time) {
        let computes = self.seen(request, computes(placed.routing, PREFILL));
        let answers = self.seen(request, &placed.routing.primary);
        let (Some(computes), Some(answers)) = (computes, answers) else { return };
        let streamed = request.stream;
        let facts = self.meter.get().map(|_| MeterFacts::of(request, placed.routing));
        let followed =
            FollowedRequest { placed: now, first_token: None, streamed, computes, answers, facts };
        self.state.lock().followed.insert(placed.ticket, followed, now);
    }

    fn first_token(&self, progress: &RequestProgress<'_>, now: Time) {
        let mut state = self.state.lock();
        if let Some(followed) = state.followed.get_mut(&progress.ticket, now) {
            followed.first_token.get_or_insert(now);
        }
    }

    fn ended(&self, progress: &RequestProgress<'_>, now: Time) {
        let mut state = self.state.lock();
        let Some(followed) = state.followed.remove(&progress.ticket, now) else { return };
        // What another endpoint served tells nothing of this one.
        if !progress.answered || progress.served.is_some() {
            return;
        }
        let elapsed_ms = |from: Time, to: Time| to.0.saturating_sub(from.0).as_secs_f64() * 1000.0;
        // Without streaming the whole answer is timed, and tokens are not.
        let first = match self.streaming {
            true => followed.first_token.filter(|_| followed.streamed),
            false => Some(now),
        };
        let Some(first) = first else { return };
        let ttft_ms = elapsed_ms(followed.placed, first);
        let (role, features) = &followed.computes;
        state.models(*role, self.used()).ttft_ms.observe(features, ttft_ms);
        let tokens = progress.output_tokens.filter(|tokens| self.streaming && *tokens > 1);
        let tpot_ms = tokens.map(|tokens| elapsed_ms(first, now) / (tokens - 1) as f64);
        if let Some(tpot_ms) = tpot_ms {
            let (role, features) = &followed.answers;
            state.models(*role, self.used()).tpot_ms.observe(features, tpot_ms);
        }
        if let (Some(facts), Some(meter)) = (&followed.facts, self.meter.get()) {
            facts.tell(&**meter, ttft_ms, tpot_ms);
        }
    }
}

#[cfg(test)]
mod tests;
