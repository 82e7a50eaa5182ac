//! The operator at work: objects appear, change and go, and documents say how they are.

use super::{documents, operator};
use hyper::Method;
use serde_json::{Value, json};
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_objects::reference;
use stator_tests::process::Process;
use std::net::SocketAddr;

const MANIFEST: &str = include_str!("../../../manifests/operator/operator.yaml");
pub(crate) const GRAPH: &str = include_str!("../../../manifests/operator/graphs/simulated.yaml");

/// A namespace with an operator that has the rights of the manifest, and no more.
pub(crate) struct Bed {
    pub(crate) namespace: Namespace,
    /// Address of its metrics.
    pub(crate) side: SocketAddr,
    process: Process,
}

impl Bed {
    pub(crate) async fn new(cluster: &Cluster) -> Self {
        for definition in operator(&["crds"]) {
            cluster.define(&serde_yaml_ng::to_string(&definition).unwrap()).await;
        }
        let namespace = cluster.namespace().await;
        for mut object in documents(MANIFEST) {
            if object["kind"] == "RoleBinding" {
                object["subjects"][0]["namespace"] = json!(namespace.name);
            }
            namespace.apply(object).await;
        }
        let mut process = replica(cluster, &namespace).await;
        let listening = process.event("side server listening").await;
        process.event("operating").await;
        assert!(!process.log().contains("WARN"), "{}", process.log());
        let side = listening["address"].as_str().unwrap().parse().unwrap();
        Self { namespace, side, process }
    }

    /// Another replica of the operator.
    async fn replica(&self, cluster: &Cluster) -> Process {
        let mut process = replica(cluster, &self.namespace).await;
        process.event("side server listening").await;
        process
    }

    pub(super) fn object(&self, version: &str, kind: &str, name: &str) -> Value {
        reference(version, kind, &self.namespace.name, name)
    }

    async fn graph(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let graph = self.object("nvidia.com/v1beta1", "DynamoGraphDeployment", "simulated");
        self.namespace.api.until(&graph, what, is_it).await
    }

    /// The graph when the operator has seen this generation, with this reason of its readiness.
    async fn reason(&self, generation: i64, reason: &str) -> Value {
        self.graph(reason, |graph| {
            let status = &graph["status"];
            status["observedGeneration"] == generation
                && status["conditions"][0]["reason"] == reason
        })
        .await
    }

    /// Waits for a Deployment, and makes all its copies available, as its controller would.
    pub(super) async fn runs(&self, name: &str) {
        let deployment = self.object("apps/v1", "Deployment", name);
        let found = self.namespace.api.until(&deployment, name, |_| true).await;
        let (copies, generation) = (&found["spec"]["replicas"], &found["metadata"]["generation"]);
        let status = json!({
            "observedGeneration": generation, "replicas": copies, "updatedReplicas": copies,
            "readyReplicas": copies, "availableReplicas": copies,
        });
        self.namespace.api.patch_status(&deployment, &status).await;
    }

    /// Reasons of the events of the namespace.
    async fn events(&self) -> Vec<Value> {
        let path = format!("/api/v1/namespaces/{}/events", self.namespace.name);
        let reply = self.namespace.api.send(Method::GET, &path, "application/json", "").await;
        let events = reply.json();
        events["items"].as_array().unwrap().iter().map(|event| event["reason"].clone()).collect()
    }

    /// The Deployments of the graph, once there are so many.
    async fn deployments(&self, graph: &Value, number: usize) -> Vec<String> {
        let components = graph["status"]["components"].as_object().unwrap().values();
        let names =
            components.flat_map(|component| component["componentNames"].as_array().unwrap());
        let names: Vec<_> = names.map(|name| name.as_str().unwrap().to_owned()).collect();
        assert_eq!(names.len(), number, "{graph:#}");
        names
    }

    /// The operator's log.
    pub(super) fn log(&self) -> String {
        self.process.log()
    }

