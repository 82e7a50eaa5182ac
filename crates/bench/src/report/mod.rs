//! Results of a measurement, as one value from which every form of report is made.

pub mod compare;
pub mod html;
pub mod json;
pub mod table;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stator_runtime::date::rfc3339;

use crate::args::{LoadArgs, ObjectiveArgs};
use crate::histogram::Summary;
use crate::process::{MachineCost, ProcessCost};
use crate::record::Record;
use crate::series::{Point, TimeSlot};

/// Version of the JSON form; it changes when a field is removed or changes its meaning.
pub const FORMAT: u32 = 1;
/// Points of a distribution's curve.
const CURVE_POINTS: usize = 200;

/// Results of a measurement. Times end in `_ms`, `_us` or `_s`, sizes in `_bytes`; shares are 0 to
/// 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of `stator bench`.
    pub version: String,
    /// Name that the user gave.
    pub label: String,
    /// Start of the measurement, in UTC as RFC 3339 has it.
    pub started_at: String,
    /// The model that was asked for.
    pub model: String,
    /// All arguments by name, without secrets.
    pub config: Value,
    /// Whether requests arrived at times of their own, and not when others ended.
    pub open_loop: bool,
    /// Length of the measurement, from the first request to the end of the last.
    pub window_s: f64,
    /// Counts of requests.
    pub requests: Requests,
    /// Counts of tokens, of requests that succeeded.
    pub tokens: Tokens,
    /// Rates over the whole window.
    pub throughput: Throughput,
    /// Distributions of times, of requests that succeeded.
    pub latency: Latency,
    /// Goodput, where there are objectives.
    pub goodput: Option<Goodput>,
    /// Cost of measured processes.
    pub processes: Vec<Process>,
    /// CPU use of the machine; absent without `/proc`.
    pub machine: Option<MachineCost>,
    /// Cumulative distributions, as `(milliseconds, share)`.
    pub curves: Curves,
    /// Events over time.
    pub series: Over,
    /// An even sample of single requests.
    pub points: Vec<Point>,
}

/// Counts of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Sent, whatever came of them.
    pub sent: u64,
    /// Answered well.
    pub succeeded: u64,
    /// Failed.
    pub failed: u64,
    /// Cut off, because the measurement was ended early.
    pub unfinished: u64,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
}

/// Counts of tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// Of prompts, as the server counted.
    pub prompt: u64,
    /// Of answers.
    pub output: u64,
    /// Of prompts, reused; absent where the server does not say.
    pub cached: Option<u64>,
    /// Reused ones, as a share of the prompts' tokens.
    pub cached_share: Option<f64>,
    /// Answers without the server's count: their chunks were counted as tokens.
    pub uncounted_answers: u64,
}

/// Rates over the whole window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Requests that succeeded.
    pub requests_per_s: f64,
    /// Tokens of answers.
    pub output_tokens_per_s: f64,
    /// Tokens of prompts and answers.
    pub total_tokens_per_s: f64,
}

/// Distributions of times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From sending a request to its first chunk with content.
    pub ttft: Summary,
    /// `(latency − TTFT) / (OSL − 1)`, a value for each request.
    pub itl: Summary,
    /// Gaps between chunks with content, a value for each gap.
    pub inter_chunk: Summary,
    /// From sending a request to the end of its answer.
    pub e2e: Summary,
    /// Delay of sending against the plan; zero in a closed loop. Timers have a resolution of 1 ms,
    /// so that about 1 ms of lag is none.
    pub send_lag: Summary,
}

/// Requests that met every objective.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// Good requests.
    pub good: u64,
    /// Good requests per second.
    pub requests_per_s: f64,
    /// As a share of all that ended, failed ones included.
    pub share: f64,
}

/// Cost of a measured process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Cost as read from the system.
    #[serde(flatten)]
    pub cost: ProcessCost,
    /// CPU time for each request that ended, in microseconds.
    pub cpu_us_per_request: Option<f64>,
    /// CPU time for each token of an answer, in microseconds.
    pub cpu_us_per_output_token: Option<f64>,
}

/// Cumulative distributions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Of TTFT.
    pub ttft: Vec<(f64, f64)>,
    /// Of ITL.
    pub itl: Vec<(f64, f64)>,
    /// Of end-to-end latency.
    pub e2e: Vec<(f64, f64)>,
}

