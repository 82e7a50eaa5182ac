//! Plug-ins: narrow traits, one for each place of the decision that a plug-in can take.
//!
//! A plug-in is built once from its `parameters` and shared by all profiles that refer to it. It
//! is called under its pool's lock, one request at a time; one that keeps state keeps it in a
//! mutex of its own, which is therefore never contended.

use crate::{Candidate, Endpoint, EngineLoad, MultimodalItem, PrefixMatch, Random, Request, Time};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::sync::Arc;

/// Drops candidates that may not take the request.
pub trait Filter: Send + Sync {
    /// Leaves in `candidates` those that may, in their order.
    fn filter(&self, request: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, now: Moment<'_>);
}

/// Drops candidates before anything else of a decision sees them: what it leaves is all there is
/// for producers, admitters and every profile.
pub trait Screener: Send + Sync {
    /// Leaves in `candidates` those that may take the request, in their order; none refuses it.
    fn screen(&self, request: &Request<'_>, candidates: &mut Vec<Candidate<'_>>, now: Moment<'_>);
}

/// Ranks candidates.
pub trait Scorer: Send + Sync {
    /// Writes one score per candidate, in order: 0.0 is worst, 1.0 is best; what is outside is
    /// clamped.
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        now: Moment<'_>,
    );
}

/// Chooses among scored candidates.
pub trait Picker: Send + Sync {
    /// Positions of the chosen candidates, best first; `scores` has one entry or more, in order.
    /// Empty only if `scores` is.
    fn pick(&self, scores: &[f64], random: &mut Random) -> Vec<usize>;
}

/// Time and randomness of one decision.
pub struct Moment<'a> {
    /// The present.
    pub time: Time,
    /// Random numbers for this decision.
    pub random: &'a mut Random,
}

impl Moment<'_> {
    /// This moment, lent to the next plug-in.
    pub(crate) fn again(&mut self) -> Moment<'_> {
        Moment { time: self.time, random: self.random }
    }
}

/// Finds out about a request and its candidates before they are filtered and scored.
pub trait Producer: Send + Sync {
    /// Adds to the candidates what it knows.
    fn produce(&self, request: &Request<'_>, candidates: &mut [Candidate<'_>], now: Time);
}

