//! `latency-observer-producer-hub`.

use super::curve::{Anchor, Anchors, Observation, rank};
use crate::context::BuildContext;
use crate::expiring::Expiring;
use crate::params::{Bound, Params};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::plugin::{Built, Observer, PlacedRequest, RequestProgress};
use stator_epp_scheduler::{Request, Time};
use stator_protos::WorkerRank;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Most requests that are followed at once; others are not learnt from.
const MAX_FOLLOWED: usize = 100_000;
/// Longest time for which a request without an answer is followed.
const FOLLOWED_FOR: Duration = Duration::from_secs(600);
/// The percentile that stands for an endpoint without load.
const FLOOR_PERCENTILE: f64 = 10.0;

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
pub(crate) fn latency_observer(params: &mut Params<'_>, context: &mut BuildContext) -> Built {
    params.text("inFlightLoadProducerName");
    let window = params.whole("windowSize", 5000, 1..=1_000_000) as usize;
    let requests = params.whole("maxRequests", 100, 1..=1_000_000) as usize;
    if requests > window {
        params.wrong("maxRequests", format!("{requests} is more than windowSize, {window}"));
    }
    let mut percentile = |name, default| params.number(name, default, Bound::Within(0.0, 100.0));
    let low = percentile("lowPercentile", 25.0);
    let typical = percentile("typicalPercentile", 50.0);
    if low >= typical {
        params.wrong("lowPercentile", format!("{low} is not below typicalPercentile, {typical}"));
    }
    let settings = Settings {
        interval: params.duration("intervalDuration", Duration::from_secs(1)),
        max_age: params.duration("maxObservationAge", Duration::from_secs(180)),
        window,
        requests,
        min_requests: params.whole("minRequests", 10, 1..=1_000_000) as usize,
        percentiles: [low, typical],
        bucket: params.duration("bucketDuration", Duration::from_secs(60)),
        history: params.whole("bucketHistorySize", 1000, 2..=1_000_000) as usize,
    };
    let state = State {
        endpoints: FxHashMap::default(),
        followed: Expiring::new(MAX_FOLLOWED, FOLLOWED_FOR),
    };
    let observed = Arc::new(LatencyObserver { settings, state: Mutex::new(state) });
    context.new_latency_observer(observed.clone());
    Built { observer: Some(observed), ..Built::default() }
}

/// Observations of all endpoints.
pub(crate) struct LatencyObserver {
    settings: Settings,
    state: Mutex<State>,
}

struct Settings {
    interval: Duration,
    max_age: Duration,
    window: usize,
    requests: usize,
    min_requests: usize,
    /// Percentiles of the low and of the typical anchor.
    percentiles: [f64; 2],
    bucket: Duration,
    history: usize,
}

struct State {
    endpoints: FxHashMap<WorkerRank, Window>,
    followed: Expiring<u64, PendingRequest>,
}

/// A request that waits for the first piece of its answer.
struct PendingRequest {
    worker: WorkerRank,
    in_flight: f64,
    placed: Time,
}

/// Observations of one endpoint.
#[derive(Default)]
struct Window {
    recent: VecDeque<(Time, Observation)>,
    /// All that were ever observed.
    observations: usize,
    bucket_began: Time,
    /// Seconds of the present period.
    bucket: Vec<f64>,
    /// The tenth percentiles of earlier periods, in order.
    floors: Vec<f64>,
    anchors: Anchors,
    computed: Option<Time>,
}

impl LatencyObserver {
    /// The present observation of an endpoint.
    pub(crate) fn anchors(&self, worker: WorkerRank, now: Time) -> Anchors {
        let mut state = self.state.lock();
        let Some(window) = state.endpoints.get_mut(&worker) else { return Anchors::default() };
        window.refresh(&self.settings, now);
        window.anchors
    }
}

