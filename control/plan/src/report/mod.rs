//! Reports of plans: a table, JSON, and a page with the front of throughput and speed.

pub(crate) mod html;
pub(crate) mod table;

use crate::args::PlanArgs;
use crate::replay::ReplayedPlan;
use crate::search::TradePoint;
use crate::sources::StepTimeSources;
use serde::Serialize;

/// Everything, for other programs. Nothing in it depends on the machine or the moment.
#[derive(Serialize)]
pub(crate) struct PlanReport<'a> {
    /// Counts up with every change that breaks readers.
    version: u32,
    settings: &'a PlanArgs,
    /// Layouts that hold the targets, the best first.
    plans: &'a [ReplayedPlan],
    /// Aggregated workers of which no other is better in both figures.
    front: &'a [TradePoint],
    /// Sources of the first layout's step times.
    step_times: StepTimeSources,
}

impl<'a> PlanReport<'a> {
    pub(crate) fn new(
        settings: &'a PlanArgs,
        plans: &'a [ReplayedPlan],
        front: &'a [TradePoint],
        step_times: StepTimeSources,
    ) -> Self {
        Self { version: 1, settings, plans, front, step_times }
    }
}
