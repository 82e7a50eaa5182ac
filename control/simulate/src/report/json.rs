//! Everything, for other programs. Equal runs give equal bytes: nothing in it depends on the
//! machine or the moment.

use crate::args::SimulateArgs;
use serde::Serialize;
use stator_fleet_model::RunOutcome;

#[derive(Serialize)]
struct Report<'a> {
    /// Counts up with every change that breaks readers.
    version: u32,
    settings: &'a SimulateArgs,
    outcomes: &'a [RunOutcome],
}

/// The report as text.
pub(crate) fn json(settings: &SimulateArgs, outcomes: &[RunOutcome]) -> serde_json::Result<String> {
    let mut text = serde_json::to_string(&Report { version: 1, settings, outcomes })?;
    text.push('\n');
    Ok(text)
}
