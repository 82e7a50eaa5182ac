//! Sources of a plan's step times, and how sure they are.

use crate::layout::{Layout, WorkerGroup};
use crate::model::ModelShape;
use crate::operation::{OperationKind, OperationTime};
use crate::precision::Precision;
use crate::replay::ReplayedPlan;
use crate::request::PlanRequest;
use crate::step::StepModel;
use serde::Serialize;
use stator_tables::TableSource;

/// Sources of the step times of one layout.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepTimeSources {
    /// Source of most times: `roofline`, `profile` or `tables`.
    source: &'static str,
    /// Operations of the steps of a full worker.
    operations: Vec<OperationSource>,
    /// Tables that were read.
    tables: Vec<TableRead>,
    /// Median error of the time between tokens against measured engines, percent; none of a
    /// profile, whose engine is the measured one.
    itl_error_percent: Option<f64>,
    /// Mean error of a profile's roofline against its measurements, percent.
    profile_error_percent: Option<f64>,
    /// Rows that contradict others.
    suspicions: Vec<String>,
}

/// Time and source of one operation of a step.
#[derive(Clone, Debug, Serialize)]
struct OperationSource {
    /// `prompt`, a step over one prompt, or `decode`.
    step: &'static str,
    operation: &'static str,
    source: &'static str,
    ms: f64,
}

/// A table that was read.
#[derive(Clone, Debug, Serialize)]
struct TableRead {
    table: &'static str,
    /// Version of the engine that was measured.
    version: String,
    rows: usize,
    /// Median error of rows that are taken away and read from their neighbours, percent.
    gap_error_percent: Option<f64>,
}

/// Factor by which products of narrow weights may take longer than those of 16 bits before their
/// rows are suspect.
const NARROW_SLACK: f64 = 1.1;
/// Median errors of the time between tokens against measured engines, in percent, of models without
/// and with experts. Source: `docs/benchmarks/plan.md`.
const ROOFLINE_ERRORS: [f64; 2] = [9.0, 15.0];
const TABLES_ERRORS: [f64; 2] = [12.0, 13.0];

impl StepTimeSources {
    /// The sources of a plan's times.
    pub(crate) fn of(request: &PlanRequest, plan: &ReplayedPlan) -> Self {
        let (prompts, answers) = match plan.layout {
            Layout::Aggregated(group) => (group, group),
            Layout::Disaggregated { prefill, decode } => (prefill, decode),
        };
        let engine = answers.worker.engine;
        let tables = request.tables.iter().find(|(of, _)| *of == engine);
        let reads = tables.map_or(&[][..], |(_, tables)| tables.sources());
        let worker = request.step_model(answers.worker);
        let profile = request.profiles.iter().find(|of| of.gpus == answers.worker.gpus());
        let source = match (profile, worker.and_then(|worker| worker.tables)) {
            (Some(_), _) => "profile",
            (None, Some(_)) => "tables",
            (None, None) => "roofline",
        };
        let errors = if source == "tables" { TABLES_ERRORS } else { ROOFLINE_ERRORS };
        let error = errors[usize::from(request.model.experts.is_some())];
        Self {
            source,
            operations: match profile {
                Some(_) => Vec::new(),
                None => operations(request, &prompts, &answers),
            },
            tables: reads.iter().map(TableRead::of).collect(),
            itl_error_percent: profile.is_none().then_some(error),
            profile_error_percent: profile.map(|profile| profile.mean_error * 1e2),
            suspicions: worker
                .and_then(|worker| slow_products(request, worker, &answers))
                .into_iter()
                .collect(),
        }
    }

