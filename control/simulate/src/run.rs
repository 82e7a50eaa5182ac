//! Runs what was asked for, and shows it.

use crate::args::SimulateArgs;
use crate::report::{SimulationReport, html, table};
use anyhow::{Context, Result};
use stator_fleet_model::time::seconds;
use stator_fleet_model::{
    FleetSettings, Observations, PolicyKind, RunOutcome, SyntheticWorkload, Violation, Workload,
    World,
};
use stator_report::{write_json, write_text};
use std::time::{Duration, Instant};

/// Time between two lines that tell how far a run is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Runs every policy on every seed and writes the results.
///
/// # Errors
///
/// Where settings are out of range, a trace cannot be read, or a rule is broken; then the message
/// holds the command that shows it again.
pub fn run(args: &SimulateArgs) -> Result<()> {
    let started = Instant::now();
    let outcomes = simulate(args)?;
    print!("{}\n{}", table::table(&outcomes).text(), table::notes(&outcomes));
    if let Some(path) = &args.output.json {
        write_json(path, &SimulationReport::new(args, &outcomes))?;
    }
    if let Some(path) = &args.output.html {
        write_text(path, &html::html(&command(args, args.seed), &outcomes))?;
    }
    let requests: usize = outcomes.iter().map(|outcome| outcome.requests).sum();
    eprintln!("{requests} requests in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// The outcome of each seed and policy.
pub(crate) fn simulate(args: &SimulateArgs) -> Result<Vec<RunOutcome>> {
    let first = args.settings()?;
    let mut outcomes = Vec::new();
    let mut workload = None;
    for seed in args.seed..args.seed.saturating_add(args.seeds.into()) {
        let settings = FleetSettings { seed, ..first.clone() };
        // A recorded trace is the same for every seed.
        if workload.is_none() || args.workload.trace.is_none() {
            workload = Some(make(args, seed)?);
        }
        let Some(workload) = &workload else { continue };
        for kind in &args.policy {
            let observations = finish(World::new(&settings, workload, *kind), *kind);
            let observations = observations.with_context(|| {
                let one = SimulateArgs { policy: vec![*kind], ..args.clone() };
                format!("a rule is broken; again with: {}", command(&one, seed))
            })?;
            outcomes.push(RunOutcome::new(&observations, workload, settings.slo, seed));
        }
    }
    Ok(outcomes)
}

/// Runs a world to its end; tells every few seconds how far it is.
fn finish(mut world: World<'_>, kind: PolicyKind) -> Result<Observations, Violation> {
    let mut shown = Instant::now();
    let mut handled = 0_u64;
    while world.step()? {
        handled += 1;
        if handled.is_multiple_of(1 << 16) && shown.elapsed() >= PROGRESS_INTERVAL {
            let (state, name) = (world.state(), kind.name());
            let (ended, now) = (state.totals.completed + state.totals.failed, seconds(state.now));
            eprintln!("{name}: {ended} requests, {now:.0} s, {handled} events");
            shown = Instant::now();
        }
    }
    world.finish()
}

fn make(args: &SimulateArgs, seed: u64) -> Result<Workload> {
    let (asked, block_size) = (&args.workload, args.fleet.block_size);
    Ok(match &asked.trace {
        Some(path) => Workload::read(path, block_size, asked.replay())?,
        None => {
            let adapters = args.edges.adapters;
            let mix = SyntheticWorkload { mix: asked.mix, rate: asked.rate, adapters, block_size };
            Workload::synthetic(mix, asked.count(), seed)
        }
    })
}

/// The command line that runs one seed of this again, with every setting.
pub(crate) fn command(args: &SimulateArgs, seed: u64) -> String {
    let one = SimulateArgs { seed, seeds: 1, ..args.clone() };
    let mut line = String::from("stator simulate");
    let serde_json::Value::Object(settings) = serde_json::json!(one) else { return line };
    for (name, value) in settings {
        let value = match value {
            serde_json::Value::Null | serde_json::Value::Bool(false) => continue,
            // A switch has no value.
            serde_json::Value::Bool(true) => String::new(),
            serde_json::Value::String(text) => text,
            serde_json::Value::Array(items) => {
                let items = items.iter().filter_map(|item| item.as_str());
                items.collect::<Vec<_>>().join(",")
            }
            other => other.to_string(),
        };
        line += &format!(" --{} {value}", name.replace('_', "-"));
        line.truncate(line.trim_end().len());
    }
    line
}
