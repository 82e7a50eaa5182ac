//! The table of plans: a row for each layout that holds the targets.

use crate::replay::ReplayedPlan;
use crate::request::PlanRequest;
use crate::sources::StepTimeSources;
use stator_report::TextTable;
use stator_report::number::{percent, short};

const HEAD: [&str; 11] = [
    "layout",
    "engine",
    "batch",
    "GPUs",
    "req/s",
    "tok/s/GPU",
    "TTFT p50",
    "p90",
    "ITL mean",
    "p90",
    "within",
];

/// The plans as a table.
pub(crate) fn table(request: &PlanRequest, plans: &[ReplayedPlan]) -> TextTable {
    let mut table = TextTable::new(HEAD);
    for plan in plans {
        let answering = plan.layout.answering();
        let cells = [
            answering.worker.engine.name().to_owned(),
            answering.batch_max.to_string(),
            plan.layout.gpus().to_string(),
            short(plan.rate),
            short(plan.gpu_tokens_s),
            short(plan.ttft_ms.p50),
            margin(plan.ttft_ms.p90, request.targets.ttft_s),
            short(plan.itl_ms.mean),
            margin(plan.itl_ms.p90, request.targets.itl_s),
            percent(plan.attainment),
        ];
        table.row(&plan.layout.describe(), cells);
    }
    table
}

/// A time and how much of its target is left: `312 (-38%)`.
fn margin(ms: f64, target_s: f64) -> String {
    let left = ms / (target_s * 1e3) - 1.0;
    format!("{} ({:+.0}%)", short(ms), left * 1e2)
}

/// Notes under the table: what it shows, and how sure it is.
pub(crate) fn notes(request: &PlanRequest, best: &ReplayedPlan) -> String {
    let (targets, estimate) = (&request.targets, &best.estimate);
    format!(
        "Times in ms, of {} tokens in and {} out, {}; in brackets the distance to the targets of \
         {:.0} and {:.0} ms.\n\
         The closed form said {:.0} and {:.1} ms for the first layout.\n{}",
        request.traffic.input_tokens,
        request.traffic.output_tokens,
        if request.trace.is_some() { "on average of the trace" } else { "with random arrivals" },
        targets.ttft_s * 1e3,
        targets.itl_s * 1e3,
        estimate.ttft_s * 1e3,
        estimate.itl_s * 1e3,
        StepTimeSources::of(request, best).text(),
    )
}