/// Events over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Over {
    /// Width of a slot.
    pub slot_s: f64,
    /// The slots, from the start on.
    pub slots: Vec<TimeSlot>,
}

/// Measurements from which a report is made.
#[derive(Debug)]
pub struct Measurement {
    /// The model that was asked for.
    pub model: String,
    /// Start of the measurement.
    pub started_at: SystemTime,
    /// Length of the measurement.
    pub window: Duration,
    /// Record of the requests.
    pub record: Record,
    /// Requests that were cut off.
    pub unfinished: u64,
    /// Cost of measured processes.
    pub processes: Vec<ProcessCost>,
    /// CPU use of the machine.
    pub machine: Option<MachineCost>,
}

impl Report {
    /// The report of one measurement.
    pub fn new(args: &LoadArgs, measured: Measurement) -> Self {
        let Measurement { model, started_at, window, record, unfinished, processes, machine } =
            measured;
        let window_s = window.as_secs_f64();
        // What was cut off cost the server something too, but nobody knows how much.
        let ended = record.succeeded + record.failed;
        let cost = |cost| process(cost, ended, record.output_tokens);
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            label: args.output.label.clone(),
            started_at: rfc3339(started_at),
            model,
            config: serde_json::to_value(args).unwrap_or_default(),
            open_loop: args.pace.rate.is_some() || args.trace.trace.is_some(),
            window_s,
            tokens: tokens(&record),
            throughput: throughput(&record, window_s),
            latency: latency(&record),
            goodput: goodput(&record, &args.objectives, window_s),
            processes: processes.into_iter().map(cost).collect(),
            machine,
            curves: Curves {
                ttft: record.ttft.distribution(CURVE_POINTS),
                itl: record.itl.distribution(CURVE_POINTS),
                e2e: record.e2e.distribution(CURVE_POINTS),
            },
            series: Over {
                slot_s: record.series.width().as_secs_f64(),
                slots: record.series.slots().to_vec(),
            },
            points: record.points.points().to_vec(),
            requests: Requests {
                sent: ended + unfinished,
                succeeded: record.succeeded,
                failed: record.failed,
                unfinished,
                failures: record.failures,
            },
        }
    }
}

fn tokens(record: &Record) -> Tokens {
    let known = record.cacheable_tokens > 0;
    Tokens {
        prompt: record.prompt_tokens,
        output: record.output_tokens,
        cached: known.then_some(record.cached_tokens),
        cached_share: known.then(|| record.cached_tokens as f64 / record.cacheable_tokens as f64),
        uncounted_answers: record.uncounted,
    }
}

fn throughput(record: &Record, window_s: f64) -> Throughput {
    Throughput {
        requests_per_s: per(record.succeeded, window_s),
        output_tokens_per_s: per(record.output_tokens, window_s),
        total_tokens_per_s: per(record.prompt_tokens + record.output_tokens, window_s),
    }
}

fn latency(record: &Record) -> Latency {
    Latency {
        ttft: record.ttft.summary(),
        itl: record.itl.summary(),
        inter_chunk: record.gap.summary(),
        e2e: record.e2e.summary(),
        send_lag: record.lag.summary(),
    }
}

fn goodput(record: &Record, objectives: &ObjectiveArgs, window_s: f64) -> Option<Goodput> {
    let ObjectiveArgs { slo_ttft_ms, slo_itl_ms, slo_e2e_ms } = objectives;
    slo_ttft_ms.or(*slo_itl_ms).or(*slo_e2e_ms)?;
    let ended = (record.succeeded + record.failed) as f64;
    let (good, requests_per_s) = (record.good, per(record.good, window_s));
    Some(Goodput { good, requests_per_s, share: per(good, ended) })
}

fn process(cost: ProcessCost, requests: u64, output_tokens: u64) -> Process {
    let each = |n: u64| cost.cpu_ms.filter(|_| n > 0).map(|ms| ms * 1e3 / n as f64);
    let (cpu_us_per_request, cpu_us_per_output_token) = (each(requests), each(output_tokens));
    Process { cost, cpu_us_per_request, cpu_us_per_output_token }
}

/// A ratio that is zero where there is nothing to divide by.
fn per(count: u64, of: f64) -> f64 {
    if of > 0.0 { count as f64 / of } else { 0.0 }
}

#[cfg(test)]
pub(crate) mod tests;
