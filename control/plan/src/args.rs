//! The command line of `stator plan`. Every flag is also an environment variable, `STATOR_PLAN_`
//! and the flag's name in capitals.

use crate::engine::EngineKind;
use crate::gpu::Gpu;
use crate::model::ModelShape;
use crate::precision::Precision;
use crate::replay::recorded;
use crate::request::{Forms, PlanRequest, RecordedTrace, Targets, Traffic};
use clap::Args;
use serde::Serialize;
use stator_fleet_model::time::seconds;
use stator_fleet_model::{ArrivalTime, WorkloadError, WorkloadRequest};
use stator_tables::{EngineTables, TableNeeds, TablesFolder};
use stator_timing::EngineProfile;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Find a deployment for a model, a GPU and two latency targets: engine, parallelism, batch, and
/// whether prompts have workers of their own. The best ten layouts are replayed in virtual time;
/// nothing is deployed, and no GPU is needed.
///
/// Examples:
///
///   stator plan --model Qwen3-32B/config.json --gpu h100-sxm --gpus 16 --rate 12
///
///   stator plan --model DIR --gpu h200-sxm --gpus 8 --isl 8000 --osl 300 --ttft-ms 1000
///
///   stator plan --model DIR --gpu b200-sxm --gpus 32 --form disaggregated --html plan.html
#[derive(Args, Clone, Debug, Serialize)]
#[command(verbatim_doc_comment)]
pub struct PlanArgs {
    /// Folder of the model, or its config.json. No weights are read.
    #[arg(long, value_name = "PATH", env = "STATOR_PLAN_MODEL")]
    pub(crate) model: PathBuf,
    /// Name of the model in commands and manifests. Default the folder's.
    #[arg(long, value_name = "NAME", env = "STATOR_PLAN_MODEL_NAME")]
    pub(crate) model_name: Option<String>,
    /// GPU: a100-sxm, a100-pcie, l4, l40s, h100-pcie, h100-sxm, h200-sxm, b200-sxm, b300-sxm,
    /// gb200 or gb300.
    #[arg(long, env = "STATOR_PLAN_GPU")]
    pub(crate) gpu: String,
    /// GPUs that there are, 1 to 4096.
    #[arg(long, env = "STATOR_PLAN_GPUS")]
    pub(crate) gpus: u32,
    /// Requests.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) traffic: TrafficArgs,
    /// Targets.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) targets: TargetArgs,
    /// Choices.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) choices: ChoiceArgs,
    /// Output.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) output: OutputArgs,
}

/// Requests that the fleet gets.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Requests")]
pub(crate) struct TrafficArgs {
    /// Tokens of a prompt, 1 to 1000000.
    #[arg(long, default_value = "4000", env = "STATOR_PLAN_ISL")]
    pub(crate) isl: u32,
    /// Leading tokens of a prompt that workers hold already, below --isl.
    #[arg(long, default_value = "0", env = "STATOR_PLAN_CACHED")]
    pub(crate) cached: u32,
    /// Tokens of an answer, 2 to 1000000.
    #[arg(long, default_value = "500", env = "STATOR_PLAN_OSL")]
    pub(crate) osl: u32,
    /// Requests per second; the plan has the fewest GPUs for them. Default the rate of --trace;
    /// without one the plan has the highest rate of all --gpus.
    #[arg(long, env = "STATOR_PLAN_RATE")]
    pub(crate) rate: Option<f64>,
    /// A recorded trace instead of random requests of one length: Mooncake's JSON lines, or
    /// Azure's CSV. Its first 2000 requests count.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["isl", "osl", "cached"], env = "STATOR_PLAN_TRACE")]
    pub(crate) trace: Option<PathBuf>,
}

/// Latency targets.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Targets")]
pub(crate) struct TargetArgs {
    /// Longest time to the first token, 1 to 600000 ms.
    #[arg(long, default_value = "2000", env = "STATOR_PLAN_TTFT_MS")]
    pub(crate) ttft_ms: f64,
    /// Longest mean time between two tokens of a request, 0.1 to 60000 ms.
    #[arg(long, default_value = "50", env = "STATOR_PLAN_ITL_MS")]
    pub(crate) itl_ms: f64,
    /// Requests that must be within both, 50 to 100 percent.
    #[arg(long, default_value = "95", env = "STATOR_PLAN_ATTAINMENT_PERCENT")]
    pub(crate) attainment_percent: f64,
    /// Margin to each target for the error of the step times, 0 to 100 percent.
    #[arg(long, default_value = "15", env = "STATOR_PLAN_MARGIN_PERCENT")]
    pub(crate) margin_percent: f64,
}

