//! Services of `v1alpha1` as components of `v1beta1`, and back, as far as the other can say them.

use serde_json::{Map, Value, json};

/// Map<String, Value> that both versions have under one name.
const SAME: [&str; 9] = [
    "backendFramework",
    "eppConfig",
    "globalDynamoNamespace",
    "minAvailable",
    "modelRef",
    "multinode",
    "providerOverride",
    "replicas",
    "runtimeVersionOverride",
];
/// Settings of `experimental` that `v1alpha1` has beside the others, with a switch.
const EXPERIMENTS: [&str; 3] = ["checkpoint", "failover", "gpuMemoryService"];
/// Name that a service's sidecar gets.
const SIDECAR: &str = "sidecar-frontend";
/// Types of components that need no second word.
const TYPES: [&str; 6] = ["frontend", "worker", "prefill", "decode", "planner", "epp"];

/// A component without its name.
pub(super) fn service_to_component(service: &Map<String, Value>) -> Map<String, Value> {
    let mut component = fields(service, &SAME);
    copy(service, "topologyConstraint", &mut component);
    let text = |name: &str| service.get(name).and_then(Value::as_str).unwrap_or_default();
    let part = match (text("componentType"), text("subComponentType")) {
        ("worker", part @ ("prefill" | "decode")) => part,
        (part, _) => part,
    };
    if TYPES.contains(&part) {
        component.insert("type".to_owned(), part.into());
    }
    if let Some(memory) = service.get("sharedMemory") {
        let size = if memory["disabled"] == true { json!("0") } else { memory["size"].clone() };
        if !size.is_null() {
            component.insert("sharedMemorySize".to_owned(), size);
        }
    }
    if service.get("scalingAdapter").is_some_and(|adapter| adapter["enabled"] == true) {
        component.insert("scalingAdapter".to_owned(), json!({}));
    }
    let experiments: Map<String, Value> =
        EXPERIMENTS.iter().filter_map(|name| experiment(service, name)).collect();
    if !experiments.is_empty() {
        component.insert("experimental".to_owned(), experiments.into());
    }
    let template = pod_template(service);
    if !template.is_empty() {
        component.insert("podTemplate".to_owned(), template.into());
    }
    let mounts = service.get("volumeMounts").and_then(Value::as_array);
    let cache = mounts.and_then(|all| all.iter().find(|one| one["useAsCompilationCache"] == true));
    if let Some(cache) = cache {
        let mut claim = json!({ "pvcName": cache["name"] });
        if let Some(path) = cache.get("mountPoint") {
            claim["mountPath"] = path.clone();
        }
        component.insert("compilationCache".to_owned(), claim);
    }
    if service.contains_key("frontendSidecar") {
        component.insert("frontendSidecar".to_owned(), SIDECAR.into());
    }
    component
}

/// A service. All of a container stands in `mainContainer`.
pub(super) fn component_to_service(component: &Map<String, Value>) -> Map<String, Value> {
    let mut service = fields(component, &SAME);
    copy(component, "topologyConstraint", &mut service);
    match component.get("type").and_then(Value::as_str) {
        Some(part @ ("prefill" | "decode")) => {
            service.insert("componentType".to_owned(), "worker".into());
            service.insert("subComponentType".to_owned(), part.into());
        }
        Some(part) => drop(service.insert("componentType".to_owned(), part.into())),
        None => {}
    }
    if let Some(size) = component.get("sharedMemorySize") {
        let is_none = *size == 0 || *size == "0";
        let memory = if is_none { json!({ "disabled": true }) } else { json!({ "size": size }) };
        service.insert("sharedMemory".to_owned(), memory);
    }
    if component.contains_key("scalingAdapter") {
        service.insert("scalingAdapter".to_owned(), json!({ "enabled": true }));
    }
    for name in EXPERIMENTS {
        let settings = component.get("experimental").and_then(|all| all.get(name));
        if let Some(settings) = settings.and_then(Value::as_object) {
            let mut settings = settings.clone();
            settings.entry("enabled").or_insert(true.into());
            turn_mode(&mut settings, str::to_ascii_lowercase);
            service.insert(name.to_owned(), settings.into());
        }
    }
    if let Some(template) = component.get("podTemplate").and_then(Value::as_object) {
        if let Some(metadata) = template.get("metadata") {
            service.insert("extraPodMetadata".to_owned(), metadata.clone());
        }
        if let Some(spec) = template.get("spec").and_then(Value::as_object) {
            service.insert("extraPodSpec".to_owned(), extra_pod_spec(spec).into());
        }
    }
    service
}

fn fields(from: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let mut to = Map::new();
    names.iter().for_each(|name| copy(from, name, &mut to));
    to
}

fn copy(from: &Map<String, Value>, name: &str, to: &mut Map<String, Value>) {
    if let Some(value) = from.get(name) {
        to.insert(name.to_owned(), value.clone());
    }
}

fn experiment(service: &Map<String, Value>, name: &str) -> Option<(String, Value)> {
    let mut settings = service.get(name)?.as_object()?.clone();
    // A checkpoint keeps its switch; the others are there or are not.
    if name != "checkpoint" && settings.remove("enabled") != Some(Value::Bool(true)) {
        return None;
    }
    turn_mode(&mut settings, str::to_ascii_uppercase);
    Some((name.to_owned(), settings.into()))
}

