//! One planner on one fleet.

use crate::capacity::{Demand, SlaTargets, WorkerModel};
use crate::observation::{LatencySample, Observation, RequestSizes, TrafficTotals, WorkerSignal};
use crate::replicas::Replicas;
use stator_fleet_model::time::{Ps, SECOND, from_seconds, seconds};
use stator_fleet_model::{
    ArrivalTime, FleetSettings, Observations, PolicyKind, RequestMeasurement, Violation, Workload,
    World,
};
use stator_placement::Role as PlacementRole;
use stator_protos::discovery::Role;

/// Seconds between two decisions.
pub(super) const INTERVAL_S: f64 = 5.0;
/// Time over which latencies are measured, seconds.
const LATENCY_S: f64 = 45.0;
/// Time over which a share of late requests makes a violation, and that share's limit.
const SLICE_S: f64 = 10.0;
const VIOLATION_SHARE: f64 = 0.1;

/// A planner under study.
pub trait ScalingLaw {
    /// Its name in tables.
    fn name(&self) -> &str;

    /// Workers that it wants, asked every five seconds.
    fn wanted(&mut self, observation: &Observation) -> Replicas;
}

/// Requests and the fleet that they come to.
#[derive(Debug)]
pub struct StudyCase {
    /// Its name.
    pub name: String,
    /// The requests, with the times of their arrivals.
    pub workload: Workload,
    /// The fleet; its workers at the start are those of all planners.
    pub fleet: FleetSettings,
    /// Roles that are scaled.
    pub roles: Vec<Role>,
    /// GPUs of a worker.
    pub gpus: u32,
    /// Targets.
    pub targets: SlaTargets,
    /// Start-up time of a worker, seconds.
    pub warmup_s: f64,
}

/// Figures of one planner.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyOutcome {
    /// The planner.
    pub law: String,
    /// Share of requests that were answered within both targets.
    pub attainment: f64,
    /// GPU hours, from a worker's order until it is gone.
    pub gpu_hours: f64,
    /// Changes of a role's workers.
    pub actions: u32,
    /// Changes against the one before within a start-up time.
    pub reversals: u32,
    /// Longest time in which more than a tenth of requests were late, seconds.
    pub violation_s: f64,
    /// Requests without a whole answer.
    pub failed: usize,
    /// Share of prompt tokens that were reused.
    pub cached_share: f64,
    /// Workers over time: of all roles, every five seconds.
    pub workers: Vec<u32>,
}

/// Changes of a planner's mind.
#[derive(Default)]
struct ActionCount {
    last: Vec<(Role, f64, bool)>,
    actions: u32,
    reversals: u32,
}

impl ActionCount {
    fn count(&mut self, role: Role, at_s: f64, grows: bool, warmup_s: f64) {
        self.actions += 1;
        match self.last.iter_mut().find(|(of, _, _)| *of == role) {
            Some((_, then_s, grew)) => {
                self.reversals += u32::from(*grew != grows && at_s - *then_s <= warmup_s);
                (*then_s, *grew) = (at_s, grows);
            }
            None => self.last.push((role, at_s, grows)),
        }
    }
}

/// Runs a planner over all requests of a case.
///
/// # Errors
///
/// [`Violation`]: a rule of the simulation is broken.
pub fn replay(case: &StudyCase, law: &mut dyn ScalingLaw) -> Result<StudyOutcome, Violation> {
    let mut world = World::new(&case.fleet, &case.workload, PolicyKind::Stator);
    let sides = case.fleet.sides;
    let mut ordered =
        Replicas { prefill: sides.prefill, decode: sides.decode, aggregated: sides.aggregated };
    let (mut count, mut workers, mut tick) = (ActionCount::default(), Vec::new(), 0_u64);
    let warmup = from_seconds(case.warmup_s);
    loop {
        let wanted = law.wanted(&observe(&world, case, ordered));
        for role in &case.roles {
            let (from, to) = (ordered.of(*role), wanted.of(*role));
            if from != to {
                count.count(*role, tick as f64 * INTERVAL_S, to > from, case.warmup_s);
                world.resize(placement_role(*role), to, warmup);
                ordered.set(*role, to);
            }
        }
        workers.push(case.roles.iter().map(|role| ordered.of(*role)).sum());
        tick += 1;
        if !world.run_until(from_seconds(tick as f64 * INTERVAL_S))? {
            break;
        }
    }
    let observations = world.finish()?;
    Ok(outcome(case, law.name(), &observations, count, workers))
}