    /// The sources in sentences.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("Step times come from {}", self.source_text());
        let of_roofline = self.operations.iter().filter(|of| of.source == "roofline");
        let rest: Vec<String> =
            of_roofline.map(|of| format!("{} ({})", of.operation, of.step)).collect();
        if self.source == "tables" && !rest.is_empty() {
            text += &format!("; the roofline has {}", rest.join(", "));
        }
        text += ".\n";
        let gaps: Vec<String> = self.tables.iter().filter_map(TableRead::gap).collect();
        if !gaps.is_empty() {
            text += &format!(
                "Rows read from their neighbours are off by (median) {}.\n",
                gaps.join(", ")
            );
        }
        if let Some(error) = self.itl_error_percent {
            text += &format!(
                "Median error of the time between tokens against measured engines, models like this \
                 one: {error:.0} %; the time to the first token is a replay and was compared with no \
                 hardware.\n"
            );
        }
        for suspicion in &self.suspicions {
            text += &format!("Warning: {suspicion}\n");
        }
        text
    }

    fn source_text(&self) -> String {
        match self.profile_error_percent {
            Some(error) => format!("a profile whose roofline is off by {error:.1} % on average"),
            None if self.source == "tables" => {
                let tables = self.tables.iter().map(|of| format!("{} {}", of.table, of.version));
                format!("the tables {}", tables.collect::<Vec<_>>().join(", "))
            }
            None => "a roofline with fitted coefficients".to_owned(),
        }
    }
}

impl TableRead {
    fn of(source: &TableSource) -> Self {
        Self {
            table: source.table,
            version: source.version.clone(),
            rows: source.rows,
            gap_error_percent: source.gap_error.map(|error| error * 1e2),
        }
    }

    /// `1.2 % in gemm_perf`.
    fn gap(&self) -> Option<String> {
        Some(format!("{:.1} % in {}", self.gap_error_percent?, self.table))
    }
}

/// Products of narrow weights that took longer than those of 16 bits, which they should not.
fn slow_products(
    request: &PlanRequest,
    step: StepModel<'_>,
    group: &WorkerGroup,
) -> Option<String> {
    let batch = f64::from(group.batch_max);
    let ms = |step: &StepModel<'_>| {
        let operations = step.decode_operations(batch, 1.0);
        let products = operations.iter().find(|of| of.kind == OperationKind::Products)?;
        products.is_tabled.then_some(products.seconds * 1e3)
    };
    let plain = ModelShape { weights: Precision::Bf16, ..request.model.clone() };
    let (narrow, plain) = (ms(&step)?, ms(&StepModel { model: &plain, ..step })?);
    (narrow > plain * NARROW_SLACK).then(|| {
        format!(
            "the tables have {narrow:.1} ms for matrix products of {} weights in a batch of {batch}, \
             and {plain:.1} ms in 16 bits; the rows of {} are suspect",
            request.model.weights.name(),
            request.model.weights.name(),
        )
    })
}

/// Operations of a step over a prompt, and of one in which a full batch decodes.
fn operations(
    request: &PlanRequest,
    prompts: &WorkerGroup,
    answers: &WorkerGroup,
) -> Vec<OperationSource> {
    let traffic = &request.traffic;
    let [input, cached, output] =
        [traffic.input_tokens, traffic.cached_tokens, traffic.output_tokens].map(f64::from);
    let model = |group: &WorkerGroup| request.step_model(group.worker);
    let prompt = |step: StepModel<'_>| step.prompt_operations(input - cached, cached);
    let batch = f64::from(answers.batch_max);
    let decode = |step: StepModel<'_>| step.decode_operations(batch, input + output / 2.0);
    let steps = [("prompt", model(prompts).map(prompt)), ("decode", model(answers).map(decode))];
    let told = |of: &OperationTime| of.seconds > 0.0 && of.kind != OperationKind::Overhead;
    let all = steps.into_iter().flat_map(|(step, operations)| {
        operations.into_iter().flatten().filter(told).map(move |of| OperationSource {
            step,
            operation: of.kind.name(),
            source: if of.is_tabled { "tables" } else { "roofline" },
            ms: of.seconds * 1e3,
        })
    });
    all.collect()
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
