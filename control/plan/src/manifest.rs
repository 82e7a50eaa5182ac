//! A layout as commands for this project, and as a graph for Kubernetes.

use crate::engine::EngineKind;
use crate::layout::{Layout, WorkerGroup};
use crate::replay::{STEP_TOKENS, step_times};
use crate::request::PlanRequest;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Annotation of a graph with the step times of its workers by role, as JSON: its planner forecasts
/// latencies by them.
pub const STEP_TIMES: &str = "stator.dev/step-times";

/// A group of workers and what they are for.
struct Part<'a> {
    role: Option<&'static str>,
    group: &'a WorkerGroup,
}

fn parts(layout: &Layout) -> Vec<Part<'_>> {
    match layout {
        Layout::Aggregated(group) => vec![Part { role: None, group }],
        Layout::Disaggregated { prefill, decode } => vec![
            Part { role: Some("prefill"), group: prefill },
            Part { role: Some("decode"), group: decode },
        ],
    }
}

/// Commands that start the layout: one for each group of workers, and the proxy.
pub(crate) fn commands(request: &PlanRequest, layout: &Layout) -> String {
    let mut text = String::new();
    for Part { role, group } in parts(layout) {
        let role = role.map(|role| format!(" --role {role}")).unwrap_or_default();
        let (engine, flags) = (group.worker.engine.name(), engine_flags(group).join(" "));
        let _ = writeln!(
            text,
            "# {} times, on {} GPUs each\nstator agent --engine {engine} --model {}{role} -- {flags}",
            group.count,
            group.worker.gpus(),
            request.model_path,
        );
    }
    text + "# once\nstator proxy\n"
}

/// The engine's own flags for a worker's parallelism and batch.
fn engine_flags(group: &WorkerGroup) -> Vec<String> {
    let WorkerGroup { worker, batch_max, .. } = *group;
    let names = match worker.engine {
        EngineKind::Vllm => FlagNames {
            tensor: "--tensor-parallel-size",
            pipeline: "--pipeline-parallel-size",
            data: "--data-parallel-size",
            experts: Some("--enable-expert-parallel"),
            batch: "--max-num-seqs",
            step: "--max-num-batched-tokens",
        },
        EngineKind::Sglang => FlagNames {
            tensor: "--tp-size",
            pipeline: "--pp-size",
            data: "--dp-size",
            experts: Some("--enable-dp-attention"),
            batch: "--max-running-requests",
            step: "--chunked-prefill-size",
        },
        EngineKind::Trtllm => FlagNames {
            tensor: "--tp_size",
            pipeline: "--pp_size",
            data: "--ep_size",
            experts: None,
            batch: "--max_batch_size",
            step: "--max_num_tokens",
        },
    };
    names.flags(worker.engine, group, batch_max)
}

/// An engine's names of the flags that a plan sets.
struct FlagNames {
    tensor: &'static str,
    pipeline: &'static str,
    data: &'static str,
    /// Switch that spreads experts over the copies of the attention.
    experts: Option<&'static str>,
    batch: &'static str,
    step: &'static str,
}

impl FlagNames {
    fn flags(&self, engine: EngineKind, group: &WorkerGroup, batch_max: u32) -> Vec<String> {
        let worker = group.worker;
        // SGLang and TensorRT-LLM count the copies of the attention among the tensor's GPUs.
        let tensor = match engine {
            EngineKind::Vllm => worker.tensor,
            EngineKind::Sglang | EngineKind::Trtllm => worker.tensor * worker.data,
        };
        let mut flags = Vec::new();
        let mut add = |name: &str, value: u32| flags.extend([name.to_owned(), value.to_string()]);
        if tensor > 1 {
            add(self.tensor, tensor);
        }
        if worker.pipeline > 1 {
            add(self.pipeline, worker.pipeline);
        }
        if worker.data > 1 {
            add(self.data, worker.data);
        }
        add(self.batch, batch_max.div_ceil(worker.data));
        add(self.step, STEP_TOKENS);
        if worker.data > 1 {
            flags.extend(self.experts.map(str::to_owned));
        }
        flags
    }
}

/// Choices of a graph beside its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphChoices {
    /// Name of the graph.
    pub name: String,
    /// Image of all containers.
    pub image: String,
    /// Folder of the model in the containers. Without one they find the model by its name.
    pub model_folder: Option<String>,
    /// Whether simulated workers, which need no GPU, stand in for the engines.
    pub is_simulated: bool,
    /// Settings of a planner that scales the workers, by Dynamo's names; none for a graph without one.
    pub planner: Option<Map<String, Value>>,
}

impl GraphChoices {
    /// Choices of `stator plan`. The image is a name to be replaced: a plan knows engines, not
    /// registries.
    pub(crate) fn of(request: &PlanRequest) -> Self {
        Self {
            name: resource_name(&request.model_name),
            image: "my-registry/runtime:my-tag".to_owned(),
            model_folder: None,
            is_simulated: false,
            planner: None,
        }
    }
}

