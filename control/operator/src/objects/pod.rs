//! The pod template of a component: the manifest's, with what the operator fills in.

use super::instance::{Instance, PLANNER, is_worker};
use super::nearness::NEARNESS;
use super::{hex, label, strings};
use crate::kinds::beta::ComponentType;
use crate::kinds::common::Framework;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Parts that the operator fills in, by the type of a component.
static DEFAULTS: LazyLock<BTreeMap<String, TypeDefaults>> = LazyLock::new(|| {
    serde_yaml_ng::from_str(include_str!("defaults.yaml")).expect("a test reads the file")
});

/// Parts that the operator fills in.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TypeDefaults {
    /// Seconds that pods have to end.
    grace: u32,
    /// Port of the component's Service.
    pub(super) service: Value,
    /// ServiceAccount that the chart makes.
    account: Option<String>,
    env: BTreeMap<String, String>,
    container: Map<String, Value>,
}

/// Size of `/dev/shm`.
const SHARED_MEMORY: &str = "8Gi";
/// Folder where vLLM keeps what it has compiled.
const VLLM_CACHE: &str = "/root/.cache/vllm";
/// Fields of the pod that every main container has in its environment.
const POD_FIELDS: [(&str, &str); 3] = [
    ("POD_NAME", "metadata.name"),
    ("POD_NAMESPACE", "metadata.namespace"),
    ("POD_UID", "metadata.uid"),
];

/// The parts for a component's type.
pub(super) fn defaults(kind: Option<ComponentType>) -> &'static TypeDefaults {
    &DEFAULTS[match kind {
        None => "plain",
        Some(kind) if is_worker(Some(kind)) => "worker",
        Some(kind) => super::instance::type_name(kind),
    }]
}

