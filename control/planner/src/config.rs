//! Checked configuration of the process.

use crate::args::{GoalArgs, OptimizationTarget, PlannerArgs, PlannerMode};
use crate::budget::{GpuBudget, GraphDemand};
use crate::capacity::{SlaTargets, WorkerModel};
use crate::law::threshold::Thresholds;
use crate::output::object::ScaleObject;
use crate::predict::{KalmanNoise, LoadPredictor, PredictorSettings};
use crate::replicas::{ROLES, Replicas, role_name};
use crate::settings::{GraphSettings, Law, PlannerSettings, SlaLaw};
use crate::warmup::WarmupSettings;
use stator_discovery::DiscoverySource;
use stator_fleet_model::time::seconds;
use stator_fleet_model::{ArrivalTime, Replay, TRACE_BLOCK, Workload};
use stator_http::{TlsOptions, Url};
use stator_protos::discovery::Role;
use stator_runtime::config::ConfigError;
use stator_runtime::dial::Dial;
use stator_timing::{EngineProfile, PRESETS, Timing};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// KV tokens of a worker before one has come.
const KV_TOKENS: f64 = 400_000.0;

/// Checked configuration of `stator planner`.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// A planner for each model.
    pub(crate) graphs: Vec<PlannerSettings>,
    pub(crate) budget: GpuBudget,
    /// Arrivals of an earlier season, seconds from its start.
    pub(crate) warmup: Vec<f64>,
    /// Pages that count requests.
    pub(crate) pages: Vec<Url>,
    /// TLS of these pages.
    pub(crate) metrics_tls: TlsOptions,
    pub(crate) output: OutputSettings,
    pub(crate) out: Option<PathBuf>,
    pub(crate) discovery: DiscoverySource,
    pub(crate) dial: Dial,
    pub(crate) metrics_listen: SocketAddr,
}

/// Receiver of decisions.
#[derive(Clone, Debug)]
pub(crate) enum OutputSettings {
    /// Nobody.
    Advice,
    /// A supervisor that reads a file.
    File(PathBuf),
    /// Objects of a cluster.
    Scale { objects: Vec<ScaleObject>, namespace: Option<String>, kubeconfig: Option<PathBuf> },
}

impl TryFrom<PlannerArgs> for RunSettings {
    type Error = ConfigError;

    fn try_from(args: PlannerArgs) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        if args.graph.models.is_empty() {
            faults.push("models: names no model".into());
        }
        ranges(&args, &mut faults);
        let law = law(&args, &mut faults);
        let discovery = args.discovery.source().map_err(|error| faults.push(error.to_string()));
        let dial = args.dial.dial().map_err(|fault| faults.push(fault));
        let metrics_tls =
            TlsOptions { ca_path: args.forecast.metrics_ca_file.clone(), ..TlsOptions::default() };
        let pages = pages(&args, &metrics_tls, &mut faults);
        let warmup = match &args.forecast.warmup_trace {
            Some(path) => arrivals(path).unwrap_or_else(|fault| {
                faults.push(format!("warmup-trace: {fault}"));
                Vec::new()
            }),
            None => Vec::new(),
        };
        let output = output(&args, &mut faults);
        let predictor = predictor(&args, &mut faults);
        let graphs = graphs(&args, law.as_ref(), &predictor, &output, &mut faults);
        let budget = budget(&args, &graphs, &mut faults);
        let (Ok(discovery), Ok(dial), []) = (discovery, dial, faults.as_slice()) else {
            return Err(ConfigError(faults));
        };
        let metrics = &args.metrics;
        Ok(Self {
            graphs,
            budget,
            warmup,
            pages,
            metrics_tls,
            output,
            out: args.output.out,
            discovery,
            dial,
            metrics_listen: SocketAddr::new(metrics.metrics_host, metrics.metrics_port),
        })
    }
}

