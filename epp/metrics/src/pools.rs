//! Levels of pools, read when metrics are.

use crate::bounded::{BoundedValues, OTHER};
use crate::exposition::{Metric, Row, SeriesValue, merged, single, write};
use crate::snapshot::{EndpointSnapshot, LoadSnapshot, PoolReading, PoolSnapshot};
use crate::{feeds, flow, names};
use parking_lot::Mutex;
use prometheus_client::encoding::DescriptorEncoder;
use stator_epp_scheduler::InFlight;
use std::sync::{Arc, Weak};

/// Value of `producer_name`: what counts requests in flight here is no plug-in that an operator
/// names, so that it has the name of the one it stands for.
const PRODUCER: &str = "inflight-load-producer";

/// Flows at endpoints that are told apart on one page. A thousand flows at a thousand endpoints
/// would be a million rows: from here on, flows become `other`.
const FLOWS_MAX: usize = 16_384;

/// A pool that shows its present state.
pub trait PoolView: Send + Sync {
    /// Its name in metrics; no other pool of the process has it.
    fn name(&self) -> &str;
    /// The present state. Called once per reading of the metrics; takes the pool's lock for
    /// microseconds.
    fn snapshot(&self) -> PoolSnapshot;
}

/// The pools of the process.
pub struct Pools {
    known: Mutex<Vec<Weak<dyn PoolView>>>,
    fairness_ids: Arc<BoundedValues>,
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pools").field(&self.known.lock().len()).finish()
    }
}

impl Pools {
    /// No pools; fairness ids are kept as far as `fairness_ids` says.
    pub(crate) fn new(fairness_ids: Arc<BoundedValues>) -> Self {
        Self { known: Mutex::default(), fairness_ids }
    }

