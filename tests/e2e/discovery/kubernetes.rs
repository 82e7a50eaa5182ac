//! Kubernetes: the manifests' resource and rights, pods that end, and a server that is away.

use super::{Agent, Followed, record};
use serde::Deserialize as _;
use serde_json::{Value, json};
use stator_discovery::{DiscoverySource, Registration};
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_objects::reference;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CRD: &str = include_str!("../../../manifests/agents/crd.yaml");
const ROLES: &str = include_str!("../../../manifests/agents/role.yaml");
const DEPLOYMENTS: [&str; 3] = [
    include_str!("../../../manifests/agents/agent.yaml"),
    include_str!("../../../manifests/agents/proxy.yaml"),
    include_str!("../../../manifests/agents/network-policy.yaml"),
];
const LEASE: Duration = Duration::from_secs(6);
const METADATA: (&str, &str) = ("nvidia.com/v1alpha1", "DynamoWorkerMetadata");

/// A namespace in which agents and proxies have the rights of the manifests, and no more.
pub(super) struct Bed {
    pub(super) namespace: Namespace,
    pub(super) agent: PathBuf,
    pub(super) proxy: PathBuf,
}

impl Bed {
    pub(super) async fn new(cluster: &Cluster) -> Self {
        cluster.define(CRD).await;
        let namespace = cluster.namespace().await;
        for document in serde_yaml_ng::Deserializer::from_str(ROLES) {
            let mut object = Value::deserialize(document).expect("the manifest is YAML");
            // As kustomize does.
            if object["kind"] == "RoleBinding" {
                object["subjects"][0]["namespace"] = namespace.name.clone().into();
            }
            namespace.apply(object).await;
        }
        let agent = cluster.kubeconfig_for(&namespace.name, "stator-agent").await;
        let proxy = cluster.kubeconfig_for(&namespace.name, "stator-proxy").await;
        Self { namespace, agent, proxy }
    }

    fn source(&self, kubeconfig: &Path, more: &str) -> DiscoverySource {
        self.url(kubeconfig, more).parse().unwrap()
    }

    /// The back-end as flags name it.
    pub(super) fn url(&self, kubeconfig: &Path, more: &str) -> String {
        let (namespace, file) = (&self.namespace.name, kubeconfig.display());
        format!("kubernetes://{namespace}?kubeconfig={file}{more}")
    }

    /// A ready pod of this name.
    pub(super) async fn pod(&self, name: &str) -> Value {
        let address = "127.0.0.1".parse().unwrap();
        self.namespace.ready_pod(name, json!({ "app": "agent" }), address).await
    }

    /// An agent in a ready pod, both of this name.
    async fn agent(&self, name: &str) -> Agent {
        let pod = self.pod(name).await;
        let registration = self.registration(&pod).await;
        Agent::start(registration, name)
    }

    async fn registration(&self, pod: &Value) -> Registration {
        let uid = pod["metadata"]["uid"].as_str().expect("a pod has an identity");
        let pod = pod["metadata"]["name"].as_str().expect("a pod has a name");
        let source = self.source(&self.agent, &format!("&pod={pod}&uid={uid}"));
        Registration::open(&source, LEASE).await.unwrap()
    }

    async fn followed(&self) -> Followed {
        Followed::new(&self.source(&self.proxy, "&selector=app=agent")).await
    }

    fn metadata(&self, name: &str) -> Value {
        reference(METADATA.0, METADATA.1, &self.namespace.name, name)
    }
}

#[tokio::test]
async fn agents_come_change_and_leave() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let mut followed = bed.followed().await;
    let a = bed.agent("a").await;
    followed.until_there(&["a"]).await;
    let _b = bed.agent("b").await;
    followed.until_there(&["a", "b"]).await;
    assert_eq!(followed.there["a"].workers, record("a").workers);
    a.record.send_modify(|record| record.accepting = false);
    followed.until("a drains", |known| !known.there["a"].accepting).await;
    a.end().await;
    followed.until_there(&["b"]).await;
    bed.namespace.set_ready("b", false).await;
    followed.until_there(&[]).await;
    bed.namespace.set_ready("b", true).await;
    followed.until_there(&["b"]).await;
    bed.namespace.terminate_pod("b").await;
    followed.until_there(&[]).await;
}

#[tokio::test]
async fn a_pod_that_is_gone_takes_its_agent_away_and_its_successor_has_its_name() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let mut followed = bed.followed().await;
    let first = bed.agent("a").await;
    followed.until_there(&["a"]).await;
    first.die();
    bed.namespace.delete_pod("a").await;
    followed.until_there(&[]).await;
    // No controller removes the resource here, so it is found by the successor, as by one that is
    // quick. It is not the successor's until that says so.
    let pod = bed.pod("a").await;
    let _other = bed.agent("b").await;
    followed.until_there(&["b"]).await;
    let mut registration = bed.registration(&pod).await;
    let previous = registration.previous("a").await.expect("the resource is still there");
    assert_eq!(previous.workers, record("a").workers);
    let _second = Agent::start(registration, "a");
    followed.until_there(&["a", "b"]).await;
    let metadata = bed.namespace.api.get(&bed.metadata("a")).await.expect("it was published");
    let owners = metadata["metadata"]["ownerReferences"].as_array().expect("it has an owner");
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(owners[0]["uid"], pod["metadata"]["uid"]);
}

