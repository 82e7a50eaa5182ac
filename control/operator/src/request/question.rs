//! The question that a request asks of `stator plan`.

use super::hardware::{ClusterGpus, of_sku};
use serde_json::Value;
use stator_plan::{EngineKind, Forms, Gpu, ModelShape, PlanRequest, Precision, Targets, Traffic};
use stator_timing::EngineProfile;
use std::ops::RangeInclusive;

/// Annotation of a request with its model's `config.json`.
pub(crate) const MODEL_CONFIG: &str = "stator.dev/model-config";
/// Targets of a request that names none, milliseconds: Dynamo's.
const TTFT_MS: f64 = 2_000.0;
const ITL_MS: f64 = 30.0;
/// Share of requests within the targets, and the part of the targets that is kept free for the error
/// of step times: the defaults of `stator plan`.
const ATTAINMENT: f64 = 0.95;
const MARGIN: f64 = 0.15;

/// Everything around a request that its question depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestSurroundings<'a> {
    /// The model's `config.json`, or why there is none.
    pub(crate) model_config: Option<&'a str>,
    /// GPUs of the cluster's nodes, if they can be seen.
    pub(crate) cluster: Option<ClusterGpus>,
    /// Times that were measured on the model's workers: for each file its name, with what it says.
    pub(crate) profiles: &'a [(String, Result<EngineProfile, String>)],
}

/// Fields of a specification, and the faults that were found in them.
struct SpecReader<'a> {
    spec: &'a Value,
    faults: Vec<String>,
}

impl<'a> SpecReader<'a> {
    fn fault(&mut self, field: &str, what: &str) {
        self.faults.push(format!("spec.{field}: {what}"));
    }

    /// The value of a field, whose name has dots between its parts.
    fn value(&self, field: &str) -> &'a Value {
        field.split('.').fold(self.spec, |value, part| &value[part])
    }

    fn text(&mut self, field: &str) -> Option<&'a str> {
        match self.value(field) {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => {
                self.fault(field, &format!("{other} is no text"));
                None
            }
        }
    }

    fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Option<f64> {
        let (least, most) = (range.start(), range.end());
        match (self.value(field), self.value(field).as_f64()) {
            (Value::Null, _) => None,
            (_, Some(number)) if range.contains(&number) => Some(number),
            (other, _) => {
                self.fault(field, &format!("{other} is not in {least}..={most}"));
                None
            }
        }
    }
}

/// The question of a request whose specification is of `v1beta1`.
///
/// # Errors
///
/// All faults, each with field, value and what would work.
pub(crate) fn question(
    document: &Value,
    around: &RequestSurroundings<'_>,
) -> Result<PlanRequest, Vec<String>> {
    let mut spec = SpecReader { spec: &document["spec"], faults: Vec::new() };
    let traffic = traffic(&mut spec);
    let targets = targets(&mut spec, traffic.output_tokens);
    let rate = rate(&mut spec, &targets, traffic.output_tokens);
    let engines = engines(&mut spec);
    let profiles = profiles(&mut spec, around.profiles);
    let hardware = hardware(&mut spec, around.cluster);
    let name = spec.text("model").unwrap_or_default().to_owned();
    let model = model(&mut spec, &name, &traffic, around.model_config);
    match (model, hardware) {
        (Some(model), Some((gpu, gpus))) if spec.faults.is_empty() => Ok(PlanRequest {
            model,
            model_path: name.clone(),
            model_name: name,
            gpu,
            gpus,
            kv: Precision::Bf16,
            engines,
            forms: Forms { aggregated: true, disaggregated: true },
            traffic: Traffic { rate, ..traffic },
            trace: None,
            targets,
            profiles,
            tables: Vec::new(),
            seed: 1,
        }),
        _ => Err(spec.faults),
    }
}

/// Whether the most room to the targets counts more than the fewest GPUs.
pub(crate) fn prefers_room(document: &Value) -> bool {
    document["spec"]["sla"]["optimizationType"] == "latency"
}

fn traffic(spec: &mut SpecReader<'_>) -> Traffic {
    let mut tokens = |field, least, default| {
        spec.number(field, least..=1e6).map_or(default, |tokens| tokens as u32)
    };
    let (input_tokens, output_tokens) =
        (tokens("workload.isl", 1.0, 4_000), tokens("workload.osl", 2.0, 1_000));
    Traffic { input_tokens, cached_tokens: 0, output_tokens, rate: None }
}

fn targets(spec: &mut SpecReader<'_>, output_tokens: u32) -> Targets {
    let ttft = spec.number("sla.ttft", 1.0..=600_000.0);
    let itl = spec.number("sla.itl", 0.1..=60_000.0);
    let whole = spec.number("sla.e2eLatency", 1.0..=86_400_000.0);
    if whole.is_some() && (ttft.is_some() || itl.is_some()) {
        spec.fault("sla.e2eLatency", "goes without ttft and itl; leave one side out");
    }
    match spec.text("sla.optimizationType") {
        None | Some("latency" | "throughput") => {}
        Some(other) => {
            spec.fault("sla.optimizationType", &format!("{other:?} is none of latency, throughput"))
        }
    }
    let (ttft_ms, itl_ms) = match whole {
        // The first token may take half of the whole time, but no longer than it may by default.
        Some(whole) => {
            let first = TTFT_MS.min(whole / 2.0);
            (first, (whole - first) / f64::from(output_tokens - 1))
        }
        None => (ttft.unwrap_or(TTFT_MS), itl.unwrap_or(ITL_MS)),
    };
    Targets { ttft_s: ttft_ms / 1e3, itl_s: itl_ms / 1e3, attainment: ATTAINMENT, margin: MARGIN }
}

