//! `latency-observer-producer-hub`.

use super::observer::{LatencyObserver, ObserverSettings};
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::PluginParts;
use std::sync::Arc;
use std::time::Duration;

/// `latency-observer-producer-hub`: learns each endpoint's time to the first token at several loads
/// from the streamed answers that pass through the picker.
///
/// An endpoint's last `windowSize` observations are kept; the last `maxRequests` of those younger
/// than `maxObservationAge` give two anchors, at `lowPercentile` and `typicalPercentile`, once
/// there are `minRequests`. The floor is the tenth percentile of the tenth percentiles of
/// `bucketHistorySize` periods of `bucketDuration`, the least of them kept. All is computed when a
/// request is placed, at most every `intervalDuration`.
///
/// Source: the latency observer of the llm-d router.
pub(crate) fn latency_observer(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    params.text("inFlightLoadProducerName");
    let window = params.whole("windowSize", 5000, 1..=1_000_000) as usize;
    let requests = params.whole("maxRequests", 100, 1..=1_000_000) as usize;
    if requests > window {
        params.wrong("maxRequests", format!("{requests} is more than windowSize, {window}"));
    }
    // The anchors make a line, which two equal percentiles do not.
    let mut percentile = |name, default| params.number(name, default, Bound::Within(0.0, 100.0));
    let low = percentile("lowPercentile", 25.0);
    let typical = percentile("typicalPercentile", 50.0);
    if low >= typical {
        params.wrong("lowPercentile", format!("{low} is not below typicalPercentile, {typical}"));
    }
    let settings = ObserverSettings {
        interval: params.duration("intervalDuration", Duration::from_secs(1)),
        max_age: params.duration("maxObservationAge", Duration::from_secs(180)),
        window,
        requests,
        min_requests: params.whole("minRequests", 10, 1..=1_000_000) as usize,
        percentiles: [low, typical],
        bucket: params.duration("bucketDuration", Duration::from_secs(60)),
        history: params.whole("bucketHistorySize", 1000, 2..=1_000_000) as usize,
    };
    let observed = Arc::new(LatencyObserver::new(settings));
    context.new_latency_observer(observed.clone());
    PluginParts { observer: Some(observed), ..PluginParts::default() }
}
