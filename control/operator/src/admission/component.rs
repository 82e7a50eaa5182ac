//! Rules of components, in a graph or by themselves.

use super::faults::Faults;
use crate::objects::graph::framework;
use serde_json::Value;

/// Component before and after a change.
pub(super) struct ComponentChange<'a> {
    /// Path of the component in its document.
    pub(super) path: String,
    pub(super) new: &'a Value,
    /// The component before; `None` of a new one.
    pub(super) old: Option<&'a Value>,
    /// Framework of the graph, null if it says none.
    pub(super) framework: &'a Value,
    /// Whether the change comes from somebody who may scale what an adapter scales.
    pub(super) is_by_scaler: bool,
}

/// Fields that stay as they were created.
const FIXED: [(&str, &str); 5] = [
    ("topologyConstraint", "/topologyConstraint"),
    ("minAvailable", "/minAvailable"),
    ("experimental.gpuMemoryService.mode", "/experimental/gpuMemoryService/mode"),
    ("experimental.failover.mode", "/experimental/failover/mode"),
    ("experimental.grove.forceScalingGroup", "/experimental/grove/forceScalingGroup"),
];
/// Longest name of a component.
const NAME_BYTES_MAX: usize = 63;
/// Suffixes of quantities.
const SUFFIXES: [&str; 16] =
    ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

pub(super) fn check(of: &ComponentChange<'_>, faults: &mut Faults) {
    check_name(of, faults);
    check_numbers(of, faults);
    check_pod(of, faults);
    check_picker(of, faults);
    check_experiments(of, faults);
    let Some(old) = of.old else { return };
    let (absent, new) = (Value::Null, of.new);
    for (name, pointer) in FIXED {
        let find = |component: &Value| component.pointer(pointer).unwrap_or(&absent).clone();
        faults.check_same(of.at(name), &find(old), &find(new));
    }
    let is_same = old["multinode"].is_null() == new["multinode"].is_null();
    faults.check(is_same, of.at("multinode"), "one node or several: that is immutable");
    let is_scaled = !old["scalingAdapter"].is_null() && !new["scalingAdapter"].is_null();
    if is_scaled && !of.is_by_scaler && old["replicas"] != new["replicas"] {
        let message = "the scaling adapter has this number: change the adapter";
        faults.add(of.at("replicas"), message);
    }
}

impl ComponentChange<'_> {
    fn at(&self, field: &str) -> String {
        format!("{}.{field}", self.path)
    }

    fn container(&self, name: &str) -> Option<&Value> {
        let containers = self.new["podTemplate"]["spec"]["containers"].as_array()?;
        containers.iter().find(|container| container["name"] == name)
    }

    fn is_worker(&self) -> bool {
        ["worker", "prefill", "decode"].iter().any(|kind| self.new["type"] == *kind)
    }
}

fn check_name(of: &ComponentChange<'_>, faults: &mut Faults) {
    let Some(name) = of.new["name"].as_str() else { return };
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    let is_name = bytes.len() <= NAME_BYTES_MAX
        && bytes.iter().all(|byte| is_inner(*byte))
        && is_edge(bytes.first())
        && is_edge(bytes.last());
    if !is_name {
        let message = format!(
            "{name:?} is not a name: 1 to {NAME_BYTES_MAX} letters, digits and inner hyphens"
        );
        faults.add(of.at("name"), message);
    }
}

fn check_numbers(of: &ComponentChange<'_>, faults: &mut Faults) {
    let replicas = of.new["replicas"].as_i64();
    if let Some(number) = replicas.filter(|number| *number < 0) {
        faults.add(of.at("replicas"), format!("{number} is below 0"));
    }
    if let Some(least) = of.new["minAvailable"].as_i64() {
        let most = replicas.unwrap_or(1);
        if least < 1 || (most > 0 && least > most) {
            let message = format!("{least} is not between 1 and the replicas, {most}");
            faults.add(of.at("minAvailable"), message);
        }
    }
    if let Some(nodes) = of.new["multinode"]["nodeCount"].as_i64().filter(|nodes| *nodes < 2) {
        faults.add(of.at("multinode.nodeCount"), format!("{nodes} is below 2"));
    }
    let size = &of.new["sharedMemorySize"];
    if !size.is_null() && !is_amount(size) {
        let message = format!("{size} is not an amount of 0 or more, such as 8Gi");
        faults.add(of.at("sharedMemorySize"), message);
    }
    let version = of.new["runtimeVersionOverride"].as_str();
    if let Some(version) = version.filter(|version| !is_version(version)) {
        let message = format!("{version:?} is not three numbers with dots, of 4 digits at most");
        faults.add(of.at("runtimeVersionOverride"), message);
    }
}

