//! Words of a planner's command line that follow from its graph: what it scales.

use super::document::GraphDocument;
use super::instance::{PLANNER, is_worker};
use crate::kinds::beta::ComponentType;
use serde_json::{Map, Value, json};
use stator_plan::STEP_TIMES;

/// Flags of a planner that take step times, and the roles whose times they take.
const TIMING_FLAGS: [(&str, &[&str]); 2] =
    [("--timing", &["aggregated", "decode"]), ("--prefill-timing", &["prefill"])];
/// Flags that name a worker's model, the best first.
const MODEL_FLAGS: [&str; 4] = ["--served-model-name", "--model-name", "--model", "--model-path"];

/// Gives workers of a graph with a planner scaling adapters, through which the planner scales them.
pub(crate) fn with_adapters(mut document: Value) -> Value {
    let components = document["spec"]["components"].as_array_mut().into_iter().flatten();
    let mut components: Vec<_> = components.collect();
    let has_planner = components.iter().any(|component| component["type"] == "planner");
    let workers = components.iter_mut().filter(|component| {
        let kind = serde_json::from_value::<ComponentType>(component["type"].clone()).ok();
        is_worker(kind) && component["scalingAdapter"].is_null()
    });
    workers.filter(|_| has_planner).for_each(|worker| worker["scalingAdapter"] = json!({}));
    document
}

/// The words, each a flag with its value.
pub(super) fn words(graph: &GraphDocument<'_>) -> Vec<String> {
    let (mut scaled, mut models) = (Vec::new(), Vec::new());
    let mut words = Vec::new();
    for component in graph.spec.components.iter().flatten() {
        let id = format!("{}-{}", graph.name, component.name.to_lowercase());
        let role = match component.shape.r#type {
            Some(ComponentType::Worker) => "aggregated",
            Some(ComponentType::Prefill) => "prefill",
            Some(ComponentType::Decode) => "decode",
            Some(ComponentType::Frontend) => {
                let host = id.replace('.', "-");
                words.push(format!("--metrics-url=http://{host}.{}:8000/metrics", graph.namespace));
                continue;
            }
            _ => continue,
        };
        scaled.push(format!("{role}=dgdsa/{id}"));
        let template = component.shape.pod_template.as_ref().map(|template| &template.0);
        models.extend(template.and_then(model));
    }
    models.sort();
    models.dedup();
    let is_pair = scaled.iter().any(|one| one.starts_with("prefill"));
    words.push(format!("--mode={}", if is_pair { "disaggregated" } else { "aggregated" }));
    words.push(format!("--namespace={}", graph.namespace));
    words.extend(timing(graph));
    for (flag, values) in [("--models", models), ("--scale", scaled)] {
        if !values.is_empty() {
            words.push(format!("{flag}={}", values.join(",")));
        }
    }
    words
}

/// The step times that the graph says of its workers.
fn timing(graph: &GraphDocument<'_>) -> Vec<String> {
    let text = graph.metadata["annotations"][STEP_TIMES].as_str().unwrap_or_default();
    let times: Value = serde_json::from_str(text).unwrap_or_default();
    let of = |roles: &[&str]| roles.iter().find_map(|role| times.get(role)).cloned();
    let flags = TIMING_FLAGS.iter();
    flags.filter_map(|(flag, roles)| Some(format!("{flag}={}", of(roles)?))).collect()
}

/// The annotation with the words.
pub(super) fn annotation(graph: &GraphDocument<'_>) -> (String, Value) {
    (PLANNER.to_owned(), json!(json!(words(graph)).to_string()))
}

/// The name under which clients ask a worker for its model.
fn model(template: &Map<String, Value>) -> Option<String> {
    let containers = template.get("spec")?["containers"].as_array()?;
    let main = containers.iter().find(|container| container["name"] == "main")?;
    let lists = [&main["command"], &main["args"]].into_iter().filter_map(Value::as_array);
    let words = lists.flatten().filter_map(Value::as_str).flat_map(str::split_whitespace);
    let words: Vec<_> = words.collect();
    let value = |flag: &&str| {
        words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
            Some((name, value)) => (name == *flag).then_some(value),
            None => (word == flag).then(|| words.get(at + 1).copied())?,
        })
    };
    MODEL_FLAGS.iter().find_map(value).map(str::to_owned)
}
