//! Models and their adapters: which workers should have one, and what a model's status says of it.

use crate::objects::model_hash;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Label of the EndpointSlices of all workers that have a base model.
pub(crate) const BASE_MODEL: &str = "nvidia.com/dynamo-base-model-hash";
/// Name of the port at which workers take adapters, and its number where no slice says one.
const PORT: (&str, u16) = ("system", 9090);
/// Failures that a condition repeats.
const FAILURES_SAID_MAX: usize = 5;

/// Worker that has a model's base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelWorker {
    /// Identity of the pod.
    pub(crate) uid: String,
    pub(crate) pod: String,
    /// Host and port at which the worker takes adapters.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Whether the pod takes requests.
    pub(crate) is_ready: bool,
}

/// Outcome of asking a worker to load an adapter.
pub(crate) type LoadOutcome = Result<(), String>;

/// Whether a model is an adapter that workers load.
pub(crate) fn is_adapter(model: &Value) -> bool {
    model["spec"]["modelType"] == "lora"
}

/// The workers that have a model's base, each pod once, in the order of their names.
pub(crate) fn workers<'a>(
    model: &Value,
    slices: impl IntoIterator<Item = &'a Value>,
) -> Vec<ModelWorker> {
    let base = model["spec"]["baseModelName"].as_str().unwrap_or_default();
    let hash = model_hash(base);
    let slices = slices.into_iter().filter(|slice| slice["metadata"]["labels"][BASE_MODEL] == hash);
    let mut seen = BTreeSet::new();
    let mut all: Vec<_> = slices
        .flat_map(|slice| {
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            endpoints.filter_map(|endpoint| worker(endpoint, port(slice)))
        })
        .filter(|worker| seen.insert(worker.uid.clone()))
        .collect();
    all.sort_by(|a, b| a.pod.cmp(&b.pod));
    all
}

fn port(slice: &Value) -> u16 {
    let ports = slice["ports"].as_array().into_iter().flatten();
    let mut named = ports.filter(|port| port["name"] == PORT.0);
    let number = named.next().and_then(|port| port["port"].as_u64());
    number.and_then(|number| number.try_into().ok()).unwrap_or(PORT.1)
}

fn worker(endpoint: &Value, port: u16) -> Option<ModelWorker> {
    let target = &endpoint["targetRef"];
    if target["kind"] != "Pod" {
        return None;
    }
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(ModelWorker {
        uid: text(&target["uid"])?,
        pod: text(&target["name"])?,
        host: text(&endpoint["addresses"][0])?,
        port,
        // Unknown counts as ready.
        is_ready: endpoint["conditions"]["ready"] != false,
    })
}

/// The status of a model whose workers were asked, with the outcomes by pod identity.
pub(crate) fn status(
    model: &Value,
    workers: &[ModelWorker],
    outcomes: &BTreeMap<String, LoadOutcome>,
) -> Value {
    let has_it = |worker: &ModelWorker| outcomes.get(&worker.uid).is_some_and(Result::is_ok);
    let endpoints = workers.iter().map(|worker| {
        let address = format!("http://{}", authority(worker));
        json!({ "address": address, "podName": worker.pod, "ready": has_it(worker) })
    });
    let endpoints: Vec<_> = endpoints.collect();
    let (total, ready) = (workers.len(), workers.iter().filter(|worker| has_it(worker)).count());
    let found = match total {
        0 => ("False", "NoServicesFound", "no worker has the base model".to_owned()),
        _ => ("True", "ServicesFound", format!("{total} workers have the base model")),
    };
    let (state, reason, message) = match (total, is_adapter(model)) {
        (0, _) => ("False", "NoEndpoints", "no worker has the base model".to_owned()),
        (_, false) => ("True", "EndpointsDiscovered", format!("{total} workers")),
        _ if ready == total => ("True", "AllEndpointsReady", format!("{ready} of {total} workers")),
        _ => ("False", "NotReady", waiting(workers, outcomes, ready)),
    };
    json!({
        "endpoints": endpoints,
        "readyEndpoints": ready,
        "totalEndpoints": total,
        "conditions": [
            { "type": "ServicesFound", "status": found.0, "reason": found.1, "message": found.2 },
            { "type": "EndpointsReady", "status": state, "reason": reason, "message": message },
        ],
    })
}