/// Follows requests after they are placed.
pub trait Observer: Send + Sync {
    /// The request goes to these endpoints.
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, now: Time);
    /// The endpoint sent the first byte of an answer.
    fn first_token(&self, ended: &RequestProgress<'_>, now: Time);
    /// The request is over, in whatever way.
    fn ended(&self, ended: &RequestProgress<'_>, now: Time);
    /// An endpoint left the pool, or began another life: what was known of it is void.
    fn left(&self, _worker: WorkerRank) {}
}

/// Adds headers for the endpoint that answers, once it is known where a request goes.
pub trait RouteHeaders: Send + Sync {
    /// Headers, names in lower case. `candidates` are all that the request could go to.
    fn route_headers(
        &self,
        request: &Request<'_>,
        candidates: &[Candidate<'_>],
        routing: &Routing<'_>,
    ) -> Vec<(&'static str, String)>;
}

/// Adds headers to the answer, known as soon as it is known where a request goes.
pub trait ResponseHeaders: Send + Sync {
    /// Headers for the client, names in lower case.
    fn response_headers(
        &self,
        request: &Request<'_>,
        routing: &Routing<'_>,
    ) -> Vec<(&'static str, String)>;
}

/// Runs profiles for a request and makes one routing of their results.
pub trait ProfileHandler: Send + Sync {
    /// Decides; `run` runs a profile by name and gives its pick, `None` where it has none.
    ///
    /// # Errors
    ///
    /// [`RouteError`] if the request cannot be answered.
    fn route<'a>(
        &self,
        request: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError>;
}

/// Whether a request's prompt, or its images, should be computed by another endpoint than the
/// one that answers.
pub trait Decider: Send + Sync {
    /// Whether to split, given the endpoint that will answer.
    fn split(&self, request: &Request<'_>, decode: &Candidate<'_>) -> bool;
}

/// Refuses requests that are not worth serving now. Returns why not, in words for the client.
pub trait Admitter: Send + Sync {
    /// `Err` refuses.
    fn admit(
        &self,
        request: &Request<'_>,
        candidates: &[Candidate<'_>],
        now: Moment<'_>,
    ) -> Result<(), String>;
}

/// An index of prefixes that can be measured.
pub trait PrefixIndex: Send + Sync {
    /// Number of entries.
    fn entries(&self) -> usize;
    /// The match that it found for a candidate.
    fn found(&self, candidate: &Candidate<'_>) -> Option<PrefixMatch>;
}

/// An index that replicas of a picker share: requests sent by each of them count for all. It
/// exchanges blocks of prompts; a session is a prompt of one block, the hash of its identity.
pub trait SharedIndex: Send + Sync {
    /// Tells `listener` what is sent from now on. Once; a second call has no effect.
    fn tell(&self, listener: Arc<dyn IndexListener>);
    /// Another replica sent these blocks of a prompt to an endpoint.
    fn sent(&self, endpoint: &Endpoint, load: &EngineLoad, chain: &[SequenceHash], now: Time);
    /// A part of what endpoints are believed to hold, at most `most` blocks from position `from`
    /// on; `None` at the end. Of an endpoint those used last come in the last part, and within a
    /// part first, so that it can be given to [`SharedIndex::sent`] of another replica. Blocks
    /// may be missed or come twice where they change meanwhile.
    fn predictions(&self, from: usize, most: usize) -> Option<Vec<(WorkerRank, SequenceHash)>>;
}

/// A listener for the blocks of prompts that endpoints are sent. Called under the pool's lock.
pub trait IndexListener: Send + Sync {
    /// A prompt of these blocks goes to a worker.
    fn sent(&self, worker: WorkerRank, chain: &[SequenceHash]);
}

/// Measures lookups of the placement core's KV index.
pub trait LookupMeter: Send + Sync {
    /// Calls `lookup`, once; it returns how many leading blocks the best endpoint holds.
    fn measure(&self, lookup: &mut dyn FnMut() -> u32);
}

/// A plug-in with findings that a meter may count.
pub trait MeteredPlugin: Send + Sync {
    /// Counts with `meter` from now on. Once; a second call has no effect.
    fn measure_with(&self, meter: Arc<dyn Meter>);
}

/// Counts what plug-ins find out. Called under the pool's lock.
pub trait Meter: Send + Sync {
    /// Endpoints' encoder caches are asked for these items of a prompt, each of them once; at
    /// least one.
    fn items_sought(&self, items: &[MultimodalItem]);
    /// An endpoint is believed to hold these of the `sought` items.
    fn items_held(&self, endpoint: &Endpoint, held: &[MultimodalItem], sought: usize);
    /// A request whose latencies are followed is over.
    fn fared(&self, fared: &RequestLatencies<'_>);
}

/// Latencies of a request that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestLatencies<'a> {
    /// The model that the client named.
    pub asked_model: &'a str,
    /// The model that was asked for, after rewriting.
    pub model: &'a str,
    /// Time to the first token, or to the end of the answer where first tokens are not timed.
    pub ttft: LatencyOutcome,
    /// Mean time between tokens, where that is timed.
    pub tpot: Option<LatencyOutcome>,
}

/// A latency of a request that is over, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyOutcome {
    /// The measured latency.
    pub measured_ms: f64,
    /// Prediction for the chosen endpoint, if there was one.
    pub predicted_ms: Option<f64>,
    /// The client's limit, if it gave one.
    pub objective_ms: Option<f64>,
}

/// Choice of a profile: candidates in order, the first is the one, others are fallbacks.
#[derive(Clone, Debug)]
pub struct Pick<'a> {
    /// At least one.
    pub targets: Vec<Candidate<'a>>,
}

/// Destination of a request.
#[derive(Clone, Debug)]
pub struct Routing<'a> {
    /// The profile whose pick answers.
    pub primary: Pick<'a>,
    /// Endpoints that compute a part of the request, by the name of their profile.
    pub others: Vec<(String, Pick<'a>)>,
    /// Headers for the endpoint that answers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Port that the request is sent to instead of the endpoint's own, where a front of all
    /// ranks takes it.
    pub port: Option<u16>,
}

impl<'a> Routing<'a> {
    /// A request that goes to a pick and nowhere else.
    pub fn to(primary: Pick<'a>) -> Self {
        Self { primary, others: Vec::new(), headers: Vec::new(), port: None }
    }

    /// Tokens of the prompt that count as cached at the endpoint that answers.
    pub(crate) fn cached_tokens(&self) -> u64 {
        let target = self.primary.targets.first();
        target.and_then(Candidate::prefix).map_or(0, |prefix| prefix.matched_tokens())
    }
}

/// Reason for which no profile's pick can answer. One variant per answer a client gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// All candidates were filtered out.
    #[error("no endpoints available for the given request")]
    Drained,
    /// The request names a profile that there is not.
    #[error("no profile is called {0:?}")]
    UnknownProfile(String),
}

/// A placed request, for observers.
#[derive(Clone, Copy, Debug)]
pub struct PlacedRequest<'a> {
    /// Identity of the request within this process, never used again.
    pub ticket: u64,
    /// The request's destination.
    pub routing: &'a Routing<'a>,
}

/// A placed request some time later.
#[derive(Clone, Copy, Debug)]
pub struct RequestProgress<'a> {
    /// Identity of the request, see [`PlacedRequest::ticket`].
    pub ticket: u64,
    /// Tokens of the answer, where the answer was watched and said so.
    pub output_tokens: Option<u64>,
    /// Tokens of the prompt that were cached, likewise.
    pub cached_tokens: Option<u64>,
    /// Whether an answer came at all.
    pub answered: bool,
    /// Name of the endpoint that served the request, if known and not the chosen one.
    pub served: Option<&'a str>,
}

/// The parts that one entry of `plugins` was built into: every place that its type can take.
#[derive(Clone, Default)]
pub struct PluginParts {
    /// The filter.
    pub filter: Option<Arc<dyn Filter>>,
    /// The screener.
    pub screener: Option<Arc<dyn Screener>>,
    /// The scorer.
    pub scorer: Option<Arc<dyn Scorer>>,
    /// The picker.
    pub picker: Option<Arc<dyn Picker>>,
    /// The producer.
    pub producer: Option<Arc<dyn Producer>>,
    /// The observer.
    pub observer: Option<Arc<dyn Observer>>,
    /// The index of prefixes.
    pub prefixes: Option<Arc<dyn PrefixIndex>>,
    /// The index that replicas share.
    pub shared: Option<Arc<dyn SharedIndex>>,
    /// The source of countable findings.
    pub measured: Option<Arc<dyn MeteredPlugin>>,
    /// The profile handler.
    pub handler: Option<Arc<dyn ProfileHandler>>,
    /// The decider.
    pub decider: Option<Arc<dyn Decider>>,
    /// The admitter.
    pub admitter: Option<Arc<dyn Admitter>>,
    /// The writer of headers for the endpoint.
    pub route_headers: Option<Arc<dyn RouteHeaders>>,
    /// The writer of headers for the client.
    pub response_headers: Option<Arc<dyn ResponseHeaders>>,
}