    /// Shows a pool for as long as somebody else holds it.
    pub fn add(&self, pool: &Arc<dyn PoolView>) {
        let mut pools = self.known.lock();
        pools.retain(|known| known.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        // The list is let go before a pool is asked, which takes the pool's lock.
        let pools: Vec<_> = self.known.lock().iter().filter_map(Weak::upgrade).collect();
        let seen: Vec<_> = pools.iter().map(|pool| (pool.name(), pool.snapshot())).collect();
        for (metric, level) in LEVELS {
            let rows =
                seen.iter().filter_map(|(name, pool)| Some(gauge("name", name, level(pool)?)));
            write(encoder, metric, &rows.collect::<Vec<_>>())?;
        }
        encode_queues(encoder, &seen)?;
        self.encode_in_flight(encoder, &seen)?;
        let full = seen.iter().flat_map(|(name, pool)| {
            let [prefill, decode] = pool.stage_saturation;
            let stages =
                [("prefill", prefill), ("decode", decode), ("effective", Some(pool.saturation))];
            stages.into_iter().filter_map(move |(stage, level)| {
                Some((
                    vec![("inference_pool", *name), ("stage", stage)],
                    SeriesValue::Gauge(level?),
                ))
            })
        });
        write(encoder, &names::SATURATION, &full.collect::<Vec<_>>())?;
        // The name of the pool is not among the labels of the source.
        let stale = seen
            .iter()
            .map(|(_, pool)| gauge("detector", pool.detector, pool.stale_endpoints as f64));
        write(encoder, &names::STALE_ENDPOINTS, &merged(stale))?;
        let admissions = seen.iter().map(|(_, pool)| pool.index_admissions).sum();
        write(encoder, &names::INDEX_ADMISSIONS, &single(SeriesValue::count(admissions)))?;
        let evictions = seen.iter().map(|(_, pool)| pool.index_evictions).sum();
        write(encoder, &names::INDEX_EVICTIONS, &single(SeriesValue::count(evictions)))?;
        encode_sources(encoder, &seen)?;
        feeds::encode(encoder, &seen)?;
        flow::encode_use(encoder, &seen)
    }

    fn encode_in_flight(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        seen: &[PoolReading<'_>],
    ) -> std::fmt::Result {
        let rows = |level: fn(&InFlight) -> u64| {
            let mut count = 0;
            let bound = |id| {
                count += 1;
                if count > FLOWS_MAX { OTHER } else { self.fairness_ids.bound(id) }
            };
            let endpoints = seen.iter().flat_map(|(_, pool)| &pool.endpoints);
            // A pod that two pools select is one endpoint with what both sent it.
            merged(in_flight_rows(endpoints, bound, level))
        };
        write(encoder, &names::INFLIGHT_REQUESTS, &rows(|in_flight| in_flight.requests))?;
        write(encoder, &names::INFLIGHT_TOKENS, &rows(|in_flight| in_flight.tokens))
    }
}

type Level = fn(&PoolSnapshot) -> Option<f64>;

/// Gauges of a pool as a whole. Without an endpoint that reports there is no mean.
const LEVELS: [(&Metric, Level); 7] = [
    (&names::AVERAGE_KV, |pool| mean(pool, |load| load.kv_usage)),
    (&names::AVERAGE_QUEUE, |pool| mean(pool, |load| load.waiting)),
    (&names::AVERAGE_RUNNING, |pool| mean(pool, |load| load.running)),
    (&names::STD_DEV_KV, |pool| deviation(pool, |load| load.kv_usage)),
    (&names::STD_DEV_QUEUE, |pool| deviation(pool, |load| load.waiting)),
    (&names::STD_DEV_RUNNING, |pool| deviation(pool, |load| load.running)),
    (&names::READY_ENDPOINTS, |pool| Some(pool.ready_endpoints as f64)),
];

fn gauge<'a>(label: &'static str, value: &'a str, level: f64) -> Row<'a> {
    (vec![(label, value)], SeriesValue::Gauge(level))
}

fn loads(pool: &PoolSnapshot) -> impl Iterator<Item = LoadSnapshot> {
    pool.endpoints.iter().filter_map(|endpoint| endpoint.load)
}

fn mean(pool: &PoolSnapshot, of: fn(&LoadSnapshot) -> f64) -> Option<f64> {
    let (sum, count) = loads(pool).fold((0.0, 0.0), |(sum, n), load| (sum + of(&load), n + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// Standard deviation of the population: the endpoints are all there are, and no sample.
fn deviation(pool: &PoolSnapshot, of: fn(&LoadSnapshot) -> f64) -> Option<f64> {
    let mean = mean(pool, of)?;
    let squares = loads(pool).map(|load| (of(&load) - mean).powi(2));
    let (sum, count) = squares.fold((0.0, 0.0), |(sum, n), square| (sum + square, n + 1.0));
    Some((sum / count).sqrt())
}

fn encode_queues(
    encoder: &mut DescriptorEncoder<'_>,
    seen: &[PoolReading<'_>],
) -> std::fmt::Result {
    let all = seen
        .iter()
        .flat_map(|(pool, is)| is.endpoints.iter().map(move |endpoint| (*pool, endpoint)));
    let queues = all.filter_map(|(pool, endpoint)| {
        let labels = vec![("name", pool), ("model_server_endpoint", &*endpoint.name)];
        Some((labels, SeriesValue::Gauge(endpoint.load?.waiting)))
    });
    write(encoder, &names::ENDPOINT_QUEUE, &queues.collect::<Vec<_>>())
}

/// Pools are not among the labels of the source either.
fn encode_sources(
    encoder: &mut DescriptorEncoder<'_>,
    seen: &[PoolReading<'_>],
) -> std::fmt::Result {
    let all = || seen.iter().flat_map(|(_, pool)| &pool.sources);
    let failed = all().filter_map(|source| {
        let labels = vec![("source_type", source.source_type)];
        Some((labels, SeriesValue::count(source.failed)?))
    });
    write(encoder, &names::POLL_ERRORS, &merged(failed))?;
    let incomplete = all().filter_map(|source| {
        let extractor = ("extractor_type", source.extractor_type);
        let labels = vec![("source_type", source.source_type), extractor];
        Some((labels, SeriesValue::count(source.incomplete)?))
    });
    write(encoder, &names::EXTRACT_ERRORS, &merged(incomplete))
}

/// Load in flight at endpoints: a row for each flow, with `bound` of its fairness id. Requests of
/// other replicas are one row, and an endpoint without any load has one too: the labels of both are
/// empty, which reads as absent.
fn in_flight_rows<'a>(
    endpoints: impl Iterator<Item = &'a EndpointSnapshot>,
    mut bound: impl FnMut(&'a str) -> &'a str,
    level: fn(&InFlight) -> u64,
) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for endpoint in endpoints {
        let mut row = |fairness_id, priority, in_flight| {
            let labels = vec![
                ("endpoint_name", &*endpoint.name),
                ("namespace", &*endpoint.namespace),
                ("producer_name", PRODUCER),
                ("fairness_id", fairness_id),
                ("priority", priority),
            ];
            rows.push((labels, SeriesValue::Gauge(level(in_flight) as f64)));
        };
        for flow in &endpoint.flows {
            row(bound(&flow.fairness_id), &*flow.priority, &flow.in_flight);
        }
        // Without a row of its own an idle endpoint would look like one that is gone.
        if endpoint.flows.is_empty() || endpoint.others != InFlight::default() {
            row("", "", &endpoint.others);
        }
    }
    rows
}