/// Signals of the fleet as it is.
fn observe(world: &World<'_>, case: &StudyCase, ordered: Replicas) -> Observation {
    let state = world.state();
    let totals = state.totals;
    let workers = world.workers_up().map(|worker| WorkerSignal {
        role: match worker.role {
            PlacementRole::Prefill => Role::Prefill,
            PlacementRole::Decode | PlacementRole::DecodeOnly => Role::Decode,
            PlacementRole::Aggregated => Role::Aggregated,
            PlacementRole::Encode => Role::Encode,
        },
        up_s: seconds(state.now - worker.since),
        draining: worker.draining,
        load: worker.load,
    });
    Observation {
        at_s: seconds(state.now),
        sizes: RequestSizes {
            context_tokens: 131_072.0,
            block_tokens: f64::from(case.fleet.limits.block_size),
        },
        held: state.held,
        workers: workers.collect(),
        ordered,
        traffic: Some(TrafficTotals {
            requests: totals.arrived as f64,
            prompt_tokens: totals.prompt_tokens as f64,
            prompt_squares: totals.prompt_squares as f64,
            cached_tokens: totals.cached_tokens as f64,
            answers: totals.completed as f64,
            output_tokens: totals.output_tokens as f64,
        }),
        latency: latency(world, &case.targets),
    }
}

fn latency(world: &World<'_>, targets: &SlaTargets) -> Option<LatencySample> {
    let since = world.state().now.saturating_sub(from_seconds(LATENCY_S));
    let sorted = |spans: &mut dyn Iterator<Item = Ps>| {
        let mut spans: Vec<f64> = spans.map(seconds).collect();
        spans.sort_by(f64::total_cmp);
        spans
    };
    let ttft = sorted(&mut world.first_tokens(since));
    let itl = sorted(&mut world.gaps(since));
    let p90 = |sorted: &[f64]| sorted.get(sorted.len() * 9 / 10).copied().unwrap_or(0.0);
    let good = |sorted: &[f64], target: f64| {
        let within = sorted.partition_point(|value| *value <= target);
        within as f64 / sorted.len().max(1) as f64
    };
    (!ttft.is_empty() && !itl.is_empty()).then(|| LatencySample {
        requests: ttft.len().min(itl.len()) as f64,
        ttft_p90_s: p90(&ttft),
        itl_p90_s: p90(&itl),
        ttft_good: good(&ttft, targets.ttft_s),
        itl_good: good(&itl, targets.itl_s),
    })
}

