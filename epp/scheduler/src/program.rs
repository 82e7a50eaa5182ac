//! A configuration turned into what runs: profiles of plug-ins, and what stands around them.

use crate::plugin::{
    Admitter, Filter, LookupMeter, MeteredPlugin, Observer, Picker, PrefixIndex, Producer,
    ProfileHandler, ResponseHeaders, RouteHeaders, Scorer, Screener, SharedIndex,
};
use std::sync::Arc;
use std::time::Duration;

/// A scheduling profile: filters in order, then scorers, then the picker.
#[derive(Clone)]
pub struct Profile {
    /// Its name in the configuration.
    pub name: String,
    /// Filters, in order.
    pub filters: Vec<NamedPlugin<dyn Filter>>,
    /// Scorers and their weights.
    pub scorers: Vec<(NamedPlugin<dyn Scorer>, f64)>,
    /// Chooses among what is left.
    pub picker: NamedPlugin<dyn Picker>,
}

/// A plug-in and its names, for metrics and explanations.
pub struct NamedPlugin<T: ?Sized> {
    /// Its type in the configuration.
    pub type_name: Arc<str>,
    /// Its name there.
    pub name: Arc<str>,
    /// The plug-in.
    pub plugin: Arc<T>,
}

impl<T: ?Sized> Clone for NamedPlugin<T> {
    fn clone(&self) -> Self {
        let Self { type_name, name, plugin } = self;
        Self { type_name: type_name.clone(), name: name.clone(), plugin: plugin.clone() }
    }
}

/// All plug-ins of a configuration, in their places.
#[derive(Clone)]
pub struct Program {
    /// The profiles; names are unique.
    pub profiles: Vec<Profile>,
    /// Handler that runs the profiles.
    pub handler: NamedPlugin<dyn ProfileHandler>,
    /// Screeners, run before all others, each on the candidates that the one before it left.
    pub screeners: Vec<NamedPlugin<dyn Screener>>,
    /// Producers, in the order in which they must run.
    pub producers: Vec<NamedPlugin<dyn Producer>>,
    /// Observers, in no particular order.
    pub observers: Vec<NamedPlugin<dyn Observer>>,
    /// Indices of prefixes among the producers.
    pub prefixes: Vec<NamedPlugin<dyn PrefixIndex>>,
    /// Indices that replicas share: of prefixes and of sessions.
    pub shared: Vec<NamedPlugin<dyn SharedIndex>>,
    /// Plug-ins that make countable findings.
    pub measured: Vec<NamedPlugin<dyn MeteredPlugin>>,
    /// Meter of lookups in the placement core's index; `None` if nobody measures them.
    pub lookup_meter: Option<Arc<dyn LookupMeter>>,
    /// Admitters; all must agree.
    pub admitters: Vec<NamedPlugin<dyn Admitter>>,
    /// Plug-ins that add headers for the endpoint that answers.
    pub route_headers: Vec<NamedPlugin<dyn RouteHeaders>>,
    /// Plug-ins that add headers for the client.
    pub response_headers: Vec<NamedPlugin<dyn ResponseHeaders>>,
    /// Whether the placement core's costs and overlaps are wanted.
    pub uses_kv: bool,
    /// Measure by which the pool counts as full for requests of negative priority.
    pub saturation: Saturation,
}

/// Measure of a pool's saturation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saturation {
    /// Measured by engines' reports: the mean over the endpoints of the larger of queue and cache
    /// use, each relative to its threshold; an endpoint whose report is older than `staleness` is
    /// judged by its load in flight, as if each request waited.
    ///
    /// Source: `utilization-detector` of the llm-d router, which takes a stale endpoint for full.
    Utilization {
        /// Waiting requests at which an endpoint is full.
        queue_depth: f64,
        /// Share of KV blocks at which it is full, 0 to 1.
        kv_usage: f64,
        /// Age at which a report counts no more.
        staleness: Duration,
    },
    /// Measured by the load sent: the share of the requests, of the tokens, or the larger of both,
    /// that may be in flight.
    ///
    /// Source: `concurrency-detector` of the llm-d router.
    Concurrency {
        /// Requests in flight at which an endpoint is full; `None` does not count them.
        requests: Option<u64>,
        /// Tokens in flight at which an endpoint is full; `None` does not count them.
        tokens: Option<u64>,
    },
}

impl Default for Saturation {
    fn default() -> Self {
        Self::Utilization { queue_depth: 5.0, kv_usage: 0.8, staleness: Duration::from_millis(200) }
    }
}