impl Window {
    fn add(&mut self, seen: Observation, settings: &Settings, now: Time) {
        if now.0.saturating_sub(self.bucket_began.0) >= settings.bucket {
            self.close_bucket(settings.history);
            self.bucket_began = now;
        }
        // A period holds no more than a window does.
        if self.bucket.len() < settings.window {
            self.bucket.push(seen.ttft);
        }
        if self.recent.len() == settings.window {
            self.recent.pop_front();
        }
        self.recent.push_back((now, seen));
        self.observations += 1;
    }

    /// Ends a period; the greatest floors are forgotten first.
    fn close_bucket(&mut self, history: usize) {
        if self.bucket.is_empty() {
            return;
        }
        let floor = percentile(&mut self.bucket, FLOOR_PERCENTILE);
        self.bucket.clear();
        let at = self.floors.partition_point(|known| *known <= floor);
        self.floors.insert(at, floor);
        self.floors.truncate(history);
    }

    fn refresh(&mut self, settings: &Settings, now: Time) {
        // Once per interval at most: requests come more often than anchors change.
        let fresh = |computed: Time| now.0.saturating_sub(computed.0) < settings.interval;
        if self.computed.is_some_and(fresh) {
            return;
        }
        self.computed = Some(now);
        if now.0.saturating_sub(self.bucket_began.0) >= settings.bucket {
            self.close_bucket(settings.history);
            self.bucket_began = now;
        }
        let young =
            |&&(at, _): &&(Time, Observation)| now.0.saturating_sub(at.0) <= settings.max_age;
        let recent = self.recent.iter().rev().take(settings.requests).take_while(young);
        let mut recent: Vec<_> = recent.map(|(_, seen)| *seen).collect();
        recent.sort_by(|a, b| a.ttft.total_cmp(&b.ttft));
        self.anchors = Anchors::default();
        if self.observations >= settings.min_requests {
            self.anchors.floor = self.floor(&recent);
        }
        if !recent.is_empty() {
            let [low, typical] = settings.percentiles.map(|at| Anchor::at(&recent, at));
            let calibrated = recent.len() >= settings.min_requests;
            self.anchors = Anchors { low, typical, calibrated, ..self.anchors };
        }
    }

    /// Seconds without load, from earlier periods or, while there are none, of late.
    fn floor(&self, recent: &[Observation]) -> f64 {
        let known = |floors: &[f64]| floors.get(rank(floors.len(), FLOOR_PERCENTILE)).copied();
        let late = || recent.get(rank(recent.len(), FLOOR_PERCENTILE)).map(|seen| seen.ttft);
        known(&self.floors).or_else(late).unwrap_or(self.anchors.floor)
    }
}

fn percentile(seconds: &mut [f64], percentile: f64) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[rank(seconds.len(), percentile)]
}

impl Observer for LatencyObserver {
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, now: Time) {
        let Some(target) = placed.routing.primary.targets.first() else { return };
        // An answer in one piece tells of its last token, not of its first.
        if request.stream {
            let in_flight = target.in_flight.requests as f64;
            let followed =
                PendingRequest { worker: target.endpoint.worker, in_flight, placed: now };
            self.state.lock().followed.insert(placed.ticket, followed, now);
        }
    }

    fn first_token(&self, progress: &RequestProgress<'_>, now: Time) {
        let state = &mut *self.state.lock();
        let Some(followed) = state.followed.remove(&progress.ticket, now) else { return };
        // What another endpoint served tells nothing of this one.
        if progress.served.is_none() {
            let ttft = now.0.saturating_sub(followed.placed.0).as_secs_f64();
            let seen = Observation { in_flight: followed.in_flight, ttft };
            let window = state.endpoints.entry(followed.worker).or_default();
            window.add(seen, &self.settings, now);
        }
    }

    fn ended(&self, progress: &RequestProgress<'_>, now: Time) {
        self.state.lock().followed.remove(&progress.ticket, now);
    }

    fn left(&self, worker: WorkerRank) {
        self.state.lock().endpoints.remove(&worker);
    }
}