fn check_pod(of: &ComponentChange<'_>, faults: &mut Faults) {
    let image = of.container("main").map(|main| &main["image"]);
    let has_image = image.and_then(Value::as_str).is_some_and(|image| !image.is_empty());
    faults.check(has_image, of.at("podTemplate.spec.containers[main].image"), "is missing");
    if let Some(door) = of.new["frontendSidecar"].as_str().filter(|door| !door.is_empty())
        && of.container(door).is_none()
    {
        let message = format!("{door:?} is no container of the podTemplate");
        faults.add(of.at("frontendSidecar"), message);
    }
    let cache = &of.new["compilationCache"];
    if cache.is_null() {
        return;
    }
    faults.check(cache["pvcName"] != "", of.at("compilationCache.pvcName"), "is empty");
    let said = [&of.new["backendFramework"], of.framework].into_iter().find(|of| of.is_string());
    let is_vllm = match said {
        Some(said) => said == "vllm",
        None => {
            framework(of.new).is_some_and(|found| found == crate::kinds::common::Framework::Vllm)
        }
    };
    let has_path = cache["mountPath"].as_str().is_some_and(|path| !path.is_empty());
    let message = "is missing: only vLLM's cache has a place of its own";
    faults.check(is_vllm || has_path, of.at("compilationCache.mountPath"), message);
}

fn check_picker(of: &ComponentChange<'_>, faults: &mut Faults) {
    let (is_picker, config) = (of.new["type"] == "epp", &of.new["eppConfig"]);
    if !is_picker {
        faults.check(config.is_null(), of.at("eppConfig"), "belongs to the type epp");
        return;
    }
    if config.is_null() {
        faults.add(of.at("eppConfig"), "is missing: the picker needs one");
    } else {
        let sources = ["configMapRef", "config"].map(|name| !config[name].is_null());
        let message = "needs exactly one of configMapRef and config";
        faults.check(sources[0] != sources[1], of.at("eppConfig"), message);
    }
    faults.check(of.new["multinode"].is_null(), of.at("multinode"), "a picker runs on one node");
    let replicas = of.new["replicas"].as_i64().unwrap_or(1);
    if replicas != 1 {
        faults.add(of.at("replicas"), format!("{replicas} pickers: a graph has exactly one"));
    }
}

fn check_experiments(of: &ComponentChange<'_>, faults: &mut Faults) {
    let experiments = &of.new["experimental"];
    let (memory, failover) = (&experiments["gpuMemoryService"], &experiments["failover"]);
    let mode = |of: &Value| of["mode"].as_str().unwrap_or("IntraPod").to_owned();
    if !memory.is_null() {
        let path = of.at("experimental.gpuMemoryService");
        faults.check(of.is_worker(), path.clone(), "belongs to workers");
        let resources = of.container("main").map(|main| &main["resources"]);
        let has_gpu = resources.is_some_and(|resources| {
            let count = |bound: &str| &resources[bound]["nvidia.com/gpu"];
            let is_some = |count: &Value| !count.is_null() && *count != 0 && *count != "0";
            ["limits", "requests"].iter().any(|bound| is_some(count(bound)))
                || resources["claims"].as_array().is_some_and(|claims| !claims.is_empty())
        });
        faults.check(has_gpu, path, "needs a GPU of the container main");
    }
    if !failover.is_null() {
        let path = of.at("experimental.failover");
        let is_same = !memory.is_null() && mode(memory) == mode(failover);
        faults.check(is_same, path, "needs a gpuMemoryService of the same mode");
        let shadows = failover["numShadows"].as_i64().unwrap_or(1);
        if shadows != 1 {
            let message = format!("{shadows} shadows: exactly 1 is possible");
            faults.add(of.at("experimental.failover.numShadows"), message);
        }
    }
    let checkpoint = &experiments["checkpoint"];
    let is_reference = checkpoint["checkpointRef"].as_str().is_some_and(|name| !name.is_empty());
    let message = "does not go with a checkpointRef";
    let has_job = !checkpoint["job"].is_null();
    faults.check(!(is_reference && has_job), of.at("experimental.checkpoint.job"), message);
}

/// Whether a value is a quantity of Kubernetes, and not negative.
fn is_amount(value: &Value) -> bool {
    let Some(text) = value.as_str() else {
        return value.as_f64().is_some_and(|number| number >= 0.0);
    };
    let text = text.trim_start_matches('+');
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let is_exponent =
        suffix.strip_prefix(['e', 'E']).is_some_and(|part| part.parse::<i8>().is_ok());
    number.parse::<f64>().is_ok() && (is_exponent || SUFFIXES.contains(&suffix))
}

fn is_version(text: &str) -> bool {
    let parts: Vec<_> = text.split('.').collect();
    let is_number = |part: &&str| {
        (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    parts.len() == 3 && parts.iter().all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_are_those_of_kubernetes() {
        for good in [json!(0), json!(1.5), json!("0"), json!("8Gi"), json!("1e3"), json!("+2k")] {
            assert!(is_amount(&good), "{good}");
        }
        for bad in [json!(-1), json!("-1Gi"), json!(""), json!("Gi"), json!("1.2.3"), json!("1gb")]
        {
            assert!(!is_amount(&bad), "{bad}");
        }
    }
}