/// Faults of numbers that are out of range.
fn ranges(args: &PlannerArgs, faults: &mut Vec<String>) {
    let (goal, graph, pace) = (&args.goal, &args.graph, &args.pace);
    let mut within = |name: &str, value: f64, least: f64, most: f64| {
        if !(least..=most).contains(&value) {
            faults.push(format!("{name}: {value} is not in {least}..={most}"));
        }
    };
    within("ttft-ms", goal.ttft_ms, 1.0, 600_000.0);
    within("itl-ms", goal.itl_ms, 0.1, 60_000.0);
    within("attainment-percent", goal.attainment_percent, 50.0, 99.9);
    within("batch-max", goal.batch_max, 1.0, 65_536.0);
    within("step-tokens", goal.step_tokens, 1.0, 1_048_576.0);
    within("min-endpoint", graph.min_endpoint.into(), 0.0, 4_096.0);
    within("max-endpoint", graph.max_endpoint.into(), 1.0, 4_096.0);
    within("max-scaling-replicas", graph.max_scaling_replicas.into(), 1.0, 4_096.0);
    for (name, value) in [
        ("prefill-min-endpoint", graph.prefill_min_endpoint),
        ("decode-min-endpoint", graph.decode_min_endpoint),
        ("worker-gpus", graph.worker_gpus),
        ("prefill-worker-gpus", graph.prefill_worker_gpus),
    ] {
        within(name, value.unwrap_or(1).into(), 1.0, 4_096.0);
    }
    within("load-adjustment-interval-s", pace.load_adjustment_interval_s, 0.05, 3_600.0);
    within("warmup-s", pace.warmup_s, 0.0, 86_400.0);
    within("cached-warmup-s", pace.cached_warmup_s, 0.0, 86_400.0);
    within("cache-life-s", pace.cache_life_s, 0.0, 31_536_000.0);
    within("pending-s", pace.pending_s, 1.0, 86_400.0);
    within("pin-s", pace.pin_s, 0.0, 86_400.0);
    within("idle-s", pace.idle_s, 0.0, 86_400.0);
    within("cold-s", pace.cold_s, 0.0, 3_600.0);
    within("season-s", args.forecast.season_s, 60.0, 31_536_000.0);
    within("osl", args.forecast.osl, 1.0, 1e6);
}

fn law(args: &PlannerArgs, faults: &mut Vec<String>) -> Option<Law> {
    let goal = &args.goal;
    match goal.optimization_target {
        OptimizationTarget::Throughput => Some(Law::Thresholds(Thresholds::THROUGHPUT)),
        OptimizationTarget::Latency => Some(Law::Thresholds(Thresholds::LATENCY)),
        OptimizationTarget::Load => Some(Law::Thresholds(thresholds(goal, faults))),
        OptimizationTarget::Sla => {
            if args.forecast.metrics_url.is_empty() {
                faults.push(
                    "optimization-target: sla needs metrics-url, which counts requests".into(),
                );
            }
            if args.graph.models.len() > 1 {
                faults.push("optimization-target: sla takes one model, models has several".into());
            }
            let Some(name) = &goal.timing else {
                let presets = presets();
                faults.push(format!(
                    "optimization-target: sla needs timing: a file, or one of {presets}"
                ));
                return None;
            };
            let mut read = |flag: &str, name: &String| {
                timing(name).map_err(|fault| faults.push(format!("{flag}: {fault}"))).ok()
            };
            let decode = read("timing", name);
            let prefill = match &goal.prefill_timing {
                Some(name) => read("prefill-timing", name),
                None => decode,
            };
            let (decode, prefill) = (decode?, prefill?);
            let model = |timing| WorkerModel {
                timing,
                kv_tokens: KV_TOKENS,
                batch_max: goal.batch_max,
                step_tokens: goal.step_tokens,
            };
            let targets = SlaTargets {
                ttft_s: goal.ttft_ms / 1e3,
                itl_s: goal.itl_ms / 1e3,
                attainment: goal.attainment_percent / 100.0,
            };
            Some(Law::Sla(SlaLaw { targets, prefill: model(prefill), decode: model(decode) }))
        }
    }
}

fn thresholds(goal: &GoalArgs, faults: &mut Vec<String>) -> Thresholds {
    let pairs = [
        (
            "prefill-scale-down-percent",
            goal.prefill_scale_down_percent,
            "prefill-scale-up-percent",
            goal.prefill_scale_up_percent,
        ),
        (
            "decode-scale-down-kv-percent",
            goal.decode_scale_down_kv_percent,
            "decode-scale-up-kv-percent",
            goal.decode_scale_up_kv_percent,
        ),
    ];
    for (lower, down, upper, up) in pairs {
        if !(0.0..up).contains(&down) {
            faults.push(format!("{lower}: {down} is not below {upper}, {up}"));
        }
    }
    Thresholds {
        prefill_up: goal.prefill_scale_up_percent / 100.0,
        prefill_down: goal.prefill_scale_down_percent / 100.0,
        decode_up: goal.decode_scale_up_kv_percent / 100.0,
        decode_down: goal.decode_scale_down_kv_percent / 100.0,
    }
}

