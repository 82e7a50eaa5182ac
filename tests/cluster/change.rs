//! Changes of a graph that is under load: nobody who asks notices.

use crate::bed::{GraphBed, documents};
use crate::load::Load;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use stator_tests::kube_objects::reference;
use stator_tests::nodes::PodCluster;
use stator_tests::soon;

/// Clients that ask at once.
const CLIENTS: usize = 6;
/// Service of the frontends.
const FRONTEND: &str = "simulated-frontend";

/// Two frontends, a prefill worker and a few decode workers, in the time that a GPU takes.
fn graph(decode: usize) -> Value {
    let mut graph =
        documents(include_str!("../../manifests/operator/graphs/simulated.yaml")).remove(0);
    let components = graph["spec"]["components"].as_array_mut().unwrap();
    for (component, replicas) in components.iter_mut().zip([2, 2, decode]) {
        component["replicas"] = json!(replicas);
        let main = &mut component["podTemplate"]["spec"]["containers"][0];
        for word in main["args"].as_array_mut().into_iter().flatten() {
            if *word == "--speedup-ratio=10" {
                *word = json!("--speedup-ratio=1");
            }
        }
    }
    graph
}

fn set_image(graph: &mut Value, image: &str) {
    for component in [1, 2] {
        let pod = &mut graph["spec"]["components"][component]["podTemplate"];
        pod["spec"]["containers"][0]["image"] = json!(image);
    }
}

#[tokio::test]
async fn a_new_version_rolls_out_under_load() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let bed = GraphBed::new(cluster).await;
    let mut graph = graph(3);
    bed.run(&graph).await;
    bed.space.endpoints(FRONTEND, 2).await;
    let old = bed.pods("Decode", 3).await;
    let load = Load::start(&bed.space, FRONTEND, "org/model", CLIENTS).await;
    load.goes_on().await;
    set_image(&mut graph, "dynamo:2");
    bed.run(&graph).await;
    let new = bed.pods("Decode", 3).await;
    bed.pods("Prefill", 2).await;
    assert!(new.iter().all(|pod| !old.contains(pod)), "{old:?} {new:?}");
    load.goes_on().await;
    load.finish().await;
}

#[tokio::test]
async fn workers_are_taken_away_under_load() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let bed = GraphBed::new(cluster).await;
    bed.run(&graph(3)).await;
    bed.space.endpoints(FRONTEND, 2).await;
    let load = Load::start(&bed.space, FRONTEND, "org/model", CLIENTS).await;
    load.goes_on().await;
    bed.run(&graph(1)).await;
    bed.pods("Decode", 1).await;
    load.goes_on().await;
    load.finish().await;
}

#[tokio::test]
async fn a_node_is_drained_under_load() {
    // Others would miss the node.
    let Some(cluster) = PodCluster::start(&["first", "second"]).await else { return };
    let bed = GraphBed::new(&cluster).await;
    bed.run(&graph(2)).await;
    // As a team would have it that wants to be asked before all copies of a component go at once.
    for component in ["Frontend", "Prefill", "Decode"] {
        let name = component.to_lowercase();
        let mut budget = bed.space.object("policy/v1", "PodDisruptionBudget", &name);
        let labels = json!({ "nvidia.com/dynamo-component": component });
        budget["spec"] = json!({ "maxUnavailable": 1, "selector": { "matchLabels": labels } });
        bed.space.namespace.api.apply(&budget).await;
    }
    bed.space.endpoints(FRONTEND, 2).await;
    let load = Load::start(&bed.space, FRONTEND, "org/model", CLIENTS).await;
    load.goes_on().await;
    drain(&bed, "first").await;
    for component in ["Frontend", "Prefill", "Decode"] {
        bed.pods(component, 2).await;
    }
    load.goes_on().await;
    load.finish().await;
}

#[tokio::test]
async fn a_node_is_lost_under_load() {
    let Some(mut cluster) = PodCluster::start(&["first", "second"]).await else { return };
    let bed = GraphBed::new(&cluster).await;
    let mut graph = graph(2);
    for component in graph["spec"]["components"].as_array_mut().unwrap() {
        let spread = json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {
                "matchLabels": { "nvidia.com/dynamo-component": component["name"] },
            },
        }]);
        let is_frontend = component["name"] == "Frontend";
        let pod = &mut component["podTemplate"];
        pod["spec"]["topologySpreadConstraints"] = spread;
        // A client whose frontend is gone has to ask again; this is about those behind it.
        if is_frontend {
            pod["spec"] = json!({ "nodeSelector": { "kubernetes.io/hostname": "second" },
                "containers": pod["spec"]["containers"] });
        }
    }
    bed.run(&graph).await;
    bed.space.endpoints(FRONTEND, 2).await;
    let load = Load::start(&bed.space, FRONTEND, "org/model", CLIENTS).await;
    load.goes_on().await;
    let api = bed.space.namespace.api.clone();
    let space = bed.space.namespace.name.clone();
    drop(bed);
    cluster.lose_node("first");
    load.goes_on().await;

    // What was on the node comes up on the other one.
    let space = cluster.space_called(&space);
    for component in ["Prefill", "Decode"] {
        let labels = format!("nvidia.com/dynamo-component={component}");
        let are_there = |pods: &[Value]| {
            let here = pods.iter().filter(|pod| {
                let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
                pod["spec"]["nodeName"] == "second" && conditions.into_iter().any(is_ready)
            });
            here.count() == 2
        };
        space.pods(&labels, "workers on the node that is left", are_there).await;
    }
    let node = api.get(&reference("v1", "Node", "", "first")).await.unwrap();
    let taints = node["spec"]["taints"].as_array().unwrap();
    assert!(taints.iter().any(|taint| taint["key"] == "node.kubernetes.io/unreachable"), "{node}");
    load.goes_on().await;
    load.finish().await;
}

/// Does what `kubectl drain` does.
async fn drain(bed: &GraphBed<'_>, node: &str) {
    let api = &bed.space.namespace.api;
    let node_object = reference("v1", "Node", "", node);
    api.patch(&node_object, &json!({ "spec": { "unschedulable": true } })).await;
    let mut pods = api.watched(&bed.space.object("v1", "Pod", "any"), "").await;
    let budget = bed.space.object("policy/v1", "PodDisruptionBudget", "any");
    let mut budgets = api.watched(&budget, "").await;
    soon("an empty node", async {
        loop {
            let here = pods.objects.iter().filter(|pod| pod["spec"]["nodeName"] == node);
            let here: Vec<_> = here.collect();
            if here.is_empty() {
                return;
            }
            let stays = here.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
            for pod in stays {
                evict(bed, pod["metadata"]["name"].as_str().unwrap()).await;
            }
            // What was refused is allowed once a budget says so.
            tokio::select! {
                is_on = pods.changed() => assert!(is_on),
                is_on = budgets.changed() => assert!(is_on),
            }
        }
    })
    .await;
}

async fn evict(bed: &GraphBed<'_>, pod: &str) {
    let namespace = &bed.space.namespace.name;
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod, "namespace": namespace },
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    let body = eviction.to_string();
    let reply = bed.space.namespace.api.send(Method::POST, &path, "application/json", body).await;
    let is_fine = reply.status.is_success()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::NOT_FOUND].contains(&reply.status);
    assert!(is_fine, "{}: {:?}", reply.status, reply.json());
}
