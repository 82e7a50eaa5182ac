//! The graph of a request: the best layout, what the request says of its pods, and its overrides.

use super::question::prefers_room;
use crate::convert::{FormVersion, convert};
use crate::kinds::{ALPHA, BETA};
use serde_json::{Map, Value, json};
use stator_plan::{FoundPlans, GraphChoices, PlanRequest, ReplayedPlan, graph};

/// Folder that a claim with models is mounted at by default.
const MODEL_MOUNT: &str = "/opt/model-cache";
/// Volume of that claim.
const MODEL_VOLUME: &str = "model-cache";
/// Label of a graph with the name of its request.
pub(crate) const REQUEST_LABEL: &str = "dgdr.nvidia.com/name";

/// Name of a request's graph.
pub(crate) fn graph_name(document: &Value) -> String {
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    let said = document["spec"]["overrides"]["dgd"]["metadata"]["name"].as_str();
    said.map_or_else(|| format!("{name}-dgd"), str::to_owned)
}

/// Faults of what a request says about its graph.
pub(crate) fn graph_faults(document: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let spec = &document["spec"];
    let overrides = &spec["overrides"]["dgd"];
    let mut one_of = |field: &str, known: &[&str]| {
        let value = &overrides[field];
        if !value.is_null() && !known.iter().any(|known| value == known) {
            let known = known.join(", ");
            faults.push(format!("spec.overrides.dgd.{field}: {value} is none of {known}"));
        }
    };
    one_of("apiVersion", &[BETA, ALPHA]);
    one_of("kind", &["DynamoGraphDeployment"]);
    let planner = &spec["features"]["planner"];
    if !planner.is_null() && !planner.is_object() {
        faults.push(format!("spec.features.planner: {planner} is no object, such as {{}}"));
    }
    let cache = &spec["modelCache"];
    if !cache["pvcModelPath"].is_null() && cache["pvcName"].is_null() {
        faults.push("spec.modelCache.pvcName: is missing beside pvcModelPath".to_owned());
    }
    faults
}

/// Parts of a request that have no effect, a line each.
pub(crate) fn without_effect(document: &Value) -> Vec<&'static str> {
    let spec = &document["spec"];
    let mut notes = Vec::new();
    if !spec["overrides"]["profilingJob"].is_null() {
        notes.push("overrides.profilingJob: the operator plans by itself, without a job");
    }
    notes
}

/// The graph of the best plan.
pub(crate) fn generated(document: &Value, request: &PlanRequest, found: &FoundPlans) -> Value {
    let best = best(document, request, found);
    let engine = best.layout.answering().worker.engine.name();
    let spec = &document["spec"];
    let choices = GraphChoices {
        name: graph_name(document),
        image: image(spec["image"].as_str(), engine),
        model_folder: model_folder(&spec["modelCache"]),
        is_simulated: spec["features"]["mocker"]["enabled"] == true,
        planner: spec["features"]["planner"].as_object().cloned(),
    };
    let mut graph = graph(request, &best.layout, &choices);
    for component in graph["spec"]["components"].as_array_mut().into_iter().flatten() {
        let version = &spec["runtimeVersionOverride"];
        if version.is_string() {
            component["runtimeVersionOverride"] = version.clone();
        }
        mount_models(&mut component["podTemplate"]["spec"], &spec["modelCache"]);
    }
    merge(&mut graph, overrides(document));
    let metadata = &document["metadata"];
    graph["metadata"]["namespace"] = metadata["namespace"].clone();
    for (label, value) in [
        (REQUEST_LABEL, metadata["name"].clone()),
        ("dgdr.nvidia.com/namespace", metadata["namespace"].clone()),
        ("nvidia.com/managed-by", json!("dynamo-operator")),
    ] {
        graph["metadata"]["labels"][label] = value;
    }
    graph
}

/// The plan that the request asks for: with the fewest GPUs, or with the most room.
fn best<'a>(document: &Value, request: &PlanRequest, found: &'a FoundPlans) -> &'a ReplayedPlan {
    let used = |plan: &&ReplayedPlan| plan.used_share(&request.targets);
    let most_room = found.plans.iter().min_by(|a, b| used(a).total_cmp(&used(b)));
    match most_room.filter(|_| prefers_room(document)) {
        Some(plan) => plan,
        None => &found.plans[0],
    }
}

