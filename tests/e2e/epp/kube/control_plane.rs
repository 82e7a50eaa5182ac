//! What a picker needs of the control plane: few rights, and not all the time.

use super::bed::{Fleet, KubeBed, pod_name, serves};
use crate::epp::disruption::LoadTest;
use crate::epp::testbed::{Bed, metric_is};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::kube::Cluster;
use stator_tests::picker::Picker;
use stator_tests::tooling::installed;

/// What `manifests/epp` gives the picker.
const ROLE: &str = include_str!("../../../../manifests/epp/base/role.yaml");
const ACCOUNT: &str = "stator-epp";

#[tokio::test]
async fn the_role_of_the_manifests_is_enough() {
    let Some(fleet) = Fleet::start(2, 1).await else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    fleet.apply_pool("pool", "engine").await;
    fleet.add(0, "engine").await;
    let kubeconfig = cluster.kubeconfig_for(&fleet.namespace.name, ACCOUNT).await;
    for document in serde_yaml_ng::Deserializer::from_str(ROLE) {
        let mut object = Value::deserialize(document).expect("the manifest is YAML");
        // As kustomize does.
        if object["kind"] == "RoleBinding" {
            object["subjects"][0]["namespace"] = fleet.namespace.name.clone().into();
        }
        fleet.namespace.apply(object).await;
    }
    let flags = fleet.flags("pool");
    let Some(bed) = KubeBed::with(fleet, &kubeconfig, flags).await else { return };
    bed.serves(&[0]).await;
    bed.fleet.add(1, "engine").await;
    bed.serves(&[0, 1]).await;
    let path = format!("/api/v1/namespaces/{}/secrets", bed.fleet.namespace.name);
    let api = cluster.api_for(&bed.fleet.namespace.name, ACCOUNT).await;
    let reply = api.send(hyper::Method::GET, &path, "application/json", "").await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn picks_go_on_without_the_api_server() {
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let Some(mut cluster) = Cluster::start().await else { return };
    let fleet = Fleet::of(&cluster, 3, 1).await;
    fleet.apply_pool("pool", "engine").await;
    fleet.add(0, "engine").await;
    fleet.add(1, "engine").await;
    let flags = fleet.flags("pool");
    let Some(bed) = KubeBed::with(fleet, &cluster.kubeconfig(), flags).await else { return };
    bed.serves(&[0, 1]).await;
    let load = LoadTest::start(&bed.client());
    cluster.stop();
    bed.serves(&[0, 1]).await;
    cluster.restart().await;
    bed.serves(&[0, 1]).await;
    bed.fleet.add(2, "engine").await;
    bed.serves(&[0, 1, 2]).await;
    bed.fleet.namespace.delete_pod(&pod_name(0)).await;
    bed.serves(&[1, 2]).await;
    let statuses = load.end().await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
}

#[tokio::test]
async fn one_of_two_pickers_leads_until_it_ends() {
    let Some(fleet) = Fleet::start(1, 1).await else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    fleet.apply_pool("pool", "engine").await;
    fleet.add(0, "engine").await;
    let mut flags = fleet.flags("pool");
    flags.push(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    flags.push("--ha-enable-leader-election".to_owned());
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let mut leader = Picker::start(&[&flags[..], &["--shutdown-delay=10m"]].concat()).await;
    leader.ready().await;
    let mut other = Picker::start(&[&flags[..], &["--shutdown-delay=0s"]].concat()).await;
    metric_is(&other, "llm_d_epp_ready_endpoints", 1.0).await;
    let health = other.side.get("/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE, "it knows the pool but not leads");
    leader.process.terminate();
    other.ready().await;
    assert_eq!(other.side.get("/health").await.status, StatusCode::OK);
    // It still serves those that do not know, and holds no lease that another waits for.
    assert_eq!(leader.side.get("/live").await.status, StatusCode::OK);
    other.process.terminate();
    assert!(other.process.ended().await.success());
}

/// Exactly one of three is ready; where it is killed, so that it gives nothing up, another one
/// takes over once its lease has run out.
#[tokio::test]
async fn one_of_the_others_takes_over_from_a_leader_that_is_killed() {
    let Some(fleet) = Fleet::start(1, 1).await else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    fleet.apply_pool("pool", "engine").await;
    fleet.add(0, "engine").await;
    let mut flags = fleet.flags("pool");
    flags.push(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    flags.extend(["--ha-enable-leader-election", "--secure-serving=false"].map(String::from));
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let mut leader = Picker::start(&flags).await;
    leader.ready().await;
    let mut others = [Picker::start(&flags).await, Picker::start(&flags).await];
    for other in &others {
        metric_is(other, "llm_d_epp_ready_endpoints", 1.0).await;
        let health = other.side.get("/health").await;
        assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(leader.side.get("/health").await.status, StatusCode::OK);
    leader.process.kill().await;
    let [first, second] = &mut others;
    let (next, last) = tokio::select! {
        () = first.ready() => (&*first, &*second),
        () = second.ready() => (&*second, &*first),
    };
    assert_eq!(next.side.get("/health").await.status, StatusCode::OK);
    let health = last.side.get("/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE, "one at a time");
    let settings = EnvoySettings::new(next.address());
    let Some(envoy) = Envoy::start(&settings).await else { return };
    serves(&envoy.client(), &[fleet.address(0)]).await;
}