/// Requests per second: those asked for, or those of so many clients that wait for each answer, if
/// answers take as long as they may.
fn rate(spec: &mut SpecReader<'_>, targets: &Targets, output_tokens: u32) -> Option<f64> {
    let rate = spec.number("workload.requestRate", 0.001..=1e5);
    let clients = spec.number("workload.concurrency", 1.0..=1e6);
    if rate.is_some() && clients.is_some() {
        spec.fault("workload.concurrency", "goes without requestRate; leave one of them out");
    }
    let answer_s = targets.ttft_s + targets.itl_s * f64::from(output_tokens - 1);
    rate.or(clients.map(|clients| clients / answer_s))
}

/// The measured times that a thorough search compares workers by; none of a rapid one.
fn profiles(
    spec: &mut SpecReader<'_>,
    files: &[(String, Result<EngineProfile, String>)],
) -> Vec<EngineProfile> {
    let is_thorough = match spec.text("searchStrategy") {
        None | Some("rapid") => false,
        Some("thorough") => true,
        Some(other) => {
            spec.fault("searchStrategy", &format!("{other:?} is none of rapid, thorough"));
            false
        }
    };
    if !is_thorough {
        return Vec::new();
    }
    if files.is_empty() {
        let what = "thorough takes times that `stator bench --profile` measured, and there are no \
                    profile*.json beside the model's config.json below --model-configs; rapid does \
                    without";
        spec.fault("searchStrategy", what);
    }
    if !matches!(spec.text("backend"), Some("vllm" | "sglang" | "trtllm")) {
        let what = "thorough needs the engine that was measured, one of vllm, sglang, trtllm";
        spec.fault("backend", what);
    }
    let mut profiles = Vec::new();
    for (name, profile) in files {
        match profile {
            Ok(profile) => profiles.push(profile.clone()),
            Err(fault) => spec.fault("searchStrategy", &format!("{name}: {fault}")),
        }
    }
    profiles
}

fn engines(spec: &mut SpecReader<'_>) -> Vec<EngineKind> {
    let backend = spec.text("backend").unwrap_or("auto");
    let known = EngineKind::ALL
        .into_iter()
        .filter(|kind| matches!(backend, "auto") || kind.name() == backend);
    let engines: Vec<EngineKind> = known.collect();
    if engines.is_empty() {
        spec.fault("backend", &format!("{backend:?} is none of auto, vllm, sglang, trtllm"));
    }
    engines
}

/// The GPU and the number of GPUs.
fn hardware(spec: &mut SpecReader<'_>, cluster: Option<ClusterGpus>) -> Option<(Gpu, u32)> {
    let sku = spec.text("hardware.gpuSku");
    let total = spec.number("hardware.totalGpus", 1.0..=4_096.0);
    let per_node = spec.number("hardware.numGpusPerNode", 1.0..=256.0);
    let memory = spec.number("hardware.vramMb", 1_024.0..=4_194_304.0);
    let gpu = match (sku.map(|sku| (sku, of_sku(sku))), cluster) {
        (Some((_, Some(gpu))), _) => gpu,
        (Some((sku, None)), _) => {
            spec.fault("hardware.gpuSku", &Gpu::unknown(sku));
            return None;
        }
        (None, Some(cluster)) => cluster.gpu,
        (None, None) => {
            spec.fault("hardware.gpuSku", "is missing, and no node with known GPUs can be seen");
            return None;
        }
    };
    let Some(total) = total.map(|total| total as u32).or(cluster.map(|of| of.total)) else {
        spec.fault("hardware.totalGpus", "is missing, and no node with such GPUs can be seen");
        return None;
    };
    let per_node = per_node.map(|gpus| gpus as u32).or(cluster.map(|of| of.per_node));
    // The memory is in MiB.
    let memory = memory.map_or(gpu.memory, |mib| mib * 1_048_576.0);
    Some((gpu.in_server(memory, per_node.unwrap_or(gpu.per_node)), total))
}

fn model(
    spec: &mut SpecReader<'_>,
    name: &str,
    traffic: &Traffic,
    config: Option<&str>,
) -> Option<ModelShape> {
    let Some(config) = config else {
        let what = format!(
            "there is no config.json of {name:?}: put it into the annotation {MODEL_CONFIG}, or \
             below --model-configs"
        );
        spec.fault("model", &what);
        return None;
    };
    let shape = match ModelShape::parse(config) {
        Ok(shape) => shape,
        Err(error) => {
            spec.fault("model", &format!("config.json of {name:?}: {error}"));
            return None;
        }
    };
    let length = traffic.input_tokens.saturating_add(traffic.output_tokens);
    if length > shape.context_max {
        let most = shape.context_max;
        let what = format!("isl and osl are {length} tokens, above the model's context of {most}");
        spec.fault("workload", &what);
    }
    Some(shape)
}