    pub(super) async fn until_gone(&self, kind: &str, name: &str) {
        let version = match kind {
            "Deployment" => "apps/v1",
            "DynamoModel" => "nvidia.com/v1alpha1",
            _ => "nvidia.com/v1beta1",
        };
        let object = self.object(version, kind, name);
        stator_tests::soon("the object goes", async {
            while self.namespace.api.get(&object).await.is_some() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn replica(cluster: &Cluster, namespace: &Namespace) -> Process {
    let kubeconfig = cluster.kubeconfig_for(&namespace.name, "stator-operator").await;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let namespaces = format!("--namespaces={}", namespace.name);
    Process::start(&["operator", "run", &kubeconfig, &namespaces, "--metrics-port=0"])
}

#[tokio::test]
async fn objects_of_a_graph_appear_change_and_go() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let mut graph = documents(GRAPH).remove(0);
    bed.namespace.apply(graph.clone()).await;
    let pending = bed.reason(1, "some_resources_are_not_ready").await;
    let lost = &pending["status"]["conditions"][1];
    assert_eq!(lost["message"], "Decode/main: --startup-time: simulated workers start at once");
    let first = bed.deployments(&pending, 3).await;
    for name in &first {
        bed.runs(name).await;
    }
    let ready = bed.reason(1, "all_resources_are_ready").await;
    assert_eq!(ready["status"]["state"], "successful");
    let frontend = bed.object("apps/v1", "Deployment", "simulated-frontend");
    let frontend = bed.namespace.api.get(&frontend).await.unwrap();
    assert_eq!(frontend["metadata"]["ownerReferences"][0]["uid"], ready["metadata"]["uid"]);

    // Another image is another generation, which replaces the first once it is available.
    for component in [1, 2] {
        let main =
            &mut graph["spec"]["components"][component]["podTemplate"]["spec"]["containers"][0];
        main["image"] = json!("dynamo:2");
    }
    bed.namespace.apply(graph.clone()).await;
    let rolling = bed.reason(2, "rolling_update_in_progress").await;
    let all = bed.deployments(&rolling, 5).await;
    for name in all.iter().filter(|name| !first.contains(name)) {
        bed.runs(name).await;
    }
    let old: Vec<_> = first.iter().filter(|name| *name != "simulated-frontend").collect();
    for name in &old {
        let deployment = bed.object("apps/v1", "Deployment", name);
        bed.namespace
            .api
            .until(&deployment, "it is scaled down", |of| of["spec"]["replicas"] == 0)
            .await;
        bed.runs(name).await;
    }
    for name in &old {
        bed.until_gone("Deployment", name).await;
        bed.until_gone("DynamoComponentDeployment", name).await;
    }
    bed.reason(2, "all_resources_are_ready").await;

    // A component that is gone takes its objects away.
    graph["spec"]["components"].as_array_mut().unwrap().remove(0);
    bed.namespace.apply(graph).await;
    bed.until_gone("Deployment", "simulated-frontend").await;
}

#[tokio::test]
async fn a_graph_that_is_wrong_says_so_and_leaves_what_runs() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let mut graph = documents(GRAPH).remove(0);
    bed.namespace.apply(graph.clone()).await;
    bed.reason(1, "some_resources_are_not_ready").await;
    graph["spec"]["components"][0]["type"] = json!("epp");
    bed.namespace.apply(graph).await;
    let failed = bed.reason(2, "failed_to_reconcile_the_resources").await;
    let message = &failed["status"]["conditions"][0]["message"];
    assert_eq!(message, "spec.components: the picker needs an eppConfig");
    let frontend = bed.object("apps/v1", "Deployment", "simulated-frontend");
    assert!(bed.namespace.api.get(&frontend).await.is_some());
}

#[tokio::test]
async fn where_another_operator_owns_the_kinds_nothing_is_touched() {
    let Some(cluster) = Cluster::start().await else { return };
    let mut definition = operator(&["crds"]).remove(0);
    let service = json!({ "name": "theirs", "namespace": "dynamo-system" });
    definition["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": { "service": service } },
    });
    cluster.define(&serde_yaml_ng::to_string(&definition).unwrap()).await;
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
    let mut process = Process::start(&["operator", "run", &kubeconfig, "--namespaces=default"]);
    assert!(!process.ended().await.success());
    assert!(process.log().contains("belongs to the operator behind"), "{}", process.log());
}

/// The operator of a namespace may read no definitions, and knows all the same whether there are any.
#[tokio::test]
async fn an_operator_of_one_namespace_says_that_the_kinds_are_missing() {
    let Some(cluster) = Cluster::start().await else { return };
    let namespace = cluster.namespace().await;
    let mut process = replica(&cluster, &namespace).await;
    assert!(!process.ended().await.success());
    let log = process.log();
    assert!(log.contains("apply what `stator operator crds` prints"), "{log}");
}