fn outcome(
    case: &StudyCase,
    law: &str,
    observations: &Observations,
    count: ActionCount,
    workers: Vec<u32>,
) -> StudyOutcome {
    let (ttft, itl) = (from_seconds(case.targets.ttft_s), from_seconds(case.targets.itl_s));
    let good = |request: &RequestMeasurement| {
        request.complete
            && request.ttft.is_some_and(|time| time <= ttft)
            && request.itl.is_none_or(|time| time <= itl)
    };
    let requests = &observations.requests;
    let met = requests.iter().filter(|request| good(request)).count();
    // Of each slice of time, the requests that came in it and those that were late.
    let mut slices: Vec<(u32, u32)> = Vec::new();
    for (asked, request) in case.workload.requests.iter().zip(requests) {
        let ArrivalTime::At(at) = asked.arrival else { continue };
        let slice = (seconds(at) / SLICE_S) as usize;
        if slices.len() <= slice {
            slices.resize(slice + 1, (0, 0));
        }
        slices[slice].0 += 1;
        slices[slice].1 += u32::from(!good(request));
    }
    let (mut longest, mut row) = (0, 0);
    for (came, late) in slices {
        let violated = f64::from(late) > VIOLATION_SHARE * f64::from(came);
        row = if violated { row + 1 } else { 0 };
        longest = longest.max(row);
    }
    let cached: u64 = requests.iter().map(|request| u64::from(request.cached_tokens)).sum();
    let asked = &case.workload.requests;
    let prompts: u64 = asked.iter().map(|request| u64::from(request.prompt_tokens)).sum();
    let worker_hours = observations.worker_time as f64 / SECOND as f64 / 3_600.0;
    StudyOutcome {
        law: law.to_owned(),
        attainment: met as f64 / requests.len().max(1) as f64,
        gpu_hours: worker_hours * f64::from(case.gpus),
        actions: count.actions,
        reversals: count.reversals,
        violation_s: f64::from(longest) * SLICE_S,
        failed: requests.iter().filter(|request| !request.complete).count(),
        cached_share: cached as f64 / f64::max(prompts as f64, 1.0),
        workers,
    }
}

/// A role as the fleet model names it.
fn placement_role(role: Role) -> PlacementRole {
    match role {
        Role::Prefill => PlacementRole::Prefill,
        Role::Decode => PlacementRole::Decode,
        Role::Aggregated => PlacementRole::Aggregated,
        Role::Encode => PlacementRole::Encode,
    }
}

impl StudyCase {
    /// The engine of its workers.
    pub fn model(&self) -> WorkerModel {
        let limits = self.fleet.limits;
        WorkerModel {
            timing: self.fleet.timing,
            kv_tokens: f64::from(limits.total_blocks) * f64::from(limits.block_size),
            batch_max: f64::from(limits.max_running),
            step_tokens: f64::from(limits.step_tokens),
        }
    }

    /// Starts with the workers that hold the demand of the first minute.
    pub fn started(mut self) -> Self {
        let first = |request: &&stator_fleet_model::WorkloadRequest| matches!(request.arrival, ArrivalTime::At(at) if at < 60 * SECOND);
        let requests: Vec<_> = self.workload.requests.iter().filter(first).collect();
        let demand = demand_of(requests.iter().copied(), 60.0, 0.0);
        for role in &self.roles {
            let workers = self.model().size(*role, &demand, &self.targets).workers.max(1);
            match role {
                Role::Prefill => self.fleet.sides.prefill = workers,
                Role::Decode => self.fleet.sides.decode = workers,
                _ => self.fleet.sides.aggregated = workers,
            }
        }
        self
    }
}

/// Demand of all requests of a case, if such a share of their prompts is reused.
pub fn mean_demand(case: &StudyCase, cached: f64) -> Demand {
    let last = case.workload.requests.last().map_or(ArrivalTime::At(0), |last| last.arrival);
    let span_s = if let ArrivalTime::At(at) = last { seconds(at) } else { 0.0 };
    demand_of(case.workload.requests.iter(), span_s.max(1.0), cached)
}

/// Demand of these requests within `span_s` seconds, if such a share of their prompts is reused.
pub(super) fn demand_of<'a>(
    requests: impl Iterator<Item = &'a stator_fleet_model::WorkloadRequest>,
    span_s: f64,
    cached: f64,
) -> Demand {
    let (mut count, mut prompt, mut squares, mut output) = (0.0, 0.0, 0.0, 0.0);
    for request in requests {
        let tokens = f64::from(request.prompt_tokens);
        count += 1.0;
        prompt += tokens;
        squares += tokens * tokens;
        output += f64::from(request.output_tokens);
    }
    let many = f64::max(count, 1.0);
    let mean = prompt / many;
    Demand {
        rate: count / span_s,
        computed_tokens: mean * (1.0 - cached),
        cached_tokens: mean * cached,
        prompt_spread: (squares / many / (mean * mean).max(1.0)).max(1.0),
        output_tokens: f64::max(output / many, 1.0),
    }
}
