//! Planners on a fleet in virtual time, as a table in Markdown.
//!
//! Without arguments the requests follow formulas; with them they are those of recorded traces,
//! unpacked with `zstd -d`:
//!
//! ```sh
//! cargo run --release -p stator-planner --example study
//! cargo run --release -p stator-planner --example study -- traces/*.csv traces/*.jsonl
//! ```

use anyhow::{Context, Result};
use stator_planner::study::{
    DynamoSla, Form, HpaLaw, KedaLaw, Own, PercentLaw, ScalingLaw, StudyCase, StudyOutcome,
    cheapest_fixed, cheapest_schedule, mean_demand, replay, seasonal_settings, study_settings,
};
use stator_report::TextTable;
use stator_report::number::percent;
use std::path::PathBuf;

fn main() -> Result<()> {
    let traces: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let mut cases = Vec::new();
    for path in &traces {
        cases.push(StudyCase::trace(path, 1).with_context(|| path.display().to_string())?);
    }
    if traces.is_empty() {
        cases = vec![
            StudyCase::sine(Form::Aggregated, 3.0, 1),
            StudyCase::sine(Form::Split, 3.0, 1),
            StudyCase::step(1_800.0, 1),
            StudyCase::constant(8.0, 1_800.0, 1),
            StudyCase::shift(1_800.0, 1),
        ];
    }
    // Cases are independent: each has a thread.
    let tables: Vec<Result<String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = cases.iter().map(|case| scope.spawn(move || study(case))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|table| table.expect("a case does not panic")).collect()
    });
    for table in tables {
        println!("{}", table?);
    }
    Ok(())
}

/// The table of one case.
fn study(case: &StudyCase) -> Result<String> {
    let mut own = Own::new("stator", study_settings(case));
    let own = replay(case, &mut own)?;
    let demand = mean_demand(case, own.cached_share);
    let mut others: Vec<Box<dyn ScalingLaw>> = vec![
        Box::new(DynamoSla::new(case)),
        Box::new(KedaLaw::new(case)),
        Box::new(PercentLaw::new(case)),
        Box::new(HpaLaw::new(case, &demand)),
    ];
    let mut outcomes = vec![own];
    if case.name.starts_with("sine") {
        let settings = seasonal_settings(case, StudyCase::PERIOD_S);
        outcomes.push(replay(case, &mut Own::new("stator, seasonal", settings))?);
    }
    for law in &mut others {
        outcomes.push(replay(case, law.as_mut())?);
    }
    let best = cheapest_schedule(case, outcomes[0].cached_share)?;
    // A person who waits sees that something comes.
    for outcome in &outcomes {
        eprintln!("{}, {}: {}", case.name, outcome.law, row(outcome, &best).join(", "));
    }
    outcomes.extend(cheapest_fixed(case)?);
    let head = [
        "attained",
        "GPU hours",
        "of clairvoyant",
        "actions",
        "reversals",
        "longest late s",
        "workers",
    ];
    let mut table = TextTable::new(std::iter::once("planner").chain(head));
    for outcome in outcomes.iter().chain([&best]) {
        table.row(&outcome.law, row(outcome, &best));
    }
    let requests = case.workload.requests.len();
    Ok(format!("### {}: {requests} requests\n\n{}", case.name, table.markdown()))
}

fn row(outcome: &StudyOutcome, best: &StudyOutcome) -> Vec<String> {
    let (least, most) = (outcome.workers.iter().min(), outcome.workers.iter().max());
    vec![
        percent(outcome.attainment),
        format!("{:.2}", outcome.gpu_hours),
        format!("{:.2}", outcome.gpu_hours / best.gpu_hours),
        outcome.actions.to_string(),
        outcome.reversals.to_string(),
        format!("{:.0}", outcome.violation_s),
        format!("{} to {}", least.unwrap_or(&0), most.unwrap_or(&0)),
    ]
}
