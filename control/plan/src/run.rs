//! The command: searches, replays, shows.

use crate::args::PlanArgs;
use crate::layout::{Candidate, Layout};
use crate::manifest::{self, GraphChoices};
use crate::nearest::{nothing_fits, nothing_holds};
use crate::replay::{ReplayedPlan, replay};
use crate::report::{PlanReport, html, table};
use crate::request::PlanRequest;
use crate::search::{SearchOutcome, TradePoint, search};
use crate::sources::StepTimeSources;
use anyhow::{Context, Result, bail};
use serde_json::Map;
use stator_report::{write_json, write_text};
use std::cmp::Ordering;
use std::panic::resume_unwind;
use std::sync::atomic::{self, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

/// Layouts that are replayed.
const REPLAYED: usize = 10;

/// Plans for a request, and the search that found them.
#[derive(Clone, Debug)]
pub struct FoundPlans {
    /// Layouts that hold the targets: at least one, the best first.
    pub plans: Vec<ReplayedPlan>,
    /// Aggregated workers of which no other is better in both throughput and speed.
    pub front: Vec<TradePoint>,
    /// Times that the search computed.
    pub points: usize,
    /// Time that the search took.
    pub searched: Duration,
    /// Time that the replays took.
    pub replayed: Duration,
}

/// Finds a plan and writes it.
///
/// # Errors
///
/// If flags cannot be used, if a file cannot be written, and as [`find`].
pub fn run(args: &PlanArgs) -> Result<()> {
    let request = args.request()?;
    let found = find(&request)?;
    eprintln!(
        "{} points searched in {:.0} ms, {REPLAYED} layouts replayed in {:.1} s",
        found.points,
        found.searched.as_secs_f64() * 1e3,
        found.replayed.as_secs_f64()
    );
    let (plans, best) = (&found.plans, &found.plans[0]);
    print!("{}\n{}", table::table(&request, plans).text(), table::notes(&request, best));
    print!("\n{}", manifest::commands(&request, &best.layout));
    if let Some(path) = &args.output.json {
        let step_times = StepTimeSources::of(&request, best);
        write_json(path, &PlanReport::new(args, plans, &found.front, step_times))?;
    }
    if let Some(path) = &args.output.html {
        write_text(path, &html::html(&request, plans, &found.front))?;
    }
    if let Some(path) = &args.output.manifest {
        // The target that takes the plan's own step times.
        let by_targets = || Map::from_iter([("optimization_target".to_owned(), "sla".into())]);
        let planner = args.output.planner.then(by_targets);
        let choices = GraphChoices { planner, ..GraphChoices::of(&request) };
        let graph = manifest::graph(&request, &best.layout, &choices);
        write_text(path, &serde_yaml_ng::to_string(&graph)?)?;
    }
    Ok(())
}

/// Searches all layouts, and replays the best of them.
///
/// # Errors
///
/// If no layout meets the targets, with the nearest targets that one would meet, or if the trace
/// cannot be read any more.
pub fn find(request: &PlanRequest) -> Result<FoundPlans> {
    let started = Instant::now();
    let found = search(request);
    let searched = started.elapsed();
    if found.candidates.is_empty() {
        bail!("{}", nothing_fits(request, &found));
    }
    let plans = replayed(request, &found)?;
    if plans.is_empty() {
        bail!("{}", nothing_holds(request, &found.candidates[0]));
    }
    let replayed = started.elapsed() - searched;
    Ok(FoundPlans { plans, front: found.front, points: found.points, searched, replayed })
}

/// The most promising candidates, replayed: those that hold the targets, the best first.
fn replayed(request: &PlanRequest, found: &SearchOutcome) -> Result<Vec<ReplayedPlan>> {
    let chosen = promising(&found.candidates);
    let next = AtomicUsize::new(0);
    // Each thread takes the next candidate: some take ten times as long as others.
    let worker = || -> Result<Vec<ReplayedPlan>> {
        let mut plans = Vec::new();
        while let Some(candidate) = chosen.get(next.fetch_add(1, atomic::Ordering::Relaxed)) {
            let plan = replay(request, candidate);
            plans.extend(plan.with_context(|| candidate.layout.describe())?);
        }
        Ok(plans)
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(REPLAYED);
    let of_threads: Vec<Result<Vec<ReplayedPlan>>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|plans| plans.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut plans = Vec::new();
    for of_thread in of_threads {
        plans.extend(of_thread?);
    }
    plans.sort_by(|a, b| better(request, a, b));
    Ok(plans)
}

/// The best candidates, with at least two of each form, so that the replay decides between forms
/// and not the closed form, which knows queues least.
fn promising(candidates: &[Candidate]) -> Vec<&Candidate> {
    let is_split =
        |candidate: &&Candidate| matches!(candidate.layout, Layout::Disaggregated { .. });
    let mut chosen: Vec<&Candidate> = candidates.iter().filter(is_split).take(2).collect();
    chosen.extend(candidates.iter().filter(|candidate| !is_split(candidate)).take(2));
    for candidate in candidates {
        if chosen.len() >= REPLAYED {
            break;
        }
        if !chosen.contains(&candidate) {
            chosen.push(candidate);
        }
    }
    chosen
}

/// The order of plans: with a rate the fewest GPUs, without one the highest rate; among equals the
/// most room to the targets.
fn better(request: &PlanRequest, a: &ReplayedPlan, b: &ReplayedPlan) -> Ordering {
    let room = a.used_share(&request.targets).total_cmp(&b.used_share(&request.targets));
    match request.traffic.rate {
        Some(_) => a.layout.gpus().cmp(&b.layout.gpus()).then(room),
        None => b.rate.total_cmp(&a.rate).then(room),
    }
    // Threads end in any order.
    .then_with(|| a.layout.describe().cmp(&b.layout.describe()))
}
