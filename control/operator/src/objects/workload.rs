//! A component's workload and Services.

use super::instance::Instance;
use super::multinode::node_templates;
use super::nodes;
use super::pod::{defaults, labels, template};
use super::provider::NodeSets;
use super::shared::disruption_budget;
use super::{OperatorSettings, WantedObjects, label, nearness, object, strings, unsupported};
use crate::translate::{Note, translate_pod};
use serde_json::{Value, json};

/// The objects of a component by itself or of a graph, its workloads first.
///
/// # Errors
///
/// The name that is wrong.
pub(crate) fn objects(
    of: &Instance,
    settings: &OperatorSettings,
    sets: NodeSets,
) -> Result<WantedObjects, String> {
    let (template, mut notes) = pods(of, settings);
    let mut objects = match (of.is_multinode(), sets) {
        (false, _) => vec![deployment(of, template)],
        (true, NodeSets::Stateful(version)) => nodes::objects(of, &template, version, &mut notes)?,
        (true, _) => vec![leader_worker_set(of, &template, &mut notes)],
    };
    objects.extend(services(of));
    // Copies of a graph's component have one budget, whatever their generation.
    if !of.is_of_graph
        && let Some(mut budget) = disruption_budget(&of.namespace, &of.name, &of.shape)
    {
        budget["spec"]["selector"] = json!({ "matchLabels": { label("selector"): of.name } });
        objects.push(budget);
    }
    Ok(WantedObjects { objects, notes })
}

/// The template of a component's pods as they run, and what of the component has no effect.
pub(super) fn pods(of: &Instance, settings: &OperatorSettings) -> (Value, Vec<Note>) {
    let mut template = template(of);
    add_pull_secrets(&mut template, &settings.pull_secrets);
    let mut notes = unsupported::of_component(of);
    if settings.translates {
        let (translated, lost) = translate_pod(&template, &of.surroundings(settings));
        template = translated;
        notes.extend(lost);
        nearness::keep(of, &mut template);
    }
    (template, notes)
}

/// The Services of a component.
pub(super) fn services(of: &Instance) -> Vec<Value> {
    [service(of)].into_iter().chain(model_service(of)).collect()
}

/// Annotation of pods that get no secrets for registries.
const WITHOUT_SECRETS: &str = "disable-image-pull-secret-discovery";

fn add_pull_secrets(template: &mut Value, names: &[String]) {
    let annotations = strings(&template["metadata"], "annotations");
    if names.is_empty() || annotations.get(&label(WITHOUT_SECRETS)) == Some(&json!("true")) {
        return;
    }
    let mut secrets = template["spec"]["imagePullSecrets"].as_array().cloned().unwrap_or_default();
    for name in names {
        let secret = json!({ "name": name });
        if !secrets.contains(&secret) {
            secrets.push(secret);
        }
    }
    template["spec"]["imagePullSecrets"] = secrets.into();
}

fn deployment(of: &Instance, template: Value) -> Value {
    let mut deployment = object("apps/v1", "Deployment", &of.namespace, &of.name);
    let annotations = strings(&template["metadata"], "annotations");
    let said = |name: &str| annotations.get(&label(name)).and_then(Value::as_str);
    let share = |name: &str| said(name).unwrap_or("25%").to_owned();
    let strategy = match said("deployment-strategy") {
        Some("Recreate") => json!({ "type": "Recreate" }),
        _ => json!({
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": amount(&share("deployment-rolling-update-max-surge")),
                "maxUnavailable": amount(&share("deployment-rolling-update-max-unavailable")),
            },
        }),
    };
    let own = labels(of);
    deployment["metadata"]["labels"] = own.into();
    deployment["spec"] = json!({
        "replicas": of.shape.replicas.unwrap_or(1),
        "selector": { "matchLabels": { label("selector"): of.name } },
        "strategy": strategy,
        "template": template,
    });
    deployment
}

/// A number or a share, as the API has them.
fn amount(text: &str) -> Value {
    text.parse::<u32>().map_or_else(|_| json!(text), |number| json!(number))
}

fn leader_worker_set(of: &Instance, template: &Value, notes: &mut Vec<Note>) -> Value {
    let name = set_name(of);
    let mut set = object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", &of.namespace, &name);
    let mut template = template.clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove(&label("selector"));
    }
    let [leader, worker] = node_templates(of, &template, NodeSets::LeaderWorker, notes);
    set["spec"] = json!({
        "replicas": of.shape.replicas.unwrap_or(1),
        "startupPolicy": "LeaderCreated",
        "leaderWorkerTemplate": {
            "size": of.nodes(),
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": leader,
            "workerTemplate": worker,
        },
    });
    set
}

/// Name of a component's LeaderWorkerSet.
pub(crate) fn set_name(of: &Instance) -> String {
    format!("{}-0", of.name)
}

fn service(of: &Instance) -> Value {
    let mut service = object("v1", "Service", &of.namespace, &of.name.replace('.', "-"));
    let mut port = defaults(of.shape.r#type).service.clone();
    port["targetPort"] = port["name"].clone();
    port["protocol"] = "TCP".into();
    let own = labels(of);
    let chosen = ["dynamo-component", "dynamo-component-type", "dynamo-namespace"];
    let mut selector = json!({});
    for name in chosen.map(label) {
        if let Some(value) = own.get(&name) {
            selector[name] = value.clone();
        }
    }
    if of.is_multinode() {
        selector["role"] = "leader".into();
    }
    service["metadata"]["labels"] = json!({
        label("dynamo-discovery-backend"): "kubernetes",
        label("dynamo-discovery-enabled"): "true",
    });
    service["spec"] = json!({ "type": "ClusterIP", "ports": [port], "selector": selector });
    service
}

/// The Service of all workers that have a model.
fn model_service(of: &Instance) -> Option<Value> {
    let model = of.shape.model_ref.as_ref()?;
    let hash = super::pod::model_hash(&model.name);
    let mut service = object("v1", "Service", &of.namespace, &format!("dynamo-model-{hash}"));
    let port = json!({ "name": "system", "port": 9090, "targetPort": "system", "protocol": "TCP" });
    service["metadata"]["labels"] = json!({ label("dynamo-base-model-hash"): hash });
    service["spec"] = json!({
        "clusterIP": "None",
        "ports": [port],
        "selector": { label("dynamo-base-model-hash"): hash },
    });
    Some(service)
}