/// The template of the component's pods.
pub(super) fn template(of: &Instance) -> Value {
    let said = of.shape.pod_template.clone().map(|said| said.0).unwrap_or_default();
    let fields = |name: &str| said.get(name).and_then(Value::as_object).cloned();
    let mut spec = fields("spec").unwrap_or_default();
    let mut template =
        json!({ "metadata": pod_metadata(of, fields("metadata").unwrap_or_default()) });
    let defaults = defaults(of.shape.r#type);
    fill_pod(&mut spec, of, defaults);
    let mut containers = match spec.remove("containers") {
        Some(Value::Array(containers)) => containers,
        _ => Vec::new(),
    };
    if !containers.iter().any(|container| container["name"] == "main") {
        containers.insert(0, json!({ "name": "main" }));
    }
    let mut mounts = Vec::new();
    for container in containers.iter_mut().filter(|container| container["name"] == "main") {
        *container = main_container(container, of, defaults);
        mount(container, &mut spec, of);
        mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
    }
    let door = of.shape.frontend_sidecar.as_deref();
    for container in containers.iter_mut().filter(|container| container["name"].as_str() == door) {
        let frontend = self::defaults(Some(ComponentType::Frontend));
        *container = main_container(container, of, frontend);
        extend(container, "volumeMounts", mounts.clone());
    }
    claim_missing_volumes(&mut spec, &containers);
    spec.insert("containers".to_owned(), containers.into());
    template["spec"] = spec.into();
    template
}

fn pod_metadata(of: &Instance, mut metadata: Map<String, Value>) -> Map<String, Value> {
    let said = Value::Object(metadata.clone());
    let mut names = strings(&said, "labels");
    names.extend(labels(of));
    metadata.insert("labels".to_owned(), names.into());
    let mut annotations = strings(&said, "annotations");
    // These say how the component was made, not how its pods are.
    let own = [label("dynamo-operator-origin-version"), PLANNER.to_owned(), NEARNESS.to_owned()];
    annotations.retain(|name, _| !own.contains(name));
    let model = of.shape.model_ref.as_ref();
    annotations.extend(model.map(|model| (label("dynamo-base-model"), json!(model.name))));
    metadata.remove("annotations");
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
    metadata
}

/// Labels that the operator gives the pods; they win over a manifest's.
pub(super) fn labels(of: &Instance) -> Map<String, Value> {
    let text = |value: &str| Some(value.to_owned());
    let kind = Some(of.type_name()).filter(|kind| !kind.is_empty()).map(str::to_owned);
    let half = kind.clone().filter(|kind| ["prefill", "decode"].contains(&kind.as_str()));
    let annotations = of.shape.pod_template.as_ref().and_then(|said| said.0.get("metadata"));
    let annotations = annotations.map(|metadata| strings(metadata, "annotations"));
    let is_measured =
        annotations.is_none_or(|all| all.get(&label("enable-metrics")) != Some(&json!("false")));
    let model = of.shape.model_ref.as_ref().map(|model| model_hash(&model.name));
    let all = [
        ("selector", text(&of.name)),
        ("dynamo-component", text(&of.component)),
        ("dynamo-component-type", kind),
        ("dynamo-sub-component-type", half),
        ("dynamo-namespace", text(&of.graph_label)),
        ("dynamo-graph-deployment-name", of.is_of_graph.then(|| of.graph.clone())),
        ("dynamo-worker-hash", of.hash.clone()),
        ("dynamo-component-class", of.is_behind_picker.then(|| "worker".to_owned())),
        ("dynamo-discovery-backend", text("kubernetes")),
        ("dynamo-discovery-enabled", text("true")),
        ("metrics-enabled", is_measured.then(|| "true".to_owned())),
        ("dynamo-base-model-hash", model),
    ];
    all.into_iter().filter_map(|(name, value)| Some((label(name), value?.into()))).collect()
}

/// First 8 hexadecimal digits of the SHA-256 of a model's name.
pub(crate) fn model_hash(model: &str) -> String {
    hex(model.as_bytes(), 8)
}

fn fill_pod(spec: &mut Map<String, Value>, of: &Instance, defaults: &TypeDefaults) {
    let account = format!("{}-k8s-service-discovery", of.graph);
    let account = defaults.account.clone().filter(|_| of.is_of_graph).unwrap_or(account);
    let filled = [
        ("restartPolicy", json!("Always")),
        ("serviceAccountName", json!(account)),
        ("terminationGracePeriodSeconds", json!(defaults.grace)),
        ("securityContext", json!({ "fsGroup": 1000 })),
    ];
    for (name, value) in filled {
        spec.entry(name).or_insert(value);
    }
}

/// A container with the parts that the operator fills in.
fn main_container(said: &Value, of: &Instance, defaults: &TypeDefaults) -> Value {
    let said = said.as_object().cloned().unwrap_or_default();
    let mut container = fill_words(&defaults.container, of);
    // A command of the manifest's own has no use for the default's arguments.
    if said.contains_key("command") {
        container.remove("args");
    }
    let empty = |value: &Value| {
        value.as_array().is_some_and(Vec::is_empty) || value.as_str() == Some("") || value.is_null()
    };
    let mut env = environment(of, defaults);
    for variable in said.get("env").and_then(Value::as_array).into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        env.insert(name.to_owned(), variable.clone());
    }
    container.extend(said.into_iter().filter(|(_, value)| !empty(value)));
    container.insert("env".to_owned(), env.into_values().collect());
    container.entry("resources").or_insert(json!({}));
    container.into()
}

/// The defaults with the component's own words.
fn fill_words(container: &Map<String, Value>, of: &Instance) -> Map<String, Value> {
    let mut container = container.clone();
    if let Some(Value::Array(args)) = container.get_mut("args") {
        for arg in args {
            *arg = fill(arg.as_str().unwrap_or_default(), of).into();
        }
    }
    container
}

/// The environment that the operator gives, by name.
fn environment(of: &Instance, defaults: &TypeDefaults) -> BTreeMap<String, Value> {
    let variables = DEFAULTS["all"].env.iter().chain(&defaults.env);
    let variable =
        |name: &str, value: String| (name.to_owned(), json!({ "name": name, "value": value }));
    let mut env: BTreeMap<_, _> =
        variables.map(|(name, value)| variable(name, fill(value, of))).collect();
    if let Some(hash) = &of.hash {
        env.extend([variable("DYN_NAMESPACE_WORKER_SUFFIX", hash.clone())]);
    }
    env.extend(POD_FIELDS.map(|(name, path)| {
        let field = json!({ "fieldRef": { "fieldPath": path } });
        (name.to_owned(), json!({ "name": name, "valueFrom": field }))
    }));
    env
}

