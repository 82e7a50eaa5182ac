//! The figures of one run.

use crate::engine::TierTotals;
use crate::settings::Slo;
use crate::time::{Ps, ms, seconds};
use crate::workload::Workload;
use crate::world::{Bar, Observations, Sample};
use serde::Serialize;

/// Points of a plotted distribution.
const POINTS: usize = 200;
/// Requests shown of the watched worker.
const BARS: usize = 80;

/// The usual figures of a distribution of times, in milliseconds; exact, and 0 where there are no
/// values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeSummary {
    /// Number of values.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest value.
    pub max: f64,
}

/// One policy's run.
#[derive(Clone, Debug, Serialize)]
pub struct RunOutcome {
    /// Name of the policy.
    pub policy: &'static str,
    /// Seed of the run.
    pub seed: u64,
    /// Requests of the workload.
    pub requests: usize,
    /// Requests without a whole answer.
    pub failed: usize,
    /// From the first arrival to the last end.
    pub span_s: f64,
    /// TimeSummary to the first token.
    pub ttft_ms: TimeSummary,
    /// Mean gaps between tokens, of requests with more than one.
    pub itl_ms: TimeSummary,
    /// Requests per second that met every objective.
    pub goodput: f64,
    /// Share of requests that met every objective.
    pub good_share: f64,
    /// Share of prompt tokens that were reused.
    pub cached_share: f64,
    /// Standard deviation over mean of the time that workers spent on steps.
    pub imbalance: f64,
    /// Share of the time that workers spent on steps, on average.
    pub busy_share: f64,
    /// Tokens of answers per second.
    pub output_tokens_per_s: f64,
    /// TimeSummary that a sequence had to start over in its engine.
    pub preemptions: u64,
    /// Blocks that the workers' tiers gave and took.
    pub tiers: TierTotals,
    /// TimeSummary that a request went to another worker after a death.
    pub migrations: u64,
    /// Deaths of workers.
    pub deaths: u64,
    /// Batches of KV events that were lost.
    pub lost_batches: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Cumulative distribution of TTFT: milliseconds, share of values up to them.
    pub ttft_curve: Vec<(f64, f64)>,
    /// Cumulative distribution of ITL.
    pub itl_curve: Vec<(f64, f64)>,
    /// Time that each worker spent on steps, as a share of the whole.
    pub busy: Vec<f64>,
    /// The fleet over time.
    pub samples: Vec<FleetPoint>,
    /// Requests in a row at one worker.
    pub bars: Vec<RequestSpan>,
}

/// The fleet at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FleetPoint {
    /// Seconds since the start.
    pub at_s: f64,
    /// Requests without a worker.
    pub held: u32,
    /// Requests that wait at a worker.
    pub waiting: u32,
    /// The longest waiting line of one worker.
    pub longest: u32,
    /// Requests that run.
    pub running: u32,
    /// Share of blocks that requests use.
    pub used: f64,
    /// Share of blocks that only the cache holds.
    pub cached: f64,
}

/// A request at the watched worker, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RequestSpan {
    /// When the worker got it.
    pub placed_s: f64,
    /// When its first token came.
    pub first_s: f64,
    /// When it ended.
    pub ended_s: f64,
}

impl RunOutcome {
    /// The figures of a run of `workload`.
    pub fn new(observations: &Observations, workload: &Workload, slo: Slo, seed: u64) -> Self {
        let requests = &observations.requests;
        let ttft = sorted(requests.iter().filter_map(|request| request.ttft));
        let itl = sorted(requests.iter().filter_map(|request| request.itl));
        let good = requests.iter().filter(|request| {
            request.complete
                && request.ttft.is_some_and(|ttft| ttft <= slo.ttft)
                && request.itl.is_none_or(|itl| itl <= slo.itl)
        });
        let good = good.count();
        // A run of one request that fails at once has no length to divide by.
        let span_s = seconds(observations.span).max(1e-9);
        let complete = || workload.requests.iter().zip(requests).filter(|pair| pair.1.complete);
        let prompt: u64 = complete().map(|pair| u64::from(pair.0.prompt_tokens)).sum();
        let cached: u64 = complete().map(|pair| u64::from(pair.1.cached_tokens)).sum();
        let output: u64 = complete().map(|pair| u64::from(pair.0.output_tokens)).sum();
        let busy: Vec<f64> = observations.busy.iter().map(|busy| seconds(*busy) / span_s).collect();
        let busy_share = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        Self {
            policy: observations.kind.name(),
            seed,
            requests: requests.len(),
            failed: requests.iter().filter(|request| !request.complete).count(),
            span_s,
            ttft_ms: times(&ttft),
            itl_ms: times(&itl),
            goodput: good as f64 / span_s,
            good_share: good as f64 / requests.len().max(1) as f64,
            cached_share: cached as f64 / prompt.max(1) as f64,
            imbalance: variation(&busy, busy_share),
            busy_share,
            output_tokens_per_s: output as f64 / span_s,
            preemptions: observations.preemptions,
            tiers: observations.tiers,
            migrations: observations.migrations,
            deaths: observations.deaths,
            lost_batches: observations.lost_batches,
            events: observations.events,
            ttft_curve: curve(&ttft),
            itl_curve: curve(&itl),
            busy,
            samples: observations.samples.iter().map(point).collect(),
            bars: middle(&observations.bars),
        }
    }
}

fn sorted(values: impl Iterator<Item = Ps>) -> Vec<Ps> {
    let mut values: Vec<Ps> = values.collect();
    values.sort_unstable();
    values
}

/// The nearest rank, so that a quantile is one of the values.
fn quantile(sorted: &[Ps], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().map_or(0.0, ms)
}

fn times(sorted: &[Ps]) -> TimeSummary {
    let sum: u128 = sorted.iter().copied().map(u128::from).sum();
    TimeSummary {
        count: sorted.len(),
        mean: sum as f64 / 1e9 / sorted.len().max(1) as f64,
        p50: quantile(sorted, 0.5),
        p90: quantile(sorted, 0.9),
        p99: quantile(sorted, 0.99),
        max: quantile(sorted, 1.0),
    }
}

fn curve(sorted: &[Ps]) -> Vec<(f64, f64)> {
    let shares = (0..=POINTS).map(|point| point as f64 / POINTS as f64);
    let points = shares.map(|share| (quantile(sorted, share), share));
    if sorted.is_empty() { Vec::new() } else { points.collect() }
}

fn variation(values: &[f64], mean: f64) -> f64 {
    if mean <= 0.0 {
        return 0.0;
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len() as f64).sqrt() / mean
}

fn point(sample: &Sample) -> FleetPoint {
    let &Sample { at, held, waiting, running, longest, used, cached } = sample;
    FleetPoint { at_s: seconds(at), held, waiting, longest, running, used, cached }
}

/// Some requests in a row from the middle of the run.
fn middle(bars: &[Bar]) -> Vec<RequestSpan> {
    let from = bars.len().saturating_sub(BARS) / 2;
    let shown = bars.iter().skip(from).take(BARS);
    let span = |bar: &Bar| RequestSpan {
        placed_s: seconds(bar.placed),
        first_s: seconds(bar.first),
        ended_s: seconds(bar.ended),
    };
    shown.map(span).collect()
}