/// Choices of the search.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Choices")]
pub(crate) struct ChoiceArgs {
    /// Engines to choose from.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "vllm,sglang,trtllm",
        env = "STATOR_PLAN_ENGINE"
    )]
    pub(crate) engine: Vec<EngineKind>,
    /// Forms to choose from.
    #[arg(long, value_enum, default_value = "any", env = "STATOR_PLAN_FORM")]
    pub(crate) form: FormArg,
    /// Format of the weights. Default as in the model's config.json.
    #[arg(long, value_enum, env = "STATOR_PLAN_WEIGHTS")]
    pub(crate) weights: Option<Precision>,
    /// Format of the KV.
    #[arg(long, value_enum, default_value = "bf16", env = "STATOR_PLAN_KV")]
    pub(crate) kv: Precision,
    /// Times that `stator bench --profile` measured on one worker; only workers with as many GPUs
    /// are compared then. May be repeated.
    #[arg(long, value_name = "FILE", value_delimiter = ',', env = "STATOR_PLAN_PROFILE")]
    pub(crate) profile: Vec<PathBuf>,
    /// Folder with the tables of the Python wheel aiconfigurator-core: the unpacked wheel, or the
    /// site-packages that it is installed in. Measured times of operations then take the place of
    /// the coefficients, for engines and shapes that the tables have.
    #[arg(long, value_name = "DIR", conflicts_with = "profile", env = "STATOR_PLAN_TABLES")]
    pub(crate) tables: Option<PathBuf>,
    /// Seed of the arrivals.
    #[arg(long, default_value = "1", env = "STATOR_PLAN_SEED")]
    pub(crate) seed: u64,
}

/// Files that the plan is written to.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Write the plan as JSON.
    #[arg(long, value_name = "FILE", env = "STATOR_PLAN_JSON")]
    pub(crate) json: Option<PathBuf>,
    /// Write the plan as a page.
    #[arg(long, value_name = "FILE", env = "STATOR_PLAN_HTML")]
    pub(crate) html: Option<PathBuf>,
    /// Write the best layout as a DynamoGraphDeployment.
    #[arg(long, value_name = "FILE", env = "STATOR_PLAN_MANIFEST")]
    pub(crate) manifest: Option<PathBuf>,
    /// Add a planner to the manifest, which scales the workers by the targets.
    #[arg(long, requires = "manifest", env = "STATOR_PLAN_PLANNER")]
    pub(crate) planner: bool,
}

/// Forms of layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FormArg {
    /// Whichever is better.
    Any,
    /// Every worker computes prompts and answers.
    Aggregated,
    /// Prompts have workers of their own.
    Disaggregated,
}

/// Flags that cannot be used, one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct InvalidPlan(pub Vec<String>);

impl PlanArgs {
    /// The checked request.
    ///
    /// # Errors
    ///
    /// [`InvalidPlan`] names every flag that cannot be used.
    pub(crate) fn request(&self) -> Result<PlanRequest, InvalidPlan> {
        let mut faults = Vec::new();
        let gpu = Gpu::named(&self.gpu);
        if gpu.is_none() {
            faults.push(format!("gpu: {}", Gpu::unknown(&self.gpu)));
        }
        let (traffic, trace) = match self.traffic.read() {
            Ok(read) => read,
            Err(error) => {
                faults.push(format!("trace: {error}"));
                (self.traffic.written(), None)
            }
        };
        let Traffic { input_tokens: isl, cached_tokens: cached, output_tokens: osl, rate } =
            traffic;
        let mut within = |name: &str, value: f64, least: f64, most: f64| {
            if !(least..=most).contains(&value) {
                faults.push(format!("{name}: {value} is not in {least}..={most}"));
            }
        };
        within("gpus", self.gpus.into(), 1.0, 4_096.0);
        within("isl", isl.into(), 1.0, 1e6);
        within("osl", osl.into(), 2.0, 1e6);
        within("cached", cached.into(), 0.0, f64::from(isl.saturating_sub(1)));
        within("rate", rate.unwrap_or(1.0), 0.001, 1e5);
        let targets = &self.targets;
        within("ttft_ms", targets.ttft_ms, 1.0, 600_000.0);
        within("itl_ms", targets.itl_ms, 0.1, 60_000.0);
        within("attainment_percent", targets.attainment_percent, 50.0, 100.0);
        within("margin_percent", targets.margin_percent, 0.0, 100.0);
        let model = ModelShape::read(&self.model).map_err(|error| faults.push(error.to_string()));
        if let Ok(model) = &model
            && u64::from(isl) + u64::from(osl) > u64::from(model.context_max)
        {
            let (length, most) = (u64::from(isl) + u64::from(osl), model.context_max);
            faults.push(format!(
                "isl: {isl} and osl {osl} are {length} tokens, above the model's context of {most}"
            ));
        }
        let profiles = profiles(&self.choices.profile, &mut faults);
        let (Some(gpu), Ok(mut model), []) = (gpu, model, faults.as_slice()) else {
            return Err(InvalidPlan(faults));
        };
        model.weights = self.choices.weights.unwrap_or(model.weights);
        let tables = self.choices.tables(gpu, &model).map_err(|fault| InvalidPlan(vec![fault]))?;
        let form = self.choices.form;
        Ok(PlanRequest {
            model,
            model_name: self.model_name.clone().unwrap_or_else(|| folder_name(&self.model)),
            model_path: folder(&self.model).display().to_string(),
            gpu: *gpu,
            gpus: self.gpus,
            kv: self.choices.kv,
            engines: self.choices.engine.clone(),
            forms: Forms {
                aggregated: form != FormArg::Disaggregated,
                disaggregated: form != FormArg::Aggregated,
            },
            traffic,
            trace,
            targets: targets.read(),
            profiles,
            tables,
            seed: self.choices.seed,
        })
    }
}