/// The layout as a `DynamoGraphDeployment` of `nvidia.com/v1beta1`.
pub fn graph(request: &PlanRequest, layout: &Layout, choices: &GraphChoices) -> Value {
    let frontend = json!({
        "name": "main",
        "image": choices.image,
        "command": ["python3", "-m", "dynamo.frontend"],
    });
    let mut components = vec![component("Frontend", "frontend", 1, 1, frontend)];
    for Part { role, group } in parts(layout) {
        let name = role.unwrap_or("worker");
        let nodes = group.worker.gpus().div_ceil(request.gpu.per_node);
        let mut container = json!({ "name": "main", "image": choices.image });
        let (module, arguments) = match choices.is_simulated {
            true => ("mocker", simulated_arguments(request, group, role, choices)),
            false => {
                let gpus = (group.worker.gpus() / nodes).to_string();
                container["resources"] = json!({ "limits": { "nvidia.com/gpu": gpus } });
                (group.worker.engine.name(), engine_arguments(request, group, role, choices))
            }
        };
        container["command"] = json!(["python3", "-m", format!("dynamo.{module}")]);
        container["args"] = json!(arguments);
        let nodes = if choices.is_simulated { 1 } else { nodes };
        components.push(component(name, name, group.count, nodes, container));
    }
    let mut metadata = json!({ "name": choices.name });
    if let Some(said) = &choices.planner {
        let arguments = ["--config".to_owned(), planner_config(request, layout, said).to_string()];
        let container = json!({
            "name": "main",
            "image": choices.image,
            "command": ["python3", "-m", "dynamo.planner"],
            "args": arguments,
        });
        components.push(component("Planner", "planner", 1, 1, container));
        metadata["annotations"] = json!({ STEP_TIMES: times(request, layout).to_string() });
    }
    json!({
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": metadata,
        "spec": { "components": components },
    })
}

/// Settings of a graph's planner: it keeps to the targets of the plan unless it is told otherwise.
fn planner_config(request: &PlanRequest, layout: &Layout, said: &Map<String, Value>) -> Value {
    let is_pair = matches!(layout, Layout::Disaggregated { .. });
    let mut config = json!({
        "mode": if is_pair { "disagg" } else { "agg" },
        "model_name": request.model_name,
        "ttft_ms": request.targets.ttft_s * 1e3,
        "itl_ms": request.targets.itl_s * 1e3,
    });
    for (name, value) in said {
        config[name] = value.clone();
    }
    config
}

/// Step times of a layout's workers, by role.
fn times(request: &PlanRequest, layout: &Layout) -> Value {
    let of = |part: Part<'_>| {
        let times = serde_json::to_value(step_times(request, part.group));
        (part.role.unwrap_or("aggregated").to_owned(), times.unwrap_or_default())
    };
    Value::Object(parts(layout).into_iter().map(of).collect())
}

/// Arguments of an engine's module.
fn engine_arguments(
    request: &PlanRequest,
    group: &WorkerGroup,
    role: Option<&str>,
    choices: &GraphChoices,
) -> Vec<String> {
    let engine = group.worker.engine;
    let model = match engine {
        EngineKind::Vllm => "--model",
        EngineKind::Sglang | EngineKind::Trtllm => "--model-path",
    };
    let mut arguments = vec![model.to_owned()];
    match &choices.model_folder {
        Some(folder) => {
            let served = ["--served-model-name", &request.model_name];
            arguments.push(folder.clone());
            arguments.extend(served.map(str::to_owned));
        }
        None => arguments.push(request.model_name.clone()),
    }
    arguments.extend(engine_flags(group));
    if let Some(role) = role {
        arguments.extend(["--disaggregation-mode", role].map(str::to_owned));
        arguments.extend(transfer_flags(engine).map(str::to_owned));
    }
    arguments
}

/// Arguments of the module of simulated workers.
fn simulated_arguments(
    request: &PlanRequest,
    group: &WorkerGroup,
    role: Option<&str>,
    choices: &GraphChoices,
) -> Vec<String> {
    let name = &request.model_name;
    let (batch, step) = (group.batch_max.to_string(), STEP_TOKENS.to_string());
    let model = choices.model_folder.as_ref().unwrap_or(name);
    let mut arguments = vec!["--model-path", model, "--model-name", name];
    arguments.extend(["--max-num-seqs", &batch, "--max-num-batched-tokens", &step]);
    arguments.extend(role.into_iter().flat_map(|role| ["--disaggregation-mode", role]));
    arguments.into_iter().map(str::to_owned).collect()
}

/// Flags by which an engine's two halves move KV over NIXL; TensorRT-LLM has it in a file of its own.
fn transfer_flags(engine: EngineKind) -> impl Iterator<Item = &'static str> {
    let flags: &[&str] = match engine {
        EngineKind::Vllm => {
            &["--kv-transfer-config", r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#]
        }
        EngineKind::Sglang => &["--disaggregation-transfer-backend", "nixl"],
        EngineKind::Trtllm => &[],
    };
    flags.iter().copied()
}

fn component(name: &str, kind: &str, replicas: u32, nodes: u32, container: Value) -> Value {
    let mut component = json!({
        "name": name,
        "type": kind,
        "replicas": replicas,
        "podTemplate": { "spec": { "containers": [container] } },
    });
    if nodes > 1 {
        component["multinode"] = json!({ "nodeCount": nodes });
    }
    component
}

/// The model's name as Kubernetes takes it: small letters, digits and dashes, at most 40.
fn resource_name(model: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = model.chars().map(plain).take(40).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "model".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