/// Image of a graph's containers. A request names the image of its planner: that of the engine has
/// the same registry and tag. Without one, `--images` of the operator says what stands for the name.
fn image(said: Option<&str>, engine: &str) -> String {
    let runtime = format!("{engine}-runtime");
    let Some(said) = said.filter(|said| !said.is_empty()) else { return runtime };
    let (path, name) = said.rsplit_once('/').map_or(("", said), |(path, name)| (path, name));
    let end = name.find([':', '@']).unwrap_or(name.len());
    let is_planner =
        ["planner", "profiler", "frontend"].iter().any(|word| name[..end].contains(word));
    match (is_planner, path) {
        (false, _) => said.to_owned(),
        (true, "") => runtime + &name[end..],
        (true, path) => format!("{path}/{runtime}{}", &name[end..]),
    }
}

/// Folder of the model within the claim, as containers see it.
fn model_folder(cache: &Value) -> Option<String> {
    let path = cache["pvcModelPath"].as_str()?;
    let mount = cache["pvcMountPath"].as_str().unwrap_or(MODEL_MOUNT).trim_end_matches('/');
    match path.starts_with(&format!("{mount}/")) {
        true => Some(path.to_owned()),
        false => Some(format!("{mount}/{}", path.trim_start_matches('/'))),
    }
}

fn mount_models(pod: &mut Value, cache: &Value) {
    let Some(claim) = cache["pvcName"].as_str() else { return };
    let mount = cache["pvcMountPath"].as_str().unwrap_or(MODEL_MOUNT);
    let claim = json!({ "claimName": claim });
    pod["volumes"] = json!([{ "name": MODEL_VOLUME, "persistentVolumeClaim": claim }]);
    pod["containers"][0]["volumeMounts"] = json!([{ "name": MODEL_VOLUME, "mountPath": mount }]);
}

/// The overrides of a request, as `v1beta1`.
fn overrides(document: &Value) -> Value {
    let said = &document["spec"]["overrides"]["dgd"];
    if said["apiVersion"] == ALPHA { convert(said, FormVersion::Beta) } else { said.clone() }
}

/// Merges `over` into `value`: objects field by field, lists of named objects by name, all else as
/// a whole. A field that is null goes.
fn merge(value: &mut Value, over: Value) {
    match (value, over) {
        (Value::Object(fields), Value::Object(over)) => merge_fields(fields, over),
        (Value::Array(all), Value::Array(over)) if over.iter().all(is_named) => {
            for one in over {
                match all.iter_mut().find(|of| of["name"] == one["name"]) {
                    Some(known) => merge(known, one),
                    None => all.push(one),
                }
            }
        }
        (_, Value::Null) => {}
        (value, over) => *value = over,
    }
}

fn merge_fields(fields: &mut Map<String, Value>, over: Map<String, Value>) {
    for (name, value) in over {
        if value.is_null() {
            fields.remove(&name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), value);
        }
    }
}

fn is_named(value: &Value) -> bool {
    value["name"].is_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_merged_by_name() {
        let mut graph = json!({ "spec": { "components": [
            { "name": "Frontend", "replicas": 1 },
            { "name": "decode", "args": ["--a", "1"], "multinode": { "nodeCount": 4 } },
        ] } });
        merge(
            &mut graph,
            json!({ "spec": { "components": [
                { "name": "decode", "args": ["--b"], "multinode": null },
                { "name": "Frontend", "env": [{ "name": "A", "value": "1" }] },
                { "name": "extra" },
            ] } }),
        );
        assert_eq!(
            graph["spec"]["components"],
            json!([
                { "name": "Frontend", "replicas": 1, "env": [{ "name": "A", "value": "1" }] },
                { "name": "decode", "args": ["--b"] },
                { "name": "extra" },
            ])
        );
    }

    #[test]
    fn the_image_of_a_planner_leads_to_that_of_the_engine() {
        for (said, image_of) in [
            (None, "vllm-runtime"),
            (Some("a.example/b/dynamo-planner:1.4.0"), "a.example/b/vllm-runtime:1.4.0"),
            (Some("profiler@sha256:12"), "vllm-runtime@sha256:12"),
            (Some("a.example:5000/mine:2"), "a.example:5000/mine:2"),
        ] {
            assert_eq!(image(said, "vllm"), image_of, "{said:?}");
        }
    }

    #[test]
    fn models_of_a_claim_are_found_where_it_is_mounted() {
        let of = |path: &str| model_folder(&json!({ "pvcModelPath": path }));
        assert_eq!(of("models/a"), Some("/opt/model-cache/models/a".to_owned()));
        assert_eq!(of("/opt/model-cache/models/a"), of("models/a"));
        assert_eq!(model_folder(&Value::Null), None);
    }
}