impl ChoiceArgs {
    /// Measured times of operations of each engine that has some on the GPU.
    fn tables(
        &self,
        gpu: &Gpu,
        model: &ModelShape,
    ) -> Result<Vec<(EngineKind, Arc<EngineTables>)>, String> {
        let Some(path) = &self.tables else { return Ok(Vec::new()) };
        let folder = TablesFolder::find(path).map_err(|error| error.to_string())?;
        let (experts, latent) = (model.experts.is_some(), model.latent.is_some());
        let needs = TableNeeds { experts, latent };
        let mut tables = Vec::new();
        for engine in &self.engine {
            let read = EngineTables::read(&folder, gpu.name, engine.name(), needs);
            let read = read.map_err(|error| error.to_string())?;
            if !read.sources().is_empty() {
                tables.push((*engine, Arc::new(read)));
            }
        }
        if tables.is_empty() {
            let engines: Vec<&str> = self.engine.iter().map(|engine| engine.name()).collect();
            let (path, engines) = (path.display(), engines.join(", "));
            return Err(format!("tables: {path}: no table of {} for {engines}", gpu.name));
        }
        Ok(tables)
    }
}

impl TargetArgs {
    /// The targets in seconds and shares.
    fn read(&self) -> Targets {
        Targets {
            ttft_s: self.ttft_ms / 1e3,
            itl_s: self.itl_ms / 1e3,
            attainment: self.attainment_percent / 100.0,
            margin: self.margin_percent / 100.0,
        }
    }
}

impl TrafficArgs {
    /// The requests that the flags describe.
    fn written(&self) -> Traffic {
        Traffic {
            input_tokens: self.isl,
            cached_tokens: self.cached,
            output_tokens: self.osl,
            rate: self.rate,
        }
    }

    /// The requests, and the trace that they come from: of one, their mean lengths.
    fn read(&self) -> Result<(Traffic, Option<RecordedTrace>), WorkloadError> {
        let Some(path) = &self.trace else { return Ok((self.written(), None)) };
        let workload = recorded(path, 1.0)?;
        let count = workload.requests.len() as f64;
        let mean = |tokens: &dyn Fn(&WorkloadRequest) -> u32| {
            let sum: f64 = workload.requests.iter().map(|request| f64::from(tokens(request))).sum();
            (sum / count).round() as u32
        };
        let last = workload.requests.iter().filter_map(|request| match request.arrival {
            ArrivalTime::At(moment) => Some(seconds(moment)),
            ArrivalTime::After(_) => None,
        });
        let rate = count / last.fold(1.0, f64::max);
        let traffic = Traffic {
            input_tokens: mean(&|request| request.prompt_tokens),
            cached_tokens: 0,
            output_tokens: mean(&|request| request.output_tokens).max(2),
            rate: Some(self.rate.unwrap_or(rate)),
        };
        Ok((traffic, Some(RecordedTrace { path: path.clone(), rate })))
    }
}

/// Measured times of these files.
fn profiles(paths: &[PathBuf], faults: &mut Vec<String>) -> Vec<EngineProfile> {
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let profile = text.and_then(|text| EngineProfile::parse(&text));
        profile.map_err(|error| format!("profile: {}: {error}", path.display()))
    };
    let profiles = paths.iter().map(read);
    profiles.filter_map(|profile| profile.map_err(|fault| faults.push(fault)).ok()).collect()
}

/// Folder of a model that was given by its folder or by its `config.json`.
fn folder(model: &Path) -> &Path {
    if model.is_dir() { model } else { model.parent().unwrap_or(model) }
}

/// Name of the folder of a model.
fn folder_name(model: &Path) -> String {
    let name = folder(model).file_name();
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