fn presets() -> String {
    PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ")
}

/// Step times by the name of a preset, as JSON, or of a file.
fn timing(name: &str) -> Result<Timing, String> {
    if let Some(timing) = Timing::preset(name) {
        return Ok(timing);
    }
    let is_json = name.trim_start().starts_with('{');
    let text = match is_json {
        true => name.to_owned(),
        false => std::fs::read_to_string(name)
            .map_err(|error| format!("{name:?} is none of {}, and no file: {error}", presets()))?,
    };
    // A file has a profile, or its four times alone.
    let is_profile = text.contains("\"timing\"");
    let timing = match is_profile {
        true => EngineProfile::parse(&text).map(|profile| profile.timing),
        false => serde_json::from_str::<Timing>(&text)
            .map_err(|error| error.to_string())
            .and_then(|timing| timing.check().map(|()| timing)),
    };
    timing.map_err(|fault| format!("{name}: {fault}"))
}

fn pages(args: &PlannerArgs, tls: &TlsOptions, faults: &mut Vec<String>) -> Vec<Url> {
    let mut pages = Vec::new();
    for url in &args.forecast.metrics_url {
        let parsed = Url::parse(url).map_err(|error| error.to_string());
        let parsed = parsed
            .and_then(|page| page.origin(tls).map(|_| page).map_err(|error| error.to_string()));
        match parsed {
            Ok(page) => pages.push(page),
            Err(error) => faults.push(format!("metrics-url: {url:?}: {error}")),
        }
    }
    pages
}

/// Arrivals of a recorded trace, seconds from its start.
fn arrivals(path: &Path) -> Result<Vec<f64>, String> {
    let whole = Replay { speed: 1.0, repeat: 1, limit: u32::MAX };
    let trace = Workload::read(path, TRACE_BLOCK, whole).map_err(|error| error.to_string())?;
    let moment = |arrival| match arrival {
        ArrivalTime::At(at) => Some(seconds(at)),
        ArrivalTime::After(_) => None,
    };
    Ok(trace.requests.iter().filter_map(|request| moment(request.arrival)).collect())
}

fn predictor(args: &PlannerArgs, faults: &mut Vec<String>) -> PredictorSettings {
    let forecast = &args.forecast;
    let noise = [forecast.kalman_q_level, forecast.kalman_q_trend, forecast.kalman_r];
    let noise = match noise {
        [None, None, None] => None,
        [Some(level), Some(trend), Some(measurement)]
            if level >= 0.0 && trend >= 0.0 && measurement > 0.0 =>
        {
            Some(KalmanNoise { level, trend, measurement })
        }
        _ => {
            faults.push(
                "kalman-q-level: goes with kalman-q-trend and kalman-r; none is negative, and \
                 kalman-r is above 0"
                    .into(),
            );
            None
        }
    };
    if forecast.load_predictor != LoadPredictor::Seasonal && forecast.warmup_trace.is_some() {
        faults.push("warmup-trace: needs load-predictor seasonal".into());
    }
    PredictorSettings {
        kind: forecast.load_predictor,
        log1p: forecast.load_predictor_log1p,
        noise,
        season_s: forecast.season_s,
    }
}

