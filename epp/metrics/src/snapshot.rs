//! A pool at one moment.

use stator_epp_scheduler::{EngineLoad, FlowLoad, InFlight, STALE, Saturation, Scheduler, Time};
use std::sync::Arc;

/// A pool's name, and its state.
pub(crate) type PoolReading<'a> = (&'a str, PoolSnapshot);

/// State of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolSnapshot {
    /// Saturation of the pool; 1 and more is full.
    pub saturation: f64,
    /// Saturation of the endpoints that prefill, and of those that decode; `None` where there are
    /// none.
    pub stage_saturation: [Option<f64>; 2],
    /// Type of the saturation detector.
    pub detector: &'static str,
    /// Endpoints that take new requests.
    pub ready_endpoints: usize,
    /// Endpoints whose last report is too old to count, or that never reported.
    pub stale_endpoints: usize,
    /// Blocks that the KV index took in, since the start.
    pub index_admissions: u64,
    /// Blocks that the KV index forgot for lack of room, since the start.
    pub index_evictions: u64,
    /// The endpoints, also those that take nothing new now.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Sources of the endpoints' load.
    pub sources: Vec<SourceSnapshot>,
    /// Feeds of engines' KV events; `None` where none are followed.
    pub feeds: Option<FeedsSnapshot>,
    /// Fill of flow control's queues; `None` without flow control.
    pub flow: Option<FlowSnapshot>,
}

/// A data source, counted since the start.
#[derive(Clone, Debug, Default)]
pub struct SourceSnapshot {
    /// Its type in the configuration.
    pub source_type: &'static str,
    /// Type of the extractor that looks for values in the source.
    pub extractor_type: &'static str,
    /// Reads that failed.
    pub failed: u64,
    /// Reads in which a wanted value was missing.
    pub incomplete: u64,
}

/// The event feeds of a pool's engines, counted since the start.
#[derive(Clone, Debug, Default)]
pub struct FeedsSnapshot {
    /// The engines that are followed now.
    pub engines: Vec<FeedSnapshot>,
    /// Largest number of messages that may wait, of all engines together.
    pub capacity: usize,
    /// Removed blocks of which the engine holds another copy.
    pub removals_suppressed: u64,
    /// Removed blocks of which the engine holds no copy any more.
    pub removals_forwarded: u64,
    /// Stored events that were passed over, by reason.
    pub stores_skipped: Vec<SkippedEvents>,
    /// Removed events that were passed over, by reason.
    pub removals_skipped: Vec<SkippedEvents>,
}

/// One engine's event feed, counted since the picker follows it.
#[derive(Clone, Debug, Default)]
pub struct FeedSnapshot {
    /// The engine, as `namespace/name` of its endpoint.
    pub pod: Arc<str>,
    /// Messages that came.
    pub messages: u64,
    /// Messages that wait now.
    pub waiting: usize,
    /// Connections made again after a loss.
    pub reconnections: u64,
    /// Messages that could not be read.
    pub receive_errors: u64,
    /// Replays that were asked for and not given.
    pub replay_errors: u64,
}

/// Events that were passed over for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkippedEvents {
    /// Kind of cache in the events.
    pub cache_kind: &'static str,
    /// Reason for passing them over.
    pub reason: &'static str,
    /// Number of events.
    pub count: u64,
}

/// The queues of flow control.
#[derive(Clone, Debug, Default)]
pub struct FlowSnapshot {
    /// Bands, by priority.
    pub bands: Vec<BandSnapshot>,
    /// Fill of all priorities together.
    pub global: Use,
}

/// The queues of one priority.
#[derive(Clone, Debug, Default)]
pub struct BandSnapshot {
    /// The priority, in digits.
    pub priority: String,
    /// Fill of the band's queues.
    pub used: Use,
}

/// Share of the limit that waiting requests fill, 1 is full; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// In requests.
    pub requests: Option<f64>,
    /// In bytes of their bodies.
    pub bytes: Option<f64>,
}

/// State of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSnapshot {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Load that the engine reported; `None` if the report is too old, or there was none.
    pub load: Option<LoadSnapshot>,
    /// Load that this replica sent to the endpoint and that is not over, by flow.
    pub flows: Vec<FlowInFlight>,
    /// Load in flight from other replicas.
    pub others: InFlight,
}

/// Load in flight of one flow.
#[derive(Clone, Debug)]
pub struct FlowInFlight {
    /// Fairness id of the requests.
    pub fairness_id: Arc<str>,
    /// Their priority, in digits.
    pub priority: String,
    /// Load in flight of the flow.
    pub in_flight: InFlight,
}

/// Load that an engine reported.
#[derive(Clone, Copy, Debug)]
pub struct LoadSnapshot {
    /// Requests that wait.
    pub waiting: f64,
    /// Requests that run.
    pub running: f64,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_usage: f64,
}

