//! Times to the first token at several loads, as observed of each endpoint.

use super::curve::{Anchor, Anchors, Observation, rank};
use crate::expiring::Expiring;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::plugin::{Observer, PlacedRequest, RequestProgress};
use stator_epp_scheduler::{Request, Time};
use stator_protos::WorkerRank;
use std::collections::VecDeque;
use std::time::Duration;

/// Most requests that are followed at once; others are not learnt from.
const MAX_FOLLOWED: usize = 100_000;
/// Longest time for which a request without an answer is followed.
const FOLLOWED_FOR: Duration = Duration::from_secs(600);
/// The percentile that stands for an endpoint without load.
const FLOOR_PERCENTILE: f64 = 10.0;

/// Observations of all endpoints.
pub(crate) struct LatencyObserver {
    settings: ObserverSettings,
    state: Mutex<State>,
}

/// Bounds and percentiles of observations, see `latency-observer-producer-hub`.
pub(super) struct ObserverSettings {
    pub(super) interval: Duration,
    pub(super) max_age: Duration,
    pub(super) window: usize,
    pub(super) requests: usize,
    pub(super) min_requests: usize,
    /// Percentiles of the low and of the typical anchor.
    pub(super) percentiles: [f64; 2],
    pub(super) bucket: Duration,
    pub(super) history: usize,
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
    /// Nothing is observed yet.
    pub(super) fn new(settings: ObserverSettings) -> Self {
        let followed = Expiring::new(MAX_FOLLOWED, FOLLOWED_FOR);
        let state = State { endpoints: FxHashMap::default(), followed };
        Self { settings, state: Mutex::new(state) }
    }

    /// The present observation of an endpoint.
    pub(crate) fn anchors(&self, worker: WorkerRank, now: Time) -> Anchors {
        let mut state = self.state.lock();
        let Some(window) = state.endpoints.get_mut(&worker) else { return Anchors::default() };
        window.refresh(&self.settings, now);
        window.anchors
    }
}

impl Window {
    fn add(&mut self, seen: Observation, settings: &ObserverSettings, now: Time) {
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

    fn refresh(&mut self, settings: &ObserverSettings, now: Time) {
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
