//! What a gateway decides, and what happens to its requests while pickers and pods go away: for a
//! pool of the cluster, through Envoy.

use super::bed::{Fleet, KubeBed, pod_name};
use crate::epp::disruption::LoadTest;
use crate::epp::testbed::{Bed, DESTINATION, DROPPED, header, served_by, until, until_status};
use hyper::{Method, StatusCode};
use serde_json::json;
use stator_tests::engine_answers::grpc_frame;
use stator_tests::envoy::{BodyMode, EnvoySettings, Routing};
use stator_tests::http::Reply;
use stator_tests::kube_objects::pool;
use std::net::SocketAddr;

/// A fleet with a pool of it.
async fn fleet(pods: usize) -> Option<Fleet> {
    let fleet = Fleet::start(pods, 1).await?;
    fleet.apply_pool("pool", "engine").await;
    Some(fleet)
}

#[tokio::test]
async fn a_subset_of_the_pods_is_obeyed() {
    let Some(fleet) = fleet(3).await else { return };
    let bed = KubeBed::of(fleet, &[], |settings, pods| {
        let nobody = "192.0.2.1:8000".to_owned();
        settings.subset = Some(json!([pods[1].to_string(), pods[2].to_string(), nobody]));
    });
    let Some(bed) = bed.await else { return };
    bed.serves(&[1, 2]).await;
    bed.fleet.namespace.delete_pod(&pod_name(1)).await;
    bed.serves(&[2]).await;
    // The pod that is left is none of the subset.
    bed.fleet.namespace.delete_pod(&pod_name(2)).await;
    let reply =
        until_status(StatusCode::SERVICE_UNAVAILABLE, async || bed.chat("hello").await).await;
    assert_eq!(header(&reply, DROPPED), "rejected-no-endpoints");
}

/// A gateway that goes on without a picker; see [`EnvoySettings::fail_open`] for the bodies.
fn fail_open(settings: &mut EnvoySettings, pods: &[SocketAddr]) {
    settings.fail_open = true;
    (settings.request_body, settings.response_body) = (BodyMode::Buffered, BodyMode::None);
    settings.routing = Routing::OverrideHost(pods.to_vec());
}

/// Whether the picker chose the endpoint of an answer.
fn picked(bed: &KubeBed, reply: &Reply) -> bool {
    let mut engines = bed.fleet.pods.iter().flatten();
    let served = served_by(reply).expect("an engine answered");
    let engine = engines.find(|engine| engine.address() == served).expect("it is of a pod");
    !engine.last().header(DESTINATION).is_empty()
}

#[tokio::test]
async fn a_gateway_that_fails_open_loses_nothing_while_its_picker_restarts() {
    let Some(fleet) = fleet(2).await else { return };
    let Some(mut bed) = KubeBed::of(fleet, &[], fail_open).await else { return };
    let load = LoadTest::start(&bed.client());
    bed.serves(&[0, 1]).await;
    bed.picker.process.kill().await;
    for expected in [false, true] {
        until("a request with a picker, or without", async || {
            let reply = bed.chat("hello").await;
            assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
            (picked(&bed, &reply) == expected).then_some(())
        })
        .await;
        if !expected {
            bed.picker.restart().await;
            bed.picker.ready().await;
        }
    }
    bed.fleet.namespace.delete_pod(&pod_name(0)).await;
    bed.serves(&[1]).await;
    let statuses = load.end().await;
    let log = bed.picker.process.log();
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}\n{log}");
}

#[tokio::test]
async fn a_gateway_that_fails_closed_serves_again_once_its_picker_is_back() {
    let Some(mut bed) = KubeBed::start(2, 1, &[]).await else { return };
    let load = LoadTest::start(&bed.client());
    bed.serves(&[0, 1]).await;
    bed.picker.process.kill().await;
    let reply = until("an answer of the gateway's own", async || {
        Some(bed.chat("hello").await).filter(|reply| reply.status != StatusCode::OK)
    })
    .await;
    assert!(reply.status.is_server_error() && served_by(&reply).is_none(), "{reply:?}");
    bed.picker.restart().await;
    until_status(StatusCode::OK, async || bed.chat("hello").await).await;
    bed.picker.ready().await;
    bed.serves(&[0, 1]).await;
    let statuses = load.end().await;
    let expected = |status: &StatusCode| *status == StatusCode::OK || status.is_server_error();
    assert!(statuses.iter().all(expected), "{statuses:?}");
}

/// Source: the disruption tests of the llm-d router.
#[tokio::test]
async fn a_pool_may_be_scaled_to_zero_and_back_under_traffic() {
    let Some(bed) = KubeBed::start(2, 1, &[]).await else { return };
    bed.serves(&[0, 1]).await;
    let load = LoadTest::start(&bed.client());
    for pod in [0, 1] {
        bed.fleet.namespace.delete_pod(&pod_name(pod)).await;
    }
    bed.serves(&[]).await;
    bed.fleet.add(1, "engine").await;
    bed.serves(&[1]).await;
    bed.fleet.add(0, "engine").await;
    bed.serves(&[0, 1]).await;
    let statuses = load.end().await;
    let expected = [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE];
    assert!(statuses.iter().all(|status| expected.contains(status)), "{statuses:?}");
    assert_eq!(bed.chat("hello").await.status, StatusCode::OK);
}

#[tokio::test]
async fn calls_reach_the_pods_of_a_pool_that_speaks_grpc() {
    let Some(fleet) = Fleet::start(2, 1).await else { return };
    let mut h2c = pool("pool", json!({ "app": "engine" }), &fleet.ports());
    h2c["spec"]["appProtocol"] = json!("kubernetes.io/h2c");
    fleet.namespace.apply(h2c).await;
    let config = "--config-text={apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, \
                  plugins: [{type: random-picker}, {type: vllmgrpc-parser}], \
                  schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}], \
                  requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}}";
    let bed = KubeBed::of(fleet, &[config], |settings, _| settings.upstream_http2 = true).await;
    let Some(bed) = bed else { return };
    let client = bed.client().over_http2().with_header("te", "trailers");
    let client = client.with_header("content-type", "application/grpc");
    // A `GenerateRequest`, whose field `text` is 3.
    let call = grpc_frame(b"\x1a\x05hello");
    for pod in [0, 1] {
        until("a call to the pod", async || {
            let path = "/vllm.grpc.engine.VllmEngine/Generate";
            let reply = client.send(Method::POST, path, call.clone()).await;
            assert_eq!(reply.status, StatusCode::OK, "{}", bed.picker.process.log());
            assert_eq!(
                (&reply.body, &reply.trailers["grpc-status"]),
                (&call, &"0".parse().unwrap())
            );
            (served_by(&reply) == Some(bed.fleet.address(pod))).then_some(())
        })
        .await;
    }
}