impl PoolSnapshot {
    /// The state of a scheduler's pool, without its sources, feeds and queues.
    pub fn of(scheduler: &Scheduler, now: Time) -> Self {
        let flow = |flow: &FlowLoad| FlowInFlight {
            fairness_id: flow.fairness_id.clone(),
            priority: flow.priority.to_string(),
            in_flight: flow.in_flight,
        };
        // Both come in the order of the endpoints.
        let endpoints = scheduler.endpoints().zip(scheduler.flows());
        let endpoints = endpoints.map(|((endpoint, load, _), (flows, others))| EndpointSnapshot {
            name: endpoint.name.clone(),
            namespace: endpoint.namespace.clone(),
            load: fresh(load, now),
            flows: flows.map(flow).collect(),
            others,
        });
        let stats = scheduler.stats(now);
        Self {
            saturation: stats.saturation,
            stage_saturation: stats.stage_saturation,
            detector: match scheduler.program().saturation {
                Saturation::Utilization { .. } => "utilization-detector",
                Saturation::Concurrency { .. } => "concurrency-detector",
            },
            ready_endpoints: stats.ready_endpoints,
            stale_endpoints: stats.stale_endpoints,
            index_admissions: stats.admitted_blocks,
            index_evictions: stats.placement.dropped_blocks,
            endpoints: endpoints.collect(),
            ..Self::default()
        }
    }
}

fn fresh(load: &EngineLoad, now: Time) -> Option<LoadSnapshot> {
    load.updated.filter(|at| now <= at.after(STALE)).map(|_| LoadSnapshot {
        waiting: load.waiting.into(),
        running: load.running.into(),
        kv_usage: load.kv_usage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_epp_scheduler::plugin::{Pick, ProfileHandler, RouteError, Routing};
    use stator_epp_scheduler::{Endpoint, NamedPlugin, Program, Request, Roles, SchedulerSettings};
    use stator_protos::{WorkerId, WorkerRank};
    use std::collections::BTreeMap;

    struct Nowhere;

    impl ProfileHandler for Nowhere {
        fn route<'a>(
            &self,
            _: &Request<'_>,
            _: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
        ) -> Result<Routing<'a>, RouteError> {
            Err(RouteError::Drained)
        }
    }

    fn program() -> Program {
        let (type_name, name) = ("nowhere".into(), "nowhere".into());
        Program {
            profiles: Vec::new(),
            handler: NamedPlugin { type_name, name, plugin: Arc::new(Nowhere) },
            screeners: Vec::new(),
            producers: Vec::new(),
            observers: Vec::new(),
            prefixes: Vec::new(),
            shared: Vec::new(),
            measured: Vec::new(),
            lookup_meter: None,
            admitters: Vec::new(),
            route_headers: Vec::new(),
            response_headers: Vec::new(),
            uses_kv: false,
            saturation: Saturation::default(),
        }
    }

    fn endpoint(number: u8, role: &str) -> Arc<Endpoint> {
        let labels = BTreeMap::from([("llm-d.ai/role".to_owned(), role.to_owned())]);
        Arc::new(Endpoint {
            worker: WorkerRank { worker: WorkerId(number.into()), rank: 0 },
            uid: "1".into(),
            name: format!("pod{number}-rank-0").into(),
            pod: format!("pod{number}").into(),
            namespace: "default".into(),
            address: ([10, 0, 0, number], 8000).into(),
            roles: Roles::of(&labels),
            labels: Arc::new(labels),
        })
    }

    #[test]
    fn a_scheduler_is_seen_as_it_is() {
        let mut scheduler = Scheduler::new(program(), SchedulerSettings::default());
        let endpoints = [endpoint(1, "prefill"), endpoint(2, "decode")];
        scheduler.set_endpoints(&endpoints);
        let now = Time::from_millis(1000);
        let load =
            EngineLoad { waiting: 3, kv_usage: 0.5, updated: Some(now), ..EngineLoad::default() };
        scheduler.report(endpoints[0].worker, load);
        let seen = PoolSnapshot::of(&scheduler, now);
        assert_eq!((seen.detector, seen.stale_endpoints), ("utilization-detector", 1));
        assert_eq!(seen.ready_endpoints, 2);
        assert_eq!(seen.saturation, scheduler.saturation(now));
        assert_eq!(seen.stage_saturation, [Some(0.625), Some(0.0)]);
        let queues = seen.endpoints.iter().map(|endpoint| {
            (&*endpoint.name, endpoint.load.map(|load| (load.waiting, load.kv_usage)))
        });
        let expected = [("pod1-rank-0", Some((3.0, 0.5))), ("pod2-rank-0", None)];
        assert_eq!(queues.collect::<Vec<_>>(), expected);
        scheduler.set_accepting(endpoints[1].worker, false);
        let seen = PoolSnapshot::of(&scheduler, now);
        assert_eq!((seen.ready_endpoints, seen.endpoints.len()), (1, 2));
    }

    fn check(updated: Option<u64>, now: u64, counts: bool) {
        let load = EngineLoad { updated: updated.map(Time::from_millis), ..EngineLoad::default() };
        assert_eq!(fresh(&load, Time::from_millis(now)).is_some(), counts);
    }

    #[test]
    fn a_report_counts_for_two_seconds() {
        check(Some(500), 500, true);
        check(Some(500), 2500, true);
        check(Some(500), 2501, false);
        check(None, 0, false);
    }
}
