//! All layouts of a fleet by the closed form, the best of them first.

use crate::engine::EngineKind;
use crate::layout::{Candidate, Estimate, Layout, WorkerGroup};
use crate::request::{PlanRequest, Traffic};
use crate::step::StepModel;
use crate::worker::WorkerShape;
use serde::Serialize;
use std::cmp::Ordering;

/// Share of a GPU's memory that engines use by default.
const MEMORY_SHARE: f64 = 0.9;
/// Memory for activations, graphs and communication, bytes a GPU. An assumption, in the middle of
/// what engines report for models of 8 to 70 billion weights.
const RESERVE_BYTES: f64 = 3.5e9;
/// Most sequences that an engine is told to compute together.
const BATCH_MAX: u32 = 1_024;
/// Share of its time that a worker may spend on prompts: beyond, queues grow faster than the
/// replay of a few minutes would show.
const PREFILL_BUSY_MAX: f64 = 0.9;

/// A point of the trade between throughput and speed, of one worker at one batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TradePoint {
    /// Tokens per second of one user's answer.
    pub user_tokens_s: f64,
    /// Tokens per second and GPU.
    pub gpu_tokens_s: f64,
    /// The worker.
    pub worker: WorkerShape,
    /// Its sequences.
    pub batch: u32,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct SearchOutcome {
    /// Layouts within the targets and the GPUs: the best first.
    pub candidates: Vec<Candidate>,
    /// Aggregated workers of which no other is better in both: the slowest answers first.
    pub front: Vec<TradePoint>,
    /// Times that were computed for the search.
    pub points: usize,
    /// The best times that any worker reaches, whatever the targets.
    pub reach: Reach,
}

/// The best that any worker reaches with one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Time to the first token, seconds; infinite if the model fits no worker.
    pub ttft_s: f64,
    /// Time between two tokens, seconds.
    pub itl_s: f64,
    /// GPUs of the smallest worker that holds the model and one sequence; `None` if none does.
    pub gpus_min: Option<u32>,
}

/// A worker that holds the model.
struct Fit<'a> {
    step: StepModel<'a>,
    /// Sequences of full length that its KV has room for, at least 1.
    batch_max: u32,
    kv_tokens: u64,
}

/// One worker under load.
#[derive(Clone, Copy)]
struct Load {
    ttft_s: f64,
    itl_s: f64,
    rate: f64,
}

/// Searches engines, parallelism, batches and forms.
pub fn search(request: &PlanRequest) -> SearchOutcome {
    let mut outcome = SearchOutcome {
        candidates: Vec::new(),
        front: Vec::new(),
        points: 0,
        reach: Reach { ttft_s: f64::INFINITY, itl_s: f64::INFINITY, gpus_min: None },
    };
    for engine in &request.engines {
        let fits: Vec<Fit<'_>> =
            workers(request, *engine).filter_map(|w| fit(request, w)).collect();
        for fit in &fits {
            outcome.reach.add(fit, &request.traffic);
            trade(request, fit, &mut outcome);
        }
        if request.forms.aggregated {
            outcome.candidates.extend(fits.iter().filter_map(|fit| aggregated(request, fit)));
        }
        if request.forms.disaggregated {
            let pairs = fits.iter().flat_map(|prefill| fits.iter().map(move |fit| (prefill, fit)));
            let found =
                pairs.filter_map(|(prefill, decode)| disaggregated(request, prefill, decode));
            outcome.candidates.extend(found);
            outcome.points += fits.len() * fits.len();
        }
    }
    outcome.candidates.sort_by(|a, b| better(request, a, b));
    outcome.front = front(std::mem::take(&mut outcome.front));
    outcome
}

/// The order of candidates: with a rate the fewest GPUs, then the most room; without one the
/// highest rate, then the fewest GPUs.
fn better(request: &PlanRequest, a: &Candidate, b: &Candidate) -> Ordering {
    let rate = b.estimate.rate.total_cmp(&a.estimate.rate);
    let gpus = a.layout.gpus().cmp(&b.layout.gpus());
    if request.traffic.rate.is_some() { gpus.then(rate) } else { rate.then(gpus) }
}

