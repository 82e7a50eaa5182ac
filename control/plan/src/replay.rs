//! Layouts under the user's arrivals, in virtual time.

use crate::layout::{Candidate, Layout, WorkerGroup};
use crate::request::{PlanRequest, Targets};
use crate::step::StepModel;
use serde::Serialize;
use stator_fleet_model::time::{MS, from_seconds};
use stator_fleet_model::{
    EngineLimits, FixedWorkload, FleetSettings, PolicyKind, Replay, RoleEngine, RunOutcome, Sides,
    Slo, TierLimits, TimeSummary, Transfer, Violation, Workload, WorkloadError, World,
};
use stator_timing::Timing;
use std::path::Path;

/// Tokens per block of the replay.
const BLOCK_TOKENS: u32 = 16;
/// Tokens that an engine computes in one step. Source: vLLM's default for an API server on GPUs of
/// 70 GiB and more.
pub(crate) const STEP_TOKENS: u32 = 8_192;
/// Requests of a replay: enough for a 99th percentile, and for queues to grow that will.
const REQUESTS: u32 = 2_000;
/// Replays that look for the highest rate; each halves what is not known.
const RATE_STEPS: u32 = 6;
/// Workers that a layout may get more, or fewer, than the closed form says.
const RESIZES: u32 = 6;

/// A layout and what the replay saw of it.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedPlan {
    /// The workers, with the number that the replay asked for.
    pub layout: Layout,
    /// The estimate of the closed form.
    pub estimate: crate::layout::Estimate,
    /// Requests per second that arrived.
    pub rate: f64,
    /// Times to the first token, milliseconds.
    pub ttft_ms: TimeSummary,
    /// Mean times between tokens of requests, milliseconds.
    pub itl_ms: TimeSummary,
    /// Share of requests within both targets.
    pub attainment: f64,
    /// Tokens of answers per second and GPU.
    pub gpu_tokens_s: f64,
    /// Share of the time that workers spent on steps.
    pub busy_share: f64,
}