fn graphs(
    args: &PlannerArgs,
    law: Option<&Law>,
    predictor: &PredictorSettings,
    output: &OutputSettings,
    faults: &mut Vec<String>,
) -> Vec<PlannerSettings> {
    let (graph, pace) = (&args.graph, &args.pace);
    let roles = match graph.mode {
        PlannerMode::Aggregated => vec![Role::Aggregated],
        PlannerMode::Disaggregated => vec![Role::Prefill, Role::Decode],
        PlannerMode::Prefill => vec![Role::Prefill],
        PlannerMode::Decode => vec![Role::Decode],
    };
    let of_roles = |of: &dyn Fn(Role) -> u32| {
        Replicas::from_fn(|role| if roles.contains(&role) { of(role) } else { 0 })
    };
    let min = of_roles(&|role| match role {
        Role::Prefill => graph.prefill_min_endpoint.unwrap_or(graph.min_endpoint),
        Role::Decode => graph.decode_min_endpoint.unwrap_or(graph.min_endpoint),
        _ => graph.min_endpoint,
    });
    for role in ROLES.iter().filter(|role| min.of(**role) > graph.max_endpoint) {
        let (name, least, most) = (role_name(*role), min.of(*role), graph.max_endpoint);
        faults.push(format!("max-endpoint: {most} is below the fewest {name} workers, {least}"));
    }
    if let OutputSettings::Scale { objects, .. } = output {
        for model in &graph.models {
            let scaled = |role: Role| objects.iter().any(|object| object.scales(model, role));
            for role in roles.iter().filter(|role| !scaled(**role)) {
                faults.push(format!("scale: names no object for {} of {model}", role_name(*role)));
            }
        }
    }
    let worker = graph.worker_gpus.unwrap_or(1);
    let settings = |model: &String| PlannerSettings {
        graph: GraphSettings {
            name: model.clone(),
            roles: roles.clone(),
            min,
            max: of_roles(&|_| graph.max_endpoint),
            gpus: of_roles(&|role| match role {
                Role::Prefill => graph.prefill_worker_gpus.unwrap_or(worker),
                _ => worker,
            }),
            step_max: graph.max_scaling_replicas,
        },
        law: law.cloned().unwrap_or(Law::Thresholds(Thresholds::THROUGHPUT)),
        predictor: predictor.clone(),
        interval_s: pace.load_adjustment_interval_s,
        warmup: WarmupSettings {
            cold_s: pace.warmup_s,
            cached_s: pace.cached_warmup_s,
            cache_life_s: pace.cache_life_s,
        },
        pending_s: pace.pending_s,
        // Nobody is overruled by advice.
        pin_s: if matches!(output, OutputSettings::Advice) { 0.0 } else { pace.pin_s },
        idle_s: pace.idle_s,
        cold_s: pace.cold_s,
        output_tokens: args.forecast.osl,
    };
    graph.models.iter().map(settings).collect()
}

fn budget(args: &PlannerArgs, graphs: &[PlannerSettings], faults: &mut Vec<String>) -> GpuBudget {
    let budget =
        GpuBudget { max: args.graph.max_gpu_budget, min: args.graph.min_gpu_budget.unwrap_or(0) };
    let limited = budget.max.is_some() || budget.min > 0;
    if limited && args.graph.worker_gpus.is_none() {
        faults.push("max-gpu-budget: needs worker-gpus; GPUs are never guessed".into());
    }
    if budget.max.is_some_and(|max| budget.min > max) {
        let max = budget.max.unwrap_or_default();
        faults.push(format!("min-gpu-budget: {} is above max-gpu-budget, {max}", budget.min));
    }
    let least: Vec<GraphDemand> = graphs.iter().map(|of| demand(of, of.graph.min)).collect();
    if let Err(error) = budget.share(&least) {
        faults.push(format!("max-gpu-budget: {error}"));
    }
    budget
}

/// A graph that wants so many workers.
pub(crate) fn demand(settings: &PlannerSettings, wanted: Replicas) -> GraphDemand {
    let graph = &settings.graph;
    GraphDemand { wanted, min: graph.min, max: graph.max, gpus: graph.gpus }
}

fn output(args: &PlannerArgs, faults: &mut Vec<String>) -> OutputSettings {
    let output = &args.output;
    let objects: Vec<ScaleObject> = output
        .scale
        .iter()
        .filter_map(|text| {
            let parsed = ScaleObject::parse(text, &args.graph.models);
            parsed.map_err(|fault| faults.push(format!("scale: {text:?}: {fault}"))).ok()
        })
        .collect();
    match (&output.replicas_file, objects.is_empty()) {
        _ if output.advisory => OutputSettings::Advice,
        (Some(file), _) => OutputSettings::File(file.clone()),
        (None, true) => OutputSettings::Advice,
        (None, false) => OutputSettings::Scale {
            objects,
            namespace: output.namespace.clone(),
            kubeconfig: output.kubeconfig.clone(),
        },
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
