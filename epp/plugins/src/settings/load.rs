//! Settings of how load is counted and judged.

use super::PluginSettings;
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::PluginParts;
use stator_epp_scheduler::{InFlight, Request};
use std::time::Duration;

/// Settings of `inflight-load-producer`: what a request counts for while it is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InFlightLoad {
    /// Tokens of output for each token of the prompt, where output counts at all.
    pub output_ratio: Option<f64>,
    /// Most tokens of output that count.
    pub max_output_tokens: Option<u64>,
    /// Whether each replica goes by what it sent itself alone.
    pub apart: bool,
}

impl InFlightLoad {
    /// Tokens of output that a request counts for until it ends; its uncached prompt counts until
    /// its first token.
    pub fn output_tokens(&self, request: &Request<'_>) -> u64 {
        let Some(ratio) = self.output_ratio else { return 0 };
        let estimate = (f64::from(request.prompt.tokens) * ratio) as u64;
        let asked = request.max_output_tokens.map_or(u64::MAX, u64::from);
        estimate.min(asked).min(self.max_output_tokens.unwrap_or(u64::MAX))
    }
}

/// Measure of endpoints' saturation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detector {
    /// Measured by engines' reports.
    Utilization(Utilization),
    /// Measured by the load in flight.
    Concurrency(Concurrency),
}

/// Settings of `utilization-detector`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// Waiting requests of a full endpoint.
    pub queue_depth: f64,
    /// KV cache usage of a full endpoint, 0 to 1.
    pub kv_usage: f64,
    /// Age at which a report counts for nothing.
    pub staleness: Duration,
    /// Share beyond full that an endpoint may be filled to.
    pub headroom: f64,
}

/// Settings of `concurrency-detector`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    /// Quantity that counts.
    pub mode: ConcurrencyMode,
    /// Requests in flight of a full endpoint.
    pub requests: u64,
    /// Tokens in flight of a full endpoint.
    pub tokens: u64,
    /// Share beyond full that an endpoint may be filled to.
    pub headroom: f64,
}

/// Quantity that `concurrency-detector` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyMode {
    /// Requests.
    Requests,
    /// Tokens.
    Tokens,
    /// Whichever is more.
    Hybrid,
}

impl Concurrency {
    /// Saturation of an endpoint; 1 is full.
    pub fn fullness(&self, in_flight: InFlight) -> f64 {
        let requests = in_flight.requests as f64 / self.requests as f64;
        let tokens = in_flight.tokens as f64 / self.tokens as f64;
        match self.mode {
            ConcurrencyMode::Requests => requests,
            ConcurrencyMode::Tokens => tokens,
            ConcurrencyMode::Hybrid => requests.max(tokens),
        }
    }
}

/// `inflight-load-producer`.
pub(crate) fn in_flight_load(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("prefixMatchInfoProducerName");
    let counts = params.flag("addEstimatedOutputTokens", false);
    let ratio = params.number("outputRatio", 1.5, Bound::AtLeast(0.0));
    let limited = params.has("maxEstimatedOutputTokens");
    let limit = params.whole("maxEstimatedOutputTokens", 0, 0..=u64::MAX);
    let apart = !params.flag("syncCrossReplicaState", true);
    context.settle(PluginSettings::InFlightLoad(InFlightLoad {
        output_ratio: counts.then_some(ratio),
        max_output_tokens: limited.then_some(limit),
        apart,
    }))
}

/// Reads the parameters of `utilization-detector`.
pub(crate) fn utilization_detector(params: &mut Params<'_>) -> Utilization {
    Utilization {
        queue_depth: params.number("queueDepthThreshold", 5.0, Bound::Above(0.0)),
        kv_usage: params.number("kvCacheUtilThreshold", 0.8, Bound::UpTo(1.0)),
        staleness: params.duration("metricsStalenessThreshold", Duration::from_millis(200)),
        headroom: params.number("headroom", 0.0, Bound::AtLeast(0.0)),
    }
}

/// Reads the parameters of `concurrency-detector`.
pub(crate) fn concurrency_detector(params: &mut Params<'_>) -> Concurrency {
    params.text("inFlightLoadProducerName");
    let modes = [
        ("requests", ConcurrencyMode::Requests),
        ("tokens", ConcurrencyMode::Tokens),
        ("hybrid", ConcurrencyMode::Hybrid),
    ];
    // The parameter has had both names.
    let short = params.choice("mode", &modes);
    let long = params.choice("concurrencyMode", &modes);
    Concurrency {
        mode: if params.has("concurrencyMode") { long } else { short },
        requests: params.whole("maxConcurrency", 100, 1..=u64::MAX),
        tokens: params.whole("maxTokenConcurrency", 1_000_000, 1..=u64::MAX),
        headroom: params.number("headroom", 0.0, Bound::AtLeast(0.0)),
    }
}
