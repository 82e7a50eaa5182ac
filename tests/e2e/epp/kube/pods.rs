//! Pods that come, change and go, and their ranks.

use super::bed::{KubeBed, pod_name, serves};
use crate::epp::testbed::{Bed, CHAT, DROPPED, chat, header, served_by, until};
use hyper::StatusCode;
use serde_json::json;
use std::collections::BTreeSet;

const PINNED: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{ type: header-based-testing-filter }, { type: random-picker }]
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: random-picker
";

#[tokio::test]
async fn pods_that_come_and_go_are_followed() {
    let Some(bed) = KubeBed::start(3, 1, &[]).await else { return };
    bed.serves(&[0, 1, 2]).await;
    bed.fleet.namespace.delete_pod(&pod_name(0)).await;
    bed.serves(&[1, 2]).await;
    bed.fleet.add(0, "engine").await;
    bed.serves(&[0, 1, 2]).await;
}

#[tokio::test]
async fn only_ready_pods_are_picked() {
    let Some(bed) = KubeBed::start(2, 1, &[]).await else { return };
    bed.serves(&[0, 1]).await;
    bed.fleet.namespace.set_ready(&pod_name(1), false).await;
    bed.serves(&[0]).await;
    bed.fleet.namespace.set_ready(&pod_name(0), false).await;
    bed.serves(&[]).await;
    let reply = bed.chat("hello").await;
    assert_eq!(header(&reply, DROPPED), "rejected-no-endpoints");
    bed.fleet.namespace.set_ready(&pod_name(1), true).await;
    bed.serves(&[1]).await;
}

#[tokio::test]
async fn a_pod_that_terminates_gets_nothing_new() {
    let Some(bed) = KubeBed::start(2, 1, &[]).await else { return };
    bed.serves(&[0, 1]).await;
    bed.fleet.namespace.terminate_pod(&pod_name(0)).await;
    bed.serves(&[1]).await;
}

#[tokio::test]
async fn labels_decide_which_pods_are_of_the_pool() {
    let Some(bed) = KubeBed::start(2, 1, &[]).await else { return };
    bed.serves(&[0, 1]).await;
    bed.fleet.patch(0, &json!({ "metadata": { "labels": { "app": "other" } } })).await;
    bed.serves(&[1]).await;
    // The pool chooses the other label instead.
    bed.fleet.apply_pool("pool", "other").await;
    bed.serves(&[0]).await;
}

#[tokio::test]
async fn every_port_of_a_pool_is_a_rank() {
    let Some(bed) = KubeBed::start(2, 3, &[]).await else { return };
    let ranks = |pod: usize| bed.fleet.pods[pod].iter().map(|engine| engine.address());
    let all: Vec<_> = ranks(0).chain(ranks(1)).collect();
    serves(&bed.client(), &all).await;

    let ports = bed.fleet.ports();
    let annotate = async |name: &str, ports: &[u16]| {
        let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
        let annotations = json!({ name: ports.join(",") });
        bed.fleet.patch(0, &json!({ "metadata": { "annotations": annotations } })).await;
    };
    annotate("inference.networking.k8s.io/active-ports", &ports[..1]).await;
    let some: Vec<_> = ranks(0).take(1).chain(ranks(1)).collect();
    serves(&bed.client(), &some).await;
    // The canonical name wins.
    annotate("llm-d.ai/active-ports", &ports[1..]).await;
    let some: Vec<_> = ranks(0).skip(1).chain(ranks(1)).collect();
    serves(&bed.client(), &some).await;
}

/// Source: `GatewayFollowingEPPRoutingWithDataParallelism` of the conformance tests of the
/// inference extension.
#[tokio::test]
async fn requests_are_pinned_to_pods_and_ranks() {
    let Some(bed) = KubeBed::start(2, 3, &[&format!("--config-text={PINNED}")]).await else {
        return;
    };
    let pods = &bed.fleet.pods;
    let (pod, rank) = (pods[0][0].address().ip(), pods[1][2].address());
    let cases = [
        (pod.to_string(), pods[0].iter().map(|engine| engine.address()).collect()),
        (rank.to_string(), BTreeSet::from([rank])),
    ];
    for (selection, expected) in cases {
        let client = bed.client().with_header("test-epp-endpoint-selection", &selection);
        let mut served = BTreeSet::new();
        until("all of them answered", async || {
            let reply = client.post(CHAT, &chat("model", "hello")).await;
            assert_eq!(reply.status, StatusCode::OK);
            let address = served_by(&reply).expect("an engine answered");
            assert!(expected.contains(&address), "{address} is not in {expected:?}");
            served.insert(address);
            (served == expected).then_some(())
        })
        .await;
    }
}
