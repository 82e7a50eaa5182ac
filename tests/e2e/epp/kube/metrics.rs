//! Who may read a picker's metrics.

use super::bed::{Fleet, KubeBed};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use stator_tests::kube::Cluster;
use stator_tests::kube_objects::reference;

/// What `manifests/epp` gives a picker to ask about readers, and a reader to read.
const ROLES: &str =
    include_str!("../../../../manifests/epp/components/metrics-auth/cluster-role.yaml");
const RIGHTS: &str = "rbac.authorization.k8s.io/v1";

/// Gives an account of a namespace a role of the cluster.
async fn bind(cluster: &Cluster, role: &str, namespace: &str, account: &str) {
    let mut binding =
        reference(RIGHTS, "ClusterRoleBinding", "", &format!("{namespace}-{account}"));
    let group = "rbac.authorization.k8s.io";
    binding["roleRef"] = json!({ "apiGroup": group, "kind": "ClusterRole", "name": role });
    binding["subjects"] =
        json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]);
    cluster.api().apply(&binding).await;
}

#[tokio::test]
async fn readers_of_metrics_need_the_right() {
    let Some(fleet) = Fleet::start(1, 1).await else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    fleet.apply_pool("pool", "engine").await;
    fleet.add(0, "engine").await;
    for document in serde_yaml_ng::Deserializer::from_str(ROLES) {
        let role = Value::deserialize(document).expect("the manifest is YAML");
        if role["kind"] == "ClusterRole" {
            cluster.api().apply(&role).await;
        }
    }
    let namespace = fleet.namespace.name.clone();
    bind(cluster, "stator-epp-metrics-auth", &namespace, "picker").await;
    bind(cluster, "stator-epp-metrics-reader", &namespace, "reader").await;
    // The picker's rights to read its pool are another test's.
    bind_pool(&fleet, "picker").await;
    let kubeconfig = cluster.kubeconfig_for(&namespace, "picker").await;
    let mut flags = fleet.flags("pool");
    flags.push("--metrics-endpoint-auth=true".to_owned());
    let Some(mut bed) = KubeBed::with(fleet, &kubeconfig, flags).await else { return };
    bed.picker.ready().await;

    let read = async |token: Option<&str>| {
        let side = bed.picker.side.clone();
        let side = match token {
            Some(token) => side.with_header("authorization", &format!("Bearer {token}")),
            None => side,
        };
        side.get("/metrics").await
    };
    assert_eq!(read(None).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(read(Some("nobody's")).await.status, StatusCode::UNAUTHORIZED);
    let stranger = cluster.token_for(&namespace, "stranger").await;
    assert_eq!(read(Some(&stranger)).await.status, StatusCode::FORBIDDEN);
    let reader = cluster.token_for(&namespace, "reader").await;
    let page = read(Some(&reader)).await;
    assert_eq!(page.status, StatusCode::OK);
    let page = String::from_utf8_lossy(&page.body);
    assert!(page.contains("llm_d_epp_ready_endpoints{"), "{page}");
    assert_eq!(bed.picker.side.get("/health").await.status, StatusCode::OK, "asks for no token");
}

/// Lets an account read all of the fleet's namespace that a picker reads.
async fn bind_pool(fleet: &Fleet, account: &str) {
    let mut role = reference(RIGHTS, "Role", "", account);
    let all = |groups: &[&str], resources: &[&str]| {
        let verbs = ["get", "list", "watch"];
        json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
    };
    role["rules"] = json!([
        all(&[""], &["pods"]),
        all(&["inference.networking.k8s.io"], &["*"]),
        all(&["llm-d.ai", "inference.networking.x-k8s.io"], &["*"]),
    ]);
    fleet.namespace.apply(role).await;
    let mut binding = reference(RIGHTS, "RoleBinding", "", account);
    let group = "rbac.authorization.k8s.io";
    binding["roleRef"] = json!({ "apiGroup": group, "kind": "Role", "name": account });
    let namespace = &fleet.namespace.name;
    binding["subjects"] =
        json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]);
    fleet.namespace.apply(binding).await;
}
