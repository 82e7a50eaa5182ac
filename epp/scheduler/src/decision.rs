//! Options of one call of a [`Scheduler`](crate::Scheduler), and its result.

use crate::Endpoint;
use crate::plugin::RouteError;
use stator_placement::{PickError, PromptSources, Time};
use stator_protos::WorkerRank;
use std::net::SocketAddr;
use std::sync::Arc;

/// One call of [`Scheduler::schedule`](crate::Scheduler::schedule).
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The present.
    pub now: Time,
    /// Any number that differs from request to request.
    pub seed: u64,
    /// Whether [`ended`](crate::Scheduler::ended) will be called. The place of a request that
    /// nobody watches is given back when its endpoint's report covers it, or after a lease.
    pub watched: bool,
    /// Whether [`Decision::scores`] is wanted.
    pub scores: bool,
}

/// Destination of a request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The request's identity from now on.
    pub ticket: u64,
    /// The endpoint that answers, then fallbacks in order. At least one.
    pub targets: Vec<Arc<Endpoint>>,
    /// Endpoints that compute something for it, by the name of their profile.
    pub others: Vec<(String, Arc<Endpoint>)>,
    /// Port that the request is sent to instead of the first target's own.
    pub port: Option<u16>,
    /// Headers for the endpoint that answers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Headers for the client, names in lower case.
    pub response_headers: Vec<(&'static str, String)>,
    /// Tokens of the prompt that count as cached at the endpoint.
    pub cached_tokens: u64,
    /// Sources of the prompt at the endpoint that computes it; nothing where no plug-in asks for cached
    /// blocks.
    pub sources: PromptSources,
    /// Scores of the answering profile's candidates, if wanted.
    pub scores: Vec<(SocketAddr, f64)>,
    /// Endpoints that count as holding the prompt, each with the end of that prediction. If
    /// [`crate::Prompt`] has overlaps, the caller passes them to
    /// [`Prefixes::predict`](crate::Prefixes::predict) after the decision.
    pub holders: Vec<(WorkerRank, Time)>,
}

/// Name of the profile whose endpoint computes the prompt, where another answers.
const PREFILL: &str = "prefill";

impl Decision {
    /// The endpoint that computes the prompt.
    pub(crate) fn computes(&self) -> Option<&Arc<Endpoint>> {
        let apart = self.others.iter().find(|(profile, _)| profile == PREFILL);
        apart.map(|(_, endpoint)| endpoint).or_else(|| self.targets.first())
    }
}

/// Reason for which a request was not placed. One variant per answer a client gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No endpoint is ready, or none that the data plane allows.
    #[error("failed to find endpoint candidates for serving the request")]
    NoEndpoints,
    /// The pool is full, and the request's priority is negative.
    #[error("system saturated, sheddable request dropped")]
    Saturated,
    /// No endpoint has what the request needs.
    #[error(transparent)]
    Unmet(PickError),
    /// An admitter refused.
    #[error("request cannot be admitted: {0}")]
    NotAdmitted(String),
    /// No profile's pick can answer.
    #[error(transparent)]
    NotRouted(#[from] RouteError),
    /// The request asks for an endpoint that holds a part of its prompt, and the best does not.
    #[error("no decode worker has the requested KV cache")]
    NothingCached,
    /// As many requests are in flight as may be.
    #[error("{limit} requests are in flight, the limit")]
    TooMany {
        /// The limit.
        limit: usize,
    },
}