#[tokio::test]
async fn the_resource_is_shared_with_others() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let pod = bed.pod("a").await;
    let mut theirs = bed.metadata("a");
    theirs["spec"] = json!({ "data": { "endpoints": { "x": { "type": "Endpoint" } } } });
    bed.namespace.apply(theirs.clone()).await;
    // Two agents in one pod, as in two containers.
    let first = Agent::start(bed.registration(&pod).await, "a");
    let second = Agent::start(bed.registration(&pod).await, "a-2");
    let mut followed = bed.followed().await;
    followed.until_there(&["a", "a-2"]).await;
    first.end().await;
    followed.until_there(&["a-2"]).await;
    // What others apply takes nothing away, and what we withdraw neither.
    theirs["spec"]["data"]["model_cards"] = json!({ "y": {} });
    bed.namespace.apply(theirs).await;
    let both = bed.namespace.api.get(&bed.metadata("a")).await.expect("it is there");
    assert!(both["spec"]["data"]["stator_agents"]["a-2"].is_string(), "{both}");
    second.end().await;
    followed.until_there(&[]).await;
    let left = bed.namespace.api.get(&bed.metadata("a")).await.expect("it is there");
    assert_eq!(left["spec"]["data"]["endpoints"]["x"]["type"], "Endpoint");
    assert_eq!(left["spec"]["data"]["model_cards"], json!({ "y": {} }));
}

#[tokio::test]
async fn slices_tell_readiness_where_they_are_asked() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let pod = bed.pod("a").await;
    let _a = Agent::start(bed.registration(&pod).await, "a");
    let slice = |ready: bool| {
        let mut slice = reference("discovery.k8s.io/v1", "EndpointSlice", "", "agents");
        slice["metadata"]["labels"] = json!({ "kubernetes.io/service-name": "agents" });
        slice["addressType"] = json!("IPv4");
        let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
        slice["endpoints"] = json!([{
            "addresses": ["10.0.0.1"],
            "conditions": { "ready": ready },
            "targetRef": { "kind": "Pod", "name": name, "uid": uid },
        }]);
        slice
    };
    bed.namespace.apply(slice(false)).await;
    let more = "&readiness=endpointslices&selector=kubernetes.io/service-name=agents";
    let mut followed = Followed::new(&bed.source(&bed.proxy, more)).await;
    bed.namespace.apply(slice(true)).await;
    followed.until_there(&["a"]).await;
    bed.namespace.apply(slice(false)).await;
    followed.until_there(&[]).await;
}

#[tokio::test]
async fn a_control_plane_that_is_away_empties_nothing() {
    let Some(mut cluster) = Cluster::start().await else { return };
    let bed = Bed::new(&cluster).await;
    let _a = bed.agent("a").await;
    let _b = bed.agent("b").await;
    let mut followed = bed.followed().await;
    followed.until_there(&["a", "b"]).await;
    cluster.stop();
    followed.until_stale(true).await;
    assert!(followed.there.keys().eq(&["a", "b"]));
    cluster.restart().await;
    followed.until_stale(false).await;
    assert!(followed.there.keys().eq(&["a", "b"]));
    let _c = bed.agent("c").await;
    followed.until_there(&["a", "b", "c"]).await;
    bed.namespace.delete_pod("a").await;
    followed.until_there(&["b", "c"]).await;
}

#[tokio::test]
async fn the_deployments_of_the_manifests_are_accepted() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    for document in DEPLOYMENTS.into_iter().flat_map(serde_yaml_ng::Deserializer::from_str) {
        namespace.apply(Value::deserialize(document).expect("the manifest is YAML")).await;
    }
}

#[tokio::test]
async fn the_rights_of_the_manifests_are_enough_and_no_more() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let name = &bed.namespace.name;
    for (account, path) in [
        ("stator-agent", format!("/api/v1/namespaces/{name}/configmaps")),
        ("stator-agent", format!("/api/v1/namespaces/{name}/secrets")),
        ("stator-proxy", format!("/api/v1/namespaces/{name}/secrets")),
    ] {
        let api = cluster.api_for(name, account).await;
        let reply = api.send(hyper::Method::GET, &path, "application/json", "").await;
        assert_eq!(reply.status, hyper::StatusCode::FORBIDDEN, "{account} {path}");
    }
}