/// Changes the first letter of the mode.
fn turn_mode(settings: &mut Map<String, Value>, turn: fn(&str) -> String) {
    if let Some(Value::String(mode)) = settings.get_mut("mode")
        && let Some(first) = mode.get(..1)
        && mode.ends_with("Pod")
    {
        let first = turn(first);
        mode.replace_range(..1, &first);
    }
}

fn pod_template(service: &Map<String, Value>) -> Map<String, Value> {
    let mut metadata = Map::new();
    for name in ["annotations", "labels"] {
        let extra = service.get("extraPodMetadata").and_then(|extra| extra.get(name));
        let all = [service.get(name), extra].into_iter().flatten().filter_map(Value::as_object);
        let all: Map<String, Value> =
            all.flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
        if !all.is_empty() {
            metadata.insert(name.to_owned(), all.into());
        }
    }
    let extra = service.get("extraPodSpec").and_then(Value::as_object).cloned();
    let mut spec = extra.unwrap_or_default();
    let main = main_container(service, spec.remove("mainContainer"));
    let sidecar = service.get("frontendSidecar").map(sidecar_container);
    let others = match spec.remove("containers") {
        Some(Value::Array(others)) => others,
        _ => Vec::new(),
    };
    let containers: Vec<_> = main.into_iter().chain(others).chain(sidecar).collect();
    if !containers.is_empty() {
        spec.insert("containers".to_owned(), containers.into());
    }
    let mut template = Map::new();
    for (name, part) in [("metadata", metadata), ("spec", spec)] {
        if !part.is_empty() {
            template.insert(name.to_owned(), part.into());
        }
    }
    template
}

/// The container `main`, from the service's own fields and from what is said of it in the pod.
fn main_container(service: &Map<String, Value>, said: Option<Value>) -> Option<Value> {
    let mut main = match said {
        Some(Value::Object(said)) => said,
        _ => Map::new(),
    };
    for name in ["livenessProbe", "readinessProbe"] {
        copy(service, name, &mut main);
    }
    append(&mut main, "env", service.get("envs"));
    let secret =
        service.get("envFromSecret").map(|name| json!([{ "secretRef": { "name": name } }]));
    append(&mut main, "envFrom", secret.as_ref());
    if let Some(resources) = service.get("resources") {
        main.insert("resources".to_owned(), container_resources(resources));
    }
    let mounts = service.get("volumeMounts").and_then(Value::as_array).into_iter().flatten();
    let mounts = mounts.filter(|mount| mount["useAsCompilationCache"] != true);
    let mounts: Vec<_> = mounts
        .map(|mount| json!({ "name": mount["name"], "mountPath": mount["mountPoint"] }))
        .collect();
    append(&mut main, "volumeMounts", Some(&mounts.into()));
    if main.is_empty() {
        return None;
    }
    main.insert("name".to_owned(), "main".into());
    Some(main.into())
}

/// Appends a list to a container's list; one without items adds nothing.
fn append(container: &mut Map<String, Value>, name: &str, more: Option<&Value>) {
    let more = more.and_then(Value::as_array).filter(|more| !more.is_empty());
    let Some(more) = more else { return };
    let all = container.entry(name).or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.extend(more.iter().cloned());
    }
}

fn sidecar_container(sidecar: &Value) -> Value {
    let mut container = Map::new();
    container.insert("name".to_owned(), SIDECAR.into());
    for (from, to) in [("image", "image"), ("args", "args"), ("envs", "env")] {
        if let Some(value) = sidecar.get(from) {
            container.insert(to.to_owned(), value.clone());
        }
    }
    let secret = sidecar.get("envFromSecret");
    let secret = secret.map(|name| json!([{ "secretRef": { "name": name } }]));
    append(&mut container, "envFrom", secret.as_ref());
    container.into()
}

/// Resources with the names that containers have: `gpu` is that of a device plug-in, and `custom`
/// has names of its own.
fn container_resources(resources: &Value) -> Value {
    let mut container = Map::new();
    for bound in ["limits", "requests"] {
        let Some(said) = resources.get(bound).and_then(Value::as_object) else { continue };
        let gpu = said.get("gpuType").and_then(Value::as_str).filter(|name| !name.is_empty());
        let gpu = gpu.unwrap_or("nvidia.com/gpu");
        let mut amounts = fields(said, &["cpu", "memory"]);
        amounts.extend(said.get("gpu").map(|count| (gpu.to_owned(), count.clone())));
        let custom = said.get("custom").and_then(Value::as_object);
        amounts.extend(custom.cloned().unwrap_or_default());
        container.insert(bound.to_owned(), amounts.into());
    }
    if let Some(claims) = resources.get("claims") {
        container.insert("claims".to_owned(), claims.clone());
    }
    container.into()
}

fn extra_pod_spec(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut extra = spec.clone();
    let Some(Value::Array(containers)) = extra.remove("containers") else { return extra };
    let (main, others): (Vec<_>, Vec<_>) =
        containers.into_iter().partition(|container| container["name"] == "main");
    extra.extend(main.into_iter().next().map(|main| ("mainContainer".to_owned(), main)));
    if !others.is_empty() {
        extra.insert("containers".to_owned(), others.into());
    }
    extra
}
