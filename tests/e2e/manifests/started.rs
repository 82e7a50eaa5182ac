//! Processes of the manifests: the real binary starts with a container's flags and rights, and serves.

use super::plain::sets;
use super::{ObjectSet, stator_args, text};
use crate::direct::testbed::{CHAT, PREFILLER, chat};
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::engine::Engine;
use stator_tests::http::Client;
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_objects::reference;
use stator_tests::process::Process;
use stator_tests::soon;

/// Flags of the first container of this name, with other values for some of them, which may be new.
fn flags(set: &ObjectSet, container: &str, changed: &[&str]) -> Vec<String> {
    let workloads = set.workloads();
    let containers = workloads.iter().flat_map(super::Workload::containers);
    let mut found = containers.filter(|of| of["name"] == *container);
    let args = stator_args(found.next().expect("the container is there")).expect("it runs stator");
    let name = |flag: &str| flag.split('=').next().unwrap_or(flag).to_owned();
    let is_changed = |flag: &String| changed.iter().any(|other| name(other) == name(flag));
    let kept = args.into_iter().filter(|flag| !is_changed(flag));
    kept.chain(changed.iter().map(|flag| (*flag).to_owned())).collect()
}

fn start(flags: &[String]) -> Process {
    Process::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn address(event: &Value) -> Client {
    Client::new(event["address"].as_str().unwrap().parse().unwrap())
}

/// The sidecar of the manifest obeys the picker's header.
#[tokio::test]
async fn the_sidecar_hands_over_between_engines() {
    let Some(set) = ObjectSet::plain("epp/disaggregated") else { return };
    let (prefill, decode) = (Engine::start().await, Engine::start().await);
    let engine = format!("--engine-port={}", decode.address().port());
    let allow = format!("--prefill-allow={}", prefill.address());
    let here = ["--http-host=127.0.0.1", "--http-port=0", "--metrics-port=0", &engine, &allow];
    let mut sidecar = start(&flags(set, "sidecar", &here));
    let client = address(&sidecar.event("listening").await);
    assert_eq!(client.get("/healthz").await.status, StatusCode::OK);
    let client = client.with_header(PREFILLER, &prefill.address().to_string());
    assert_eq!(client.post(CHAT, &chat("hello")).await.status, StatusCode::OK);
    assert_eq!((prefill.requests().len(), decode.requests().len()), (1, 1));
}

/// Applies the roles of a set, as kustomize would have made them for this namespace.
async fn give_rights(namespace: &Namespace, set: &ObjectSet) {
    for object in set.of(&["Role", "RoleBinding"]) {
        let mut object = object.clone();
        if object["kind"] == "RoleBinding" {
            object["subjects"][0]["namespace"] = json!(namespace.name);
        }
        namespace.apply(object).await;
    }
}

/// The planner of the component follows agents and sets the number of their Deployment with the rights
/// of its manifest, and no more.
#[tokio::test]
async fn the_planner_scales_the_agents_with_its_own_rights() {
    let Some(cluster) = Cluster::shared().await else { return };
    let Some(set) = sets().iter().find(|set| set.name.contains("agent.yaml [\"planner\"]")) else {
        return;
    };
    let namespace = cluster.namespace().await;
    cluster.define(include_str!("../../../manifests/agents/crd.yaml")).await;
    give_rights(&namespace, set).await;
    let is_agents = |of: &&Value| text(&of["metadata"]["name"]) == "stator-agent";
    namespace.apply(set.of(&["Deployment"]).find(is_agents).unwrap().clone()).await;
    let name = &namespace.name;
    let labels = json!({ "app": "stator-agent" });
    let pod = namespace.ready_pod("a", labels, "127.0.0.1".parse().unwrap()).await;
    let kubeconfig = cluster.kubeconfig_for(name, "stator-agent").await;
    let (kubeconfig, uid) = (kubeconfig.display(), text(&pod["metadata"]["uid"]));
    let own = format!("--discovery=kubernetes://{name}?kubeconfig={kubeconfig}&pod=a&uid={uid}");
    let here = ["--listen=127.0.0.1:0", "--events-listen=off", "--metrics-port=0", &own];
    let _agent = Process::start(&[&["agent"], &here[..]].concat());

    let kubeconfig = cluster.kubeconfig_for(name, "stator-planner").await;
    let kubeconfig = kubeconfig.display();
    let place = format!("kubernetes://{name}?selector=app=stator-agent&kubeconfig={kubeconfig}");
    // Three agents at least: the first decision orders two more.
    let here = [
        &*format!("--discovery={place}"),
        "--metrics-host=127.0.0.1",
        "--metrics-port=0",
        "--min-endpoint=3",
        &format!("--kubeconfig={kubeconfig}"),
        &format!("--namespace={name}"),
    ];
    let mut planner = start(&flags(set, "planner", &here));
    planner.event("side server listening").await;
    let agents = reference("apps/v1", "Deployment", name, "stator-agent");
    soon("three agents are ordered", async {
        while namespace.api.get(&agents).await.unwrap()["spec"]["replicas"] != 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Another Deployment is none of the planner's.
    let api = cluster.api_for(name, "stator-planner").await;
    let path = format!("/apis/apps/v1/namespaces/{name}/deployments/stator-proxy/scale");
    let reply = api.send(hyper::Method::GET, &path, "application/json", "").await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
}
