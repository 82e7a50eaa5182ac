//! A planner that knows every request in advance, and the best number of workers that never changes.
//!
//! The clairvoyant planner has, at each moment, the fewest workers that hold the demand that is
//! really coming, ordered a start-up time ahead, and keeps a worker that would be needed again
//! before it could come back. How long the demand is averaged, and how much of it the workers are
//! sized for, is chosen in hindsight: the cheapest schedule that attains the target.

use super::own::WORKERS_MAX;
use super::replay::{INTERVAL_S, ScalingLaw, StudyCase, StudyOutcome, demand_of, replay};
use crate::capacity::{Demand, SlaTargets};
use crate::observation::Observation;
use crate::replicas::Replicas;
use stator_fleet_model::time::seconds;
use stator_fleet_model::{ArrivalTime, Violation, WorkloadRequest};

/// Times over which demand is averaged, seconds.
const AVERAGED_S: [f64; 2] = [15.0, 60.0];
/// Parts of the demand that workers are sized for.
const PARTS: [f64; 7] = [0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3];

/// Workers at each decision, written down before.
#[derive(Clone, Debug)]
pub struct Schedule {
    name: String,
    wanted: Vec<Replicas>,
    next: usize,
}

impl ScalingLaw for Schedule {
    fn name(&self) -> &str {
        &self.name
    }

    fn wanted(&mut self, _: &Observation) -> Replicas {
        let at = self.next.min(self.wanted.len() - 1);
        self.next += 1;
        self.wanted[at]
    }
}

impl Schedule {
    /// A constant number of workers.
    pub fn fixed(replicas: Replicas) -> Self {
        Self { name: "fixed".to_owned(), wanted: vec![replicas], next: 0 }
    }

    /// Workers for `part` of the demand, averaged over so many seconds; `cached` is the share of
    /// prompts that is reused.
    fn of(case: &StudyCase, averaged_s: f64, part: f64, cached: f64) -> Self {
        let slices = slices(case);
        let every: Vec<&WorkloadRequest> = case.workload.requests.iter().collect();
        let spread = demand_of(every.into_iter(), 1.0, cached).prompt_spread;
        let reach = (averaged_s / INTERVAL_S / 2.0).ceil() as usize;
        let targets = SlaTargets { attainment: 0.9, ..case.targets };
        let sized = |role| -> Vec<u32> {
            let near = |at: usize| {
                let (begin, end) = (at.saturating_sub(reach), (at + reach).min(slices.len() - 1));
                let requests = slices[begin..=end].iter().flatten().copied();
                let demand = demand_of(requests, (end - begin + 1) as f64 * INTERVAL_S, cached);
                let demand = Demand { rate: demand.rate * part, prompt_spread: spread, ..demand };
                case.model().size(role, &demand, &targets).workers.clamp(1, WORKERS_MAX)
            };
            (0..slices.len()).map(near).collect()
        };
        let needs: Vec<_> = case.roles.iter().map(|role| (*role, sized(*role))).collect();
        let ahead = (case.warmup_s / INTERVAL_S).ceil() as usize + 1;
        let wanted = (0..slices.len()).map(|at| {
            let mut wanted = Replicas::default();
            for (role, needs) in &needs {
                let end = (at + ahead).min(needs.len() - 1);
                wanted.set(*role, needs[at..=end].iter().copied().max().unwrap_or(1));
            }
            wanted
        });
        Self { name: "clairvoyant".to_owned(), wanted: wanted.collect(), next: 0 }
    }
}

/// Requests of each interval.
fn slices(case: &StudyCase) -> Vec<Vec<&WorkloadRequest>> {
    let mut slices: Vec<Vec<&WorkloadRequest>> = vec![Vec::new()];
    for request in &case.workload.requests {
        let ArrivalTime::At(at) = request.arrival else { continue };
        let slice = (seconds(at) / INTERVAL_S) as usize;
        if slices.len() <= slice {
            slices.resize(slice + 1, Vec::new());
        }
        slices[slice].push(request);
    }
    slices
}

/// The cheapest schedule that attains the target; if none does, the one that attains most.
///
/// # Errors
///
/// [`Violation`]: a rule of the simulation is broken.
pub fn cheapest_schedule(case: &StudyCase, cached: f64) -> Result<StudyOutcome, Violation> {
    let mut outcomes = Vec::new();
    for averaged_s in AVERAGED_S {
        // More workers attain more: the first part that is enough is the cheapest.
        for part in PARTS {
            let outcome = replay(case, &mut Schedule::of(case, averaged_s, part, cached))?;
            let enough = outcome.attainment >= case.targets.attainment;
            outcomes.push(outcome);
            if enough {
                break;
            }
        }
    }
    Ok(best(case, outcomes))
}

/// The fewest workers that attain the target without ever changing; of graphs with one role.
///
/// # Errors
///
/// [`Violation`]: a rule of the simulation is broken.
pub fn cheapest_fixed(case: &StudyCase) -> Result<Option<StudyOutcome>, Violation> {
    let [role] = case.roles[..] else { return Ok(None) };
    let (mut low, mut high, mut found) = (0, WORKERS_MAX, None);
    while high - low > 1 {
        let workers = low + (high - low) / 2;
        let mut replicas = Replicas::default();
        replicas.set(role, workers);
        let outcome = replay(case, &mut Schedule::fixed(replicas))?;
        if outcome.attainment >= case.targets.attainment {
            (high, found) = (workers, Some(outcome));
        } else {
            low = workers;
        }
    }
    Ok(found)
}

fn best(case: &StudyCase, mut outcomes: Vec<StudyOutcome>) -> StudyOutcome {
    let enough = |outcome: &StudyOutcome| outcome.attainment >= case.targets.attainment;
    outcomes.sort_by(|a, b| {
        let attained = enough(b).cmp(&enough(a));
        let cheaper = a.gpu_hours.total_cmp(&b.gpu_hours);
        let more = b.attainment.total_cmp(&a.attainment);
        attained.then(if enough(a) && enough(b) { cheaper } else { more })
    });
    outcomes.swap_remove(0)
}
