//! Cases of the study.

use super::replay::StudyCase;
use super::traffic::{BLOCK_TOKENS, Moment, sine, thickened, varying};
use crate::capacity::SlaTargets;
use stator_fleet_model::{FleetSettings, Replay, Sides, Workload, WorkloadError};
use stator_protos::discovery::Role;
use stator_timing::{PRESETS, Preset};
use std::path::Path;

/// Start-up time of a worker whose image is on the node, seconds.
const WARMUP_S: f64 = 60.0;
/// Targets of prompts of one length, of Azure's, and of Mooncake's long ones.
const SHORT: SlaTargets = SlaTargets { ttft_s: 0.5, itl_s: 0.05, attainment: 0.96 };
const MEDIUM: SlaTargets = SlaTargets { ttft_s: 2.0, itl_s: 0.1, attainment: 0.96 };
const LONG: SlaTargets = SlaTargets { ttft_s: 10.0, itl_s: 0.1, attainment: 0.96 };
/// Lengths of Dynamo's default `isl` and `osl`.
const USUAL: Moment = Moment { rate: 1.0, prompt_tokens: 3_000, output_tokens: 150 };

/// Forms of graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Every worker computes prompts and answers.
    Aggregated,
    /// Prompts have workers of their own.
    Split,
}

impl StudyCase {
    /// Seconds after which the load of a sine comes back.
    pub const PERIOD_S: f64 = 600.0;

    fn new(name: &str, workload: Workload, engine: &str, form: Form, targets: SlaTargets) -> Self {
        let known = |preset: &&Preset| preset.name == engine;
        let preset = PRESETS.iter().find(known).expect("cases name known engines");
        let (roles, sides) = match form {
            Form::Aggregated => {
                (vec![Role::Aggregated], Sides { aggregated: 1, ..Sides::default() })
            }
            Form::Split => {
                (vec![Role::Prefill, Role::Decode], Sides { prefill: 1, decode: 1, aggregated: 0 })
            }
        };
        let case = Self {
            name: name.to_owned(),
            workload,
            fleet: FleetSettings::new(preset, sides),
            roles,
            gpus: if engine.ends_with("tp4") { 4 } else { 1 },
            targets,
            warmup_s: WARMUP_S,
        };
        case.started()
    }

    /// The sine of Dynamo's issue 10528: 1 to 24 requests a second, a period of ten minutes.
    pub fn sine(form: Form, periods: f64, seed: u64) -> Self {
        let workload = varying(Self::PERIOD_S * periods, 24.0, seed, |at_s| Moment {
            rate: sine(at_s, 1.0, 24.0, Self::PERIOD_S),
            ..USUAL
        });
        let name = if form == Form::Split { "sine, split" } else { "sine" };
        Self::new(name, workload, "h100-llama-8b", form, SHORT)
    }

    /// A rate that is four times as high from a third to two thirds of the time.
    pub fn step(span_s: f64, seed: u64) -> Self {
        let workload = varying(span_s, 16.0, seed, |at_s| {
            let high = (span_s / 3.0..span_s * 2.0 / 3.0).contains(&at_s);
            Moment { rate: if high { 16.0 } else { 4.0 }, ..USUAL }
        });
        Self::new("step x4", workload, "h100-llama-8b", Form::Aggregated, SHORT)
    }

    /// A rate that never changes.
    pub fn constant(rate: f64, span_s: f64, seed: u64) -> Self {
        let workload = varying(span_s, rate, seed, |_| Moment { rate, ..USUAL });
        Self::new("constant", workload, "h100-llama-8b", Form::Aggregated, SHORT)
    }

    /// Long prompts with short answers, short prompts with long answers, and back.
    pub fn shift(span_s: f64, seed: u64) -> Self {
        let workload = varying(span_s, 36.0, seed, |at_s| {
            match (span_s / 3.0..span_s * 2.0 / 3.0).contains(&at_s) {
                true => Moment { rate: 36.0, prompt_tokens: 500, output_tokens: 600 },
                false => Moment { rate: 12.0, prompt_tokens: 5_000, output_tokens: 60 },
            }
        });
        Self::new("shift, split", workload, "h100-llama-8b", Form::Split, SHORT)
    }

    /// A recorded trace, by the form of its file: Azure's as of a service several times as large,
    /// Mooncake's at twice its speed. `seed` spreads the copies of requests.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`]: the file cannot be read.
    pub fn trace(path: &Path, seed: u64) -> Result<Self, WorkloadError> {
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into());
        let read = |speed| {
            Workload::read(path, BLOCK_TOKENS, Replay { speed, repeat: 1, limit: u32::MAX })
        };
        if path.extension().is_some_and(|extension| extension == "csv") {
            let copies = if name.contains("code") { 6 } else { 4 };
            let workload = thickened(&read(1.0)?, copies, 60.0, seed);
            return Ok(Self::new(&name, workload, "a100-llama-8b", Form::Aggregated, MEDIUM));
        }
        let workload = read(2.0)?;
        Ok(Self::new(&name, workload, "h100-llama-70b-tp4", Form::Aggregated, LONG))
    }
}
