//! Reports of runs: a table, JSON, and a page with plots.

pub(crate) mod html;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use crate::args::SimulateArgs;
use serde::Serialize;
use stator_fleet_model::RunOutcome;

/// Everything, for other programs. Nothing in it depends on the machine or the moment.
#[derive(Serialize)]
pub(crate) struct SimulationReport<'a> {
    /// Counts up with every change that breaks readers.
    version: u32,
    settings: &'a SimulateArgs,
    outcomes: &'a [RunOutcome],
}

impl<'a> SimulationReport<'a> {
    pub(crate) fn new(settings: &'a SimulateArgs, outcomes: &'a [RunOutcome]) -> Self {
        Self { version: 1, settings, outcomes }
    }
}