/// Shapes of one engine that divide the model and fit the GPUs.
fn workers(request: &PlanRequest, engine: EngineKind) -> impl Iterator<Item = WorkerShape> {
    let (model, most) = (&request.model, request.gpus);
    let (per_node, has_experts) = (request.gpu.per_node, model.experts.is_some());
    let (heads, layers) = (model.heads, model.layers);
    let ways = |most: u32| (0..7).map(|power| 1 << power).take_while(move |ways| *ways <= most);
    ways(per_node).filter(move |tensor| heads.is_multiple_of(*tensor)).flat_map(move |tensor| {
        // Copies of the attention pay where experts are spread over them; for other models a
        // second worker does the same.
        let copies = if has_experts { per_node / tensor } else { 1 };
        ways(copies).flat_map(move |data| {
            // Stages are for models that one server cannot hold.
            let stages = if tensor * data == per_node { 4 } else { 1 };
            ways(stages)
                .map(move |pipeline| WorkerShape { engine, tensor, pipeline, data })
                .filter(move |worker| worker.gpus() <= most && worker.pipeline <= layers)
        })
    })
}

fn fit(request: &PlanRequest, worker: WorkerShape) -> Option<Fit<'_>> {
    let step = request.step_model(worker)?;
    let free = request.gpu.memory * MEMORY_SHARE - RESERVE_BYTES - step.weight_bytes();
    let length = request.traffic.length();
    let fits = (free / step.kv_bytes(length)).max(0.0) * f64::from(worker.data);
    let batch_max = (fits as u32).min(BATCH_MAX * worker.data);
    let kv_tokens = (fits * length) as u64;
    (batch_max > 0).then_some(Fit { step, batch_max, kv_tokens })
}

impl Traffic {
    /// Tokens of a request's KV at its end.
    fn length(&self) -> f64 {
        f64::from(self.input_tokens + self.output_tokens)
    }

    /// Tokens of a request's KV in the middle of its answer.
    fn mean_length(&self) -> f64 {
        f64::from(self.input_tokens) + f64::from(self.output_tokens) / 2.0
    }
}

impl Reach {
    fn add(&mut self, fit: &Fit<'_>, traffic: &Traffic) {
        let load = fit.load(traffic, 1);
        self.ttft_s = self.ttft_s.min(load.ttft_s);
        self.itl_s = self.itl_s.min(load.itl_s);
        let gpus = fit.step.worker.gpus();
        self.gpus_min = Some(self.gpus_min.map_or(gpus, |least| least.min(gpus)));
    }
}