/// Objects that somebody changes or deletes are set again, and a restart goes through the components
/// in turn.
#[tokio::test]
async fn changes_by_hand_are_undone_and_restarts_go_in_order() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut bed = Bed::new(cluster).await;
    let mut graph = documents(GRAPH).remove(0);
    bed.namespace.apply(graph.clone()).await;
    let pending = bed.reason(1, "some_resources_are_not_ready").await;
    let names = bed.deployments(&pending, 3).await;
    for name in &names {
        bed.runs(name).await;
    }
    bed.reason(1, "all_resources_are_ready").await;

    // A Service has no generation: its content shows the change.
    let api = &bed.namespace.api;
    let service = bed.object("v1", "Service", "simulated-frontend");
    let patch = json!({ "spec": { "selector": { "nvidia.com/dynamo-component": "other" } } });
    api.patch(&service, &patch).await;
    api.until(&service, "the selector is set again", |of| {
        of["spec"]["selector"]["nvidia.com/dynamo-component"] == "Frontend"
    })
    .await;
    let account = bed.object("v1", "ServiceAccount", "simulated-k8s-service-discovery");
    api.delete(&account, std::time::Duration::ZERO).await;
    api.until(&account, "the account is there again", |_| true).await;
    bed.process.event("somebody else changed it").await;

    graph["spec"]["restart"] =
        json!({ "id": "one", "strategy": { "order": ["Decode", "Prefill", "Frontend"] } });
    bed.namespace.apply(graph).await;
    for part in ["Decode", "Prefill", "Frontend"] {
        let progress = json!([part]);
        bed.graph(part, |graph| graph["status"]["restart"]["inProgress"] == progress).await;
        let start = format!("simulated-{}", part.to_lowercase());
        let name = names.iter().find(|name| name.starts_with(&start)).unwrap();
        let deployment = bed.object("apps/v1", "Deployment", name);
        until_marked(&bed, &deployment).await;
        bed.runs(name).await;
    }
    bed.graph("the restart ends", |graph| graph["status"]["restart"]["phase"] == "Completed").await;
    for reason in ["CreateDeployment", "RestartStarted", "RestartCompleted"] {
        stator_tests::soon(reason, async {
            while !bed.events().await.contains(&json!(reason)) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn until_marked(bed: &Bed, deployment: &Value) {
    let is_marked = |of: &Value| {
        of["spec"]["template"]["metadata"]["annotations"]["nvidia.com/restartAt"] == "one"
    };
    bed.namespace.api.until(deployment, "its pods are to restart", is_marked).await;
}

/// Of two replicas one operates, and the other follows when it ends.
#[tokio::test]
async fn another_replica_takes_over() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut bed = Bed::new(cluster).await;
    let mut second = bed.replica(cluster).await;
    let graph = documents(GRAPH).remove(0);
    bed.namespace.apply(graph).await;
    bed.reason(1, "some_resources_are_not_ready").await;
    assert_eq!(second.lines("operating"), 0, "{}", second.log());
    bed.process.terminate();
    assert!(bed.process.ended().await.success());
    second.event("operating").await;
}

/// The condition names the rule that the operator lacks, and nothing that runs is touched.
#[tokio::test]
async fn an_operator_without_rights_names_the_missing_rule() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    bed.namespace.apply(documents(GRAPH).remove(0)).await;
    bed.reason(1, "some_resources_are_not_ready").await;
    let is_role = |object: &Value| object["kind"] == "Role";
    let mut role = documents(MANIFEST).into_iter().find(is_role).unwrap();
    let rules = role["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["resources"] != json!(["deployments"]));
    bed.namespace.apply(role).await;
    // A change has the operator look again.
    let service = bed.object("v1", "Service", "simulated-frontend");
    bed.namespace.api.delete(&service, std::time::Duration::ZERO).await;
    let failed = bed.reason(1, "failed_to_reconcile_the_resources").await;
    let message = failed["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("cannot list resource \"deployments\""), "{message}");
    let deployment = bed.object("apps/v1", "Deployment", "simulated-frontend");
    assert!(bed.namespace.api.get(&deployment).await.is_some());
}
