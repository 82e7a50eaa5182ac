//! The operator at work: objects appear, change and go, and documents say how they are.

use super::{documents, operator};
use serde_json::{Value, json};
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_objects::reference;
use stator_tests::process::Process;

const MANIFEST: &str = include_str!("../../../manifests/operator/operator.yaml");
const GRAPH: &str = include_str!("../../../manifests/operator/graphs/simulated.yaml");

/// A namespace with an operator that has the rights of the manifest, and no more.
pub(super) struct Bed {
    pub(super) namespace: Namespace,
    process: Process,
}

impl Bed {
    pub(super) async fn new(cluster: &Cluster) -> Self {
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
        let kubeconfig = cluster.kubeconfig_for(&namespace.name, "stator-operator").await;
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let namespaces = format!("--namespaces={}", namespace.name);
        let mut process = Process::start(&["operator", "run", &kubeconfig, &namespaces]);
        process.event("operating").await;
        Self { namespace, process }
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

    async fn until_gone(&self, kind: &str, name: &str) {
        let version = if kind == "Deployment" { "apps/v1" } else { "nvidia.com/v1beta1" };
        let object = self.object(version, kind, name);
        stator_tests::soon("the object goes", async {
            while self.namespace.api.get(&object).await.is_some() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
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