/// Why a layout was not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A rule of the simulation is broken: an error in this program.
    #[error("a rule of the simulation is broken: {0}")]
    Broken(#[from] Violation),
    /// The trace cannot be read any more.
    #[error("trace: {0}")]
    Trace(#[from] WorkloadError),
}

impl ReplayedPlan {
    /// The slower tenth of requests as a share of the target that it is nearest to.
    pub fn used_share(&self, targets: &Targets) -> f64 {
        let used = |ms: f64, target_s: f64| ms / (target_s * 1e3);
        used(self.ttft_ms.p90, targets.ttft_s).max(used(self.itl_ms.p90, targets.itl_s))
    }
}

/// Replays a candidate. With a rate, workers are added or taken away until the fewest hold the
/// targets; without one, the rate is the highest at which the candidate's workers hold them.
/// `None` if the targets do not hold: with no number of workers that there are GPUs for, or at no
/// rate that is worth the name.
///
/// # Errors
///
/// [`ReplayError`]: a broken rule or trace.
pub fn replay(
    request: &PlanRequest,
    candidate: &Candidate,
) -> Result<Option<ReplayedPlan>, ReplayError> {
    match request.traffic.rate {
        Some(rate) => fewest_workers(request, candidate, rate),
        None => highest_rate(request, candidate),
    }
}

/// Replays one layout at one rate.
///
/// # Errors
///
/// [`ReplayError`]: a broken rule or trace.
pub fn replay_at(
    request: &PlanRequest,
    candidate: &Candidate,
    rate: f64,
) -> Result<ReplayedPlan, ReplayError> {
    let settings = fleet(request, &candidate.layout);
    let workload = workload(request, rate)?;
    let mut world = World::new(&settings, &workload, PolicyKind::Stator);
    while world.step()? {}
    let observations = world.finish()?;
    let outcome = RunOutcome::new(&observations, &workload, settings.slo, request.seed);
    Ok(ReplayedPlan {
        layout: candidate.layout,
        estimate: candidate.estimate,
        rate,
        ttft_ms: outcome.ttft_ms,
        itl_ms: outcome.itl_ms,
        attainment: outcome.good_share,
        gpu_tokens_s: outcome.output_tokens_per_s / f64::from(candidate.layout.gpus()),
        busy_share: outcome.busy_share,
    })
}

fn fewest_workers(
    request: &PlanRequest,
    candidate: &Candidate,
    rate: f64,
) -> Result<Option<ReplayedPlan>, ReplayError> {
    let holds = |plan: &ReplayedPlan| plan.attainment >= request.targets.attainment;
    let mut plan = replay_at(request, candidate, rate)?;
    let grows = !holds(&plan);
    let mut best = holds(&plan).then(|| plan.clone());
    // A layout that holds shrinks until it does not; one that does not hold grows until it does.
    for _ in 0..RESIZES {
        let Some(layout) = resized(request, &plan, grows) else { break };
        plan = replay_at(request, &Candidate { layout, ..*candidate }, rate)?;
        match (holds(&plan), grows) {
            (true, true) => return Ok(Some(plan)),
            (true, false) => best = Some(plan.clone()),
            (false, true) => {}
            (false, false) => break,
        }
    }
    Ok(best)
}

/// The layout with one worker more or fewer: of those that answer late, or of those with the most
/// room.
fn resized(request: &PlanRequest, plan: &ReplayedPlan, grows: bool) -> Option<Layout> {
    let change = |group: WorkerGroup| {
        let count = if grows { group.count + 1 } else { group.count.checked_sub(1)? };
        (count > 0).then(|| group.of(count))
    };
    let layout = match plan.layout {
        Layout::Aggregated(group) => Layout::Aggregated(change(group)?),
        Layout::Disaggregated { prefill, decode } => {
            let used = |figure: f64, target_s: f64| figure / (target_s * 1e3);
            let prompts = used(plan.ttft_ms.p90, request.targets.ttft_s);
            let answers = used(plan.itl_ms.p90, request.targets.itl_s);
            if (prompts > answers) == grows {
                Layout::Disaggregated { prefill: change(prefill)?, decode }
            } else {
                Layout::Disaggregated { prefill, decode: change(decode)? }
            }
        }
    };
    (layout.gpus() <= request.gpus).then_some(layout)
}

fn highest_rate(
    request: &PlanRequest,
    candidate: &Candidate,
) -> Result<Option<ReplayedPlan>, ReplayError> {
    let (mut low, mut high) = (0.0, candidate.estimate.rate * 1.5);
    let mut best = None;
    for _ in 0..RATE_STEPS {
        let rate = f64::midpoint(low, high);
        let plan = replay_at(request, candidate, rate)?;
        if plan.attainment >= request.targets.attainment {
            (low, best) = (rate, Some(plan));
        } else {
            high = rate;
        }
    }
    Ok(best)
}

/// The requests at this rate.
fn workload(request: &PlanRequest, rate: f64) -> Result<Workload, WorkloadError> {
    if let Some(trace) = &request.trace {
        return recorded(&trace.path, rate / trace.rate);
    }
    let fixed = FixedWorkload {
        prompt_tokens: request.traffic.input_tokens,
        shared_tokens: request.traffic.cached_tokens,
        output_tokens: request.traffic.output_tokens,
        rate,
        block_size: BLOCK_TOKENS,
    };
    Ok(Workload::fixed(fixed, REQUESTS, request.seed))
}

/// The first requests of a trace, so many times as fast as recorded.
pub(crate) fn recorded(path: &Path, speed: f64) -> Result<Workload, WorkloadError> {
    Workload::read(path, BLOCK_TOKENS, Replay { speed, repeat: 1, limit: REQUESTS })
}

fn fleet(request: &PlanRequest, layout: &Layout) -> FleetSettings {
    let engine = |group: &WorkerGroup| engine(request, group);
    let answering = engine(layout.answering());
    let (sides, prefill_engine) = match layout {
        Layout::Aggregated(group) => (Sides { aggregated: group.count, ..Sides::default() }, None),
        Layout::Disaggregated { prefill, decode } => {
            let sides = Sides { prefill: prefill.count, decode: decode.count, aggregated: 0 };
            (sides, Some(engine(prefill)))
        }
    };
    let step = step_model(request, layout.answering());
    let gigabytes = |bytes: f64| bytes / 1e9;
    FleetSettings {
        seed: request.seed,
        timing: answering.timing,
        limits: answering.limits,
        prefill_engine,
        kv_token_bytes: step.kv_bytes(1.0),
        transfer: Transfer {
            latency: MS,
            local_gb_s: gigabytes(request.gpu.link),
            remote_gb_s: gigabytes(request.gpu.network),
            host_workers: (request.gpu.per_node / layout.answering().worker.gpus()).max(1),
        },
        slo: Slo {
            ttft: from_seconds(request.targets.ttft_s),
            itl: from_seconds(request.targets.itl_s),
        },
        ..FleetSettings::new(&stator_timing::PRESETS[0], sides)
    }
}

/// The model on a worker of a group: groups are of workers that the search timed.
fn step_model<'a>(request: &'a PlanRequest, group: &WorkerGroup) -> StepModel<'a> {
    request.step_model(group.worker).expect("the search has timed every worker of a layout")
}

/// Step times of a group's workers under the requests of a plan.
pub(crate) fn step_times(request: &PlanRequest, group: &WorkerGroup) -> Timing {
    let traffic = &request.traffic;
    let step = step_model(request, group);
    let context = f64::from(traffic.input_tokens) + f64::from(traffic.output_tokens) / 2.0;
    let prompt = f64::from(traffic.input_tokens - traffic.cached_tokens);
    step.timing(f64::from(group.batch_max), context, prompt.max(2.0))
}

fn engine(request: &PlanRequest, group: &WorkerGroup) -> RoleEngine {
    let timing = step_times(request, group);
    let blocks = group.kv_tokens / u64::from(BLOCK_TOKENS);
    let limits = EngineLimits {
        block_size: BLOCK_TOKENS,
        total_blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        tiers: TierLimits::NONE,
        max_running: group.batch_max,
        step_tokens: STEP_TOKENS.max(group.batch_max),
        block_prefill: EngineLimits::block_prefill(&timing, BLOCK_TOKENS),
        stride: 1 << 16,
    };
    RoleEngine { timing, limits }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