/// A line on the workers without the adapter.
fn waiting(
    workers: &[ModelWorker],
    outcomes: &BTreeMap<String, LoadOutcome>,
    ready: usize,
) -> String {
    let mut text = format!("{ready} of {} workers", workers.len());
    let without = workers.iter().filter_map(|worker| match outcomes.get(&worker.uid) {
        Some(Ok(())) => None,
        Some(Err(why)) => Some(format!("; {}: {why}", worker.pod)),
        None => Some(format!("; {}: is not ready", worker.pod)),
    });
    text.extend(without.take(FAILURES_SAID_MAX));
    text
}

/// Host and port of a worker as a URL has them.
pub(crate) fn authority(worker: &ModelWorker) -> String {
    let ModelWorker { host, port, .. } = worker;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Path of an adapter at a worker.
pub(crate) fn adapter_path(name: &str) -> String {
    let mut path = "/v1/loras/".to_owned();
    for byte in name.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => path.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => path.push(byte.into()),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(kind: &str) -> Value {
        json!({ "spec": { "modelName": "a", "baseModelName": "m", "modelType": kind } })
    }

    fn endpoint(name: &str, ready: bool) -> Value {
        let target = json!({ "kind": "Pod", "name": name, "uid": name });
        json!({ "addresses": ["10.0.0.1"], "conditions": { "ready": ready }, "targetRef": target })
    }

    fn slice(model: &str, endpoints: &[Value], ports: Value) -> Value {
        let labels = json!({ BASE_MODEL: model_hash(model) });
        json!({ "metadata": { "labels": labels }, "endpoints": endpoints, "ports": ports })
    }

    fn found() -> Vec<ModelWorker> {
        let other = json!({ "addresses": ["10.0.0.9"], "targetRef": { "kind": "Node" } });
        let slices = [
            slice("m", &[endpoint("b", true), other], json!([{ "name": "system", "port": 99 }])),
            slice("m", &[endpoint("a", false), endpoint("b", true)], json!([])),
            slice("n", &[endpoint("c", true)], json!([])),
        ];
        workers(&model("lora"), &slices)
    }

    #[test]
    fn workers_are_the_pods_of_the_base_model() {
        let found = found();
        let names: Vec<_> = found.iter().map(|worker| (&*worker.pod, worker.port)).collect();
        assert_eq!(names, [("a", 9090), ("b", 99)]);
        assert!(!found[0].is_ready && found[1].is_ready);
    }

    fn check(
        kind: &str,
        outcomes: &[(&str, LoadOutcome)],
        ready: i64,
        reason: &str,
        message: &str,
    ) {
        let outcomes: BTreeMap<_, _> =
            outcomes.iter().map(|(uid, outcome)| ((*uid).to_owned(), outcome.clone())).collect();
        let status = status(&model(kind), &found(), &outcomes);
        assert_eq!(
            (&status["totalEndpoints"], &status["readyEndpoints"]),
            (&json!(2), &json!(ready))
        );
        let condition = &status["conditions"][1];
        assert_eq!(
            (&condition["reason"], &condition["message"]),
            (&json!(reason), &json!(message))
        );
    }

    #[test]
    fn a_status_counts_workers_and_says_why_others_lack_the_adapter() {
        check("lora", &[("a", Ok(())), ("b", Ok(()))], 2, "AllEndpointsReady", "2 of 2 workers");
        let refused = Err("status 500".to_owned());
        let message = "0 of 2 workers; a: is not ready; b: status 500";
        check("lora", &[("b", refused)], 0, "NotReady", message);
        check("base", &[], 0, "EndpointsDiscovered", "2 workers");
        let none = status(&model("lora"), &[], &BTreeMap::new());
        assert_eq!(none["conditions"][0]["reason"], "NoServicesFound");
        assert_eq!(none["conditions"][1]["reason"], "NoEndpoints");
    }

    #[test]
    fn names_stand_in_paths_as_they_may() {
        assert_eq!(adapter_path("org/a b?"), "/v1/loras/org/a%20b%3F");
    }
}
