//! Pools that are created late, deleted, served together, or not there at all.

use super::bed::{Fleet, KubeBed, serves};
use crate::epp::testbed::Bed;
use serde::Deserialize as _;
use serde_json::{Value, json};
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::kube::Cluster;
use stator_tests::kube_objects::{pool, reference};
use std::path::PathBuf;
use std::time::Duration;

/// The kubeconfig of the shared cluster's administrator; a fleet is there, so the cluster is.
async fn admin() -> PathBuf {
    Cluster::shared().await.expect("a fleet has a cluster").kubeconfig()
}

async fn delete_pool(fleet: &Fleet, name: &str) {
    let (version, kind) = ("inference.networking.k8s.io/v1", "InferencePool");
    let pool = reference(version, kind, &fleet.namespace.name, name);
    fleet.namespace.api.delete(&pool, Duration::ZERO).await;
}

#[tokio::test]
async fn a_pool_may_come_after_its_picker_and_go_before_it() {
    let Some(fleet) = Fleet::start(1, 1).await else { return };
    fleet.add(0, "engine").await;
    let flags = fleet.flags("pool");
    let Some(bed) = KubeBed::with(fleet, &admin().await, flags).await else { return };
    bed.serves(&[]).await;
    bed.fleet.apply_pool("pool", "engine").await;
    bed.serves(&[0]).await;
    delete_pool(&bed.fleet, "pool").await;
    bed.serves(&[]).await;
    bed.fleet.apply_pool("pool", "engine").await;
    bed.serves(&[0]).await;
}

#[tokio::test]
async fn changes_of_a_pools_ports_are_followed() {
    let Some(bed) = KubeBed::start(1, 2, &[]).await else { return };
    let ranks: Vec<_> = bed.fleet.pods[0].iter().map(|engine| engine.address()).collect();
    serves(&bed.client(), &ranks).await;
    let one = pool("pool", json!({ "app": "engine" }), &bed.fleet.ports()[1..]);
    bed.fleet.namespace.apply(one).await;
    serves(&bed.client(), &ranks[1..]).await;
}

#[tokio::test]
async fn one_picker_serves_two_pools_on_two_ports() {
    let Some(fleet) = Fleet::start(3, 1).await else { return };
    fleet.apply_pool("blue", "blue").await;
    fleet.apply_pool("green", "green").await;
    for (pod, app) in [(0, "blue"), (1, "green"), (2, "green")] {
        fleet.add(pod, app).await;
    }
    let mut flags = fleet.flags("blue");
    flags.push(format!("--pool={}/green=0", fleet.namespace.name));
    let Some(bed) = KubeBed::with(fleet, &admin().await, flags).await else { return };
    let settings = EnvoySettings::new(bed.picker.pools[1]);
    let Some(green) = Envoy::start(&settings).await else { return };
    bed.serves(&[0]).await;
    let others = [bed.fleet.address(1), bed.fleet.address(2)];
    serves(&green.client(), &others).await;
    let page = bed.picker.side.get("/metrics").await.body;
    let page = String::from_utf8_lossy(&page);
    for ready in [r#"{name="blue"} 1.0"#, r#"{name="green"} 2.0"#] {
        assert!(page.contains(&format!("llm_d_epp_ready_endpoints{ready}")), "{page}");
    }
    delete_pool(&bed.fleet, "blue").await;
    bed.serves(&[]).await;
    serves(&green.client(), &others).await;
}

/// The picker's own namespace gives it the rights of `base`, the other one those of
/// `further-namespace`; it may read nothing else in either.
#[tokio::test]
async fn one_picker_serves_pools_of_two_namespaces_that_let_it() {
    let Some(fleet) = Fleet::start(1, 1).await else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    let further = Fleet::of(cluster, 1, 1).await;
    for fleet in [&fleet, &further] {
        fleet.apply_pool("pool", "engine").await;
        fleet.add(0, "engine").await;
    }
    let home = fleet.namespace.name.clone();
    let roles = [
        (&fleet, include_str!("../../../../manifests/epp/base/role.yaml")),
        (&further, include_str!("../../../../manifests/epp/further-namespace/role.yaml")),
    ];
    for (fleet, text) in roles {
        for document in serde_yaml_ng::Deserializer::from_str(text) {
            let mut object = Value::deserialize(document).expect("the manifest is YAML");
            if object["kind"] == "RoleBinding" {
                object["subjects"][0]["namespace"] = json!(home);
            }
            fleet.namespace.apply(object).await;
        }
    }
    let mut flags = fleet.flags("pool");
    flags.push(format!("--pool={}/pool=0", further.namespace.name));
    let kubeconfig = cluster.kubeconfig_for(&home, "stator-epp").await;
    let Some(bed) = KubeBed::with(fleet, &kubeconfig, flags).await else { return };
    let settings = EnvoySettings::new(bed.picker.pools[1]);
    let Some(other) = Envoy::start(&settings).await else { return };
    bed.serves(&[0]).await;
    serves(&other.client(), &[further.address(0)]).await;
    let api = cluster.api_for(&home, "stator-epp").await;
    for namespace in [&home, &further.namespace.name] {
        let path = format!("/api/v1/namespaces/{namespace}/secrets");
        let reply = api.send(hyper::Method::GET, &path, "application/json", "").await;
        assert_eq!(reply.status, hyper::StatusCode::FORBIDDEN, "{namespace}");
    }
}

#[tokio::test]
async fn a_selector_stands_for_a_pool() {
    let Some(fleet) = Fleet::start(2, 2).await else { return };
    fleet.add(0, "engine").await;
    fleet.add(1, "other").await;
    let ports: Vec<_> = fleet.ports().iter().map(u16::to_string).collect();
    let flags = vec![
        "--endpoint-selector=app in (engine,spare),!retired".to_owned(),
        format!("--endpoint-target-ports={}", ports.join(",")),
        format!("--pool-namespace={}", fleet.namespace.name),
        // The name of its lease must be one that the API server takes.
        "--ha-enable-leader-election=true".to_owned(),
    ];
    let Some(bed) = KubeBed::with(fleet, &admin().await, flags).await else { return };
    let ranks = |pod: usize| bed.fleet.pods[pod].iter().map(|engine| engine.address());
    serves(&bed.client(), &ranks(0).collect::<Vec<_>>()).await;
    let labels = |labels: Value| json!({ "metadata": { "labels": labels } });
    bed.fleet.patch(1, &labels(json!({ "app": "spare" }))).await;
    serves(&bed.client(), &ranks(0).chain(ranks(1)).collect::<Vec<_>>()).await;
    bed.fleet.patch(0, &labels(json!({ "retired": "yes" }))).await;
    serves(&bed.client(), &ranks(1).collect::<Vec<_>>()).await;
}