fn fill(text: &str, of: &Instance) -> String {
    let kind = of.type_name();
    let part = if kind.is_empty() { of.component.as_str() } else { kind };
    let words = [
        ("$namespace", of.graph_label.as_str()),
        ("$graph", &of.graph),
        ("$place", &of.namespace),
        ("$part", part),
    ];
    words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
}

/// Mounts shared memory, the compilation cache and the picker's files.
fn mount(container: &mut Value, spec: &mut Map<String, Value>, of: &Instance) {
    let mut wanted = Vec::new();
    let size =
        of.shape.shared_memory_size.as_ref().map_or(json!(SHARED_MEMORY), |size| size.0.clone());
    if size != 0 && size != "0" {
        let memory = json!({ "emptyDir": { "medium": "Memory", "sizeLimit": size } });
        wanted.push(("shared-memory", "/dev/shm".to_owned(), memory));
    }
    if let Some(cache) = &of.shape.compilation_cache {
        let is_vllm = of.framework == Some(Framework::Vllm);
        let path = cache.mount_path.clone().or_else(|| is_vllm.then(|| VLLM_CACHE.to_owned()));
        let claim = json!({ "persistentVolumeClaim": { "claimName": cache.pvc_name } });
        if let Some(path) = path {
            if is_vllm {
                extend(container, "env", vec![json!({ "name": "VLLM_CACHE_ROOT", "value": path })]);
            }
            wanted.push((cache.pvc_name.as_str(), path, claim));
        }
    }
    if of.shape.r#type == Some(ComponentType::Epp) {
        wanted.push(("epp-config", "/etc/epp".to_owned(), picker_volume(of)));
        wanted.push(("hf-cache", "/home/nonroot/.cache".to_owned(), json!({ "emptyDir": {} })));
    }
    for (name, path, mut volume) in wanted {
        volume["name"] = name.into();
        let volumes = spec.entry("volumes").or_insert(json!([]));
        add_named(volumes, volume, "name");
        let mounts = &mut container["volumeMounts"];
        if mounts.is_null() {
            *mounts = json!([]);
        }
        add_named(mounts, json!({ "name": name, "mountPath": path }), "mountPath");
    }
}

fn picker_volume(of: &Instance) -> Value {
    let said = of.shape.epp_config.as_ref().and_then(|config| config.config_map_ref.as_ref());
    let own = (format!("{}-epp-config", of.graph), super::shared::PICKER_FILE.to_owned());
    let (name, key) =
        said.map_or(own, |said| (said.name.clone().unwrap_or_default(), said.key.clone()));
    let items = json!([{ "key": key, "path": super::shared::PICKER_FILE }]);
    json!({ "configMap": { "name": name, "items": items } })
}

/// Appends to a list unless the list has an item like it.
fn add_named(list: &mut Value, item: Value, by: &str) {
    if let Some(list) = list.as_array_mut()
        && !list.iter().any(|known| known[by] == item[by])
    {
        list.push(item);
    }
}

fn extend(container: &mut Value, list: &str, items: Vec<Value>) {
    let by = if list == "env" { "name" } else { "mountPath" };
    if container[list].is_null() {
        container[list] = json!([]);
    }
    for item in items {
        add_named(&mut container[list], item, by);
    }
}

/// Adds a claim for every mount that has no volume.
fn claim_missing_volumes(spec: &mut Map<String, Value>, containers: &[Value]) {
    let mounts = containers.iter().filter_map(|container| container["volumeMounts"].as_array());
    let names: Vec<_> = mounts.flatten().map(|mount| mount["name"].clone()).collect();
    if names.is_empty() {
        return;
    }
    let volumes = spec.entry("volumes").or_insert(json!([]));
    for name in names {
        let claim = json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
        add_named(volumes, claim, "name");
    }
}