impl Fit<'_> {
    /// Seconds of a prompt alone.
    fn prefill_s(&self, traffic: &Traffic) -> f64 {
        let cached = f64::from(traffic.cached_tokens);
        self.step.prefill_s(f64::from(traffic.input_tokens) - cached, cached)
    }

    /// Prompts that the worker computes at once.
    fn prompts(&self) -> f64 {
        f64::from(self.step.worker.pipeline * self.step.worker.data)
    }

    /// A worker that does both, always with `batch` sequences: while one of them makes its answer,
    /// each of the others has its prompt computed once.
    fn load(&self, traffic: &Traffic, batch: u32) -> Load {
        let (sequences, output) = (f64::from(batch), f64::from(traffic.output_tokens));
        let decode_s = self.step.decode_s(sequences, traffic.mean_length());
        let prefill_s = self.prefill_s(traffic);
        let share = sequences / self.prompts();
        let itl_s = decode_s + share * prefill_s / output;
        let busy = share * prefill_s / (output * itl_s);
        let ttft_s = first_token_s(prefill_s, busy) + decode_s;
        let rate = sequences / (ttft_s + itl_s * (output - 1.0));
        Load { ttft_s, itl_s, rate }
    }

    /// The largest batch, up to the worker's, for which something holds that larger batches make
    /// worse; 0 if it holds for none.
    fn largest(&self, holds: impl Fn(u32) -> bool) -> u32 {
        let (mut low, mut high) = (0, self.batch_max);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if holds(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    fn group(&self, batch_max: u32, count: u32) -> WorkerGroup {
        let kv_tokens = self.kv_tokens;
        WorkerGroup { worker: self.step.worker, batch_max, kv_tokens, count }
    }
}

/// Time until a prompt is computed by a worker that prompts keep busy for this share of the time:
/// the mean wait of a queue with random arrivals and equal work (M/D/1), and the work.
fn first_token_s(prefill_s: f64, busy: f64) -> f64 {
    prefill_s * (1.0 + busy / (2.0 * (1.0 - busy)))
}

fn aggregated(request: &PlanRequest, fit: &Fit<'_>) -> Option<Candidate> {
    let (traffic, targets) = (&request.traffic, &request.targets);
    let within = |batch| {
        let load = fit.load(traffic, batch);
        load.itl_s <= targets.itl_bound_s() && load.ttft_s <= targets.ttft_bound_s()
    };
    let batch = fit.largest(within);
    if batch == 0 {
        return None;
    }
    let load = fit.load(traffic, batch);
    let most = request.gpus / fit.step.worker.gpus();
    let count = traffic.rate.map_or(most, |rate| (rate / load.rate).ceil() as u32);
    let layout = Layout::Aggregated(fit.group(batch, count));
    let rate = load.rate * f64::from(count);
    let estimate = Estimate { ttft_s: load.ttft_s, itl_s: load.itl_s, rate };
    (count <= most).then_some(Candidate { layout, estimate })
}

fn disaggregated(request: &PlanRequest, prompts: &Fit<'_>, answers: &Fit<'_>) -> Option<Candidate> {
    let (traffic, targets) = (&request.traffic, &request.targets);
    let prefill_s = prompts.prefill_s(traffic);
    // KV goes over the network: two workers are on two servers in the worst case.
    let bytes = answers.step.kv_bytes(f64::from(traffic.input_tokens));
    let transfer_s = bytes / request.gpu.network;
    let context = traffic.mean_length();
    let decode_s = |batch: u32| answers.step.decode_s(f64::from(batch), context);
    let batch = answers.largest(|batch| decode_s(batch) <= targets.itl_bound_s());
    if batch == 0 {
        return None;
    }
    let itl_s = decode_s(batch);
    let rest_s = targets.ttft_bound_s() - transfer_s - itl_s;
    // From first_token_s, solved for the share: w = rest / prefill - 1, busy = 2w / (1 + 2w).
    let wait = rest_s / prefill_s - 1.0;
    if wait < 0.0 {
        return None;
    }
    let busy = (2.0 * wait / (1.0 + 2.0 * wait)).min(PREFILL_BUSY_MAX);
    let prompt_rate = busy * prompts.prompts() / prefill_s;
    let answer_rate = f64::from(batch) / (f64::from(traffic.output_tokens) * itl_s);
    let (prefill, decode) = (prompts.group(prompts.batch_max.min(64), 1), answers.group(batch, 1));
    let of = |prefills: u32, decodes: u32| {
        let rate = (f64::from(prefills) * prompt_rate).min(f64::from(decodes) * answer_rate);
        let ttft_s = first_token_s(prefill_s, busy) + transfer_s + itl_s;
        let layout =
            Layout::Disaggregated { prefill: prefill.of(prefills), decode: decode.of(decodes) };
        Candidate { layout, estimate: Estimate { ttft_s, itl_s, rate } }
    };
    if let Some(rate) = traffic.rate {
        let found = of((rate / prompt_rate).ceil() as u32, (rate / answer_rate).ceil() as u32);
        return (found.layout.gpus() <= request.gpus).then_some(found);
    }
    let (for_prompts, for_answers) = (prefill.worker.gpus(), decode.worker.gpus());
    let splits = (1..=request.gpus / for_prompts).filter_map(|prefills| {
        let decodes = (request.gpus - prefills * for_prompts) / for_answers;
        (decodes > 0).then(|| of(prefills, decodes))
    });
    splits.min_by(|a, b| better(request, a, b))
}

/// Points of one worker at batches that double.
fn trade(request: &PlanRequest, fit: &Fit<'_>, outcome: &mut SearchOutcome) {
    let worker = fit.step.worker;
    let batches = (0..16).map(|power| 1 << power).take_while(|batch| *batch <= fit.batch_max);
    for batch in batches {
        let load = fit.load(&request.traffic, batch);
        let tokens_s = load.rate * f64::from(request.traffic.output_tokens);
        let gpu_tokens_s = tokens_s / f64::from(worker.gpus());
        let user_tokens_s = 1.0 / load.itl_s;
        outcome.front.push(TradePoint { user_tokens_s, gpu_tokens_s, worker, batch });
        outcome.points += 1;
    }
}

/// The points of which no other is better in both.
fn front(mut points: Vec<TradePoint>) -> Vec<TradePoint> {
    points.sort_by(|a, b| b.user_tokens_s.total_cmp(&a.user_tokens_s));
    let mut best = 0.0;
    points.retain(|point| {
        let better = point.gpu_tokens_s > best;
        best = point.gpu_tokens_s.max(best);
        better
    });
    points.reverse();
    points
}

#[cfg(test)]
#[path = "search_tests.rs"]
pub(crate) mod tests;
