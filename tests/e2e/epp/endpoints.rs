//! Where a picker serves, whom it knows, and how it ends.

use super::testbed::{Bed, DESTINATION, Testbed, served_by, until, until_status};
use hyper::StatusCode;
use serde_json::json;
use stator_tests::engine::Engine;
use stator_tests::envoy::Routing;
use stator_tests::picker::endpoints;

#[tokio::test]
async fn a_picker_with_a_certificate_that_it_signed_itself() {
    let testbed = Testbed::with(1, &[], |settings, _| {
        settings.tls = true;
        settings.health_checks = true;
    });
    let Some(testbed) = testbed.await else { return };
    let reply = until_status(StatusCode::OK, async || testbed.chat("hello").await).await;
    assert_eq!(testbed.served_by(&reply), 0);
    assert!(testbed.envoy.stat("cluster.picker-tls.ssl.handshake").await > 0);
}

#[tokio::test]
async fn a_gateway_asks_a_healthy_picker_without_tls() {
    let testbed = Testbed::with(1, &[], |settings, _| settings.health_checks = true);
    let Some(testbed) = testbed.await else { return };
    let reply = until_status(StatusCode::OK, async || testbed.chat("hello").await).await;
    assert_eq!(testbed.served_by(&reply), 0);
}

#[tokio::test]
async fn endpoints_may_have_addresses_of_ipv6() {
    let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else {
        eprintln!("not run: this machine has no IPv6");
        return;
    };
    let address = listener.local_addr().expect("a listener has an address");
    drop(listener);
    // A gateway tells who answered where it picks from what it knows, and only if it is asked.
    let testbed = Testbed::with(0, &["--response-path=headers"], |settings, _| {
        settings.routing = Routing::OverrideHost(vec![address]);
    });
    let Some(testbed) = testbed.await else { return };
    let engine = Engine::at(address).await;
    testbed.file.write(&endpoints(&[engine.address()]));
    let reply = until_status(StatusCode::OK, async || testbed.chat("hello").await).await;
    assert_eq!(served_by(&reply), Some(address));
    assert_eq!(engine.last().header(DESTINATION), [format!("[::1]:{}", address.port())]);
    let honoured = "stator_epp_picks_honoured_total";
    until("the answer's endpoint is recognised", async || {
        (testbed.picker.metric(honoured).await > 0.0).then_some(())
    })
    .await;
    assert_eq!(testbed.picker.metric("stator_epp_picks_not_honoured_total").await, 0.0);
}

#[tokio::test]
async fn health_follows_the_pool() {
    let Some(mut testbed) = Testbed::start(0).await else { return };
    let health = testbed.picker.side.get("/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(testbed.picker.side.get("/live").await.status, StatusCode::OK);
    let engine = Engine::start().await;
    testbed.file.write(&endpoints(&[engine.address()]));
    testbed.picker.ready().await;
    assert_eq!(testbed.picker.side.get("/health").await.status, StatusCode::OK);
    testbed.metric_is("llm_d_epp_ready_endpoints", 1.0).await;
}

#[tokio::test]
async fn changes_of_the_endpoints_are_followed() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let (old, new) = (testbed.engines[0].address(), Engine::start().await);
    testbed.file.write(&endpoints(&[new.address()]));
    until("the new engine", async || {
        testbed.chat("hello").await;
        (!new.requests().is_empty()).then_some(())
    })
    .await;
    let before = testbed.engines[0].requests().len();
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
    assert_eq!(testbed.engines[0].requests().len(), before);

    testbed.file.write(&json!({ "endpoints": [] }));
    let none = StatusCode::SERVICE_UNAVAILABLE;
    until_status(none, async || testbed.chat("hello").await).await;
    testbed.file.write(&endpoints(&[old, new.address()]));
    until_status(StatusCode::OK, async || testbed.chat("hello").await).await;
    testbed.metric_is("llm_d_epp_ready_endpoints", 2.0).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_changes_nothing() {
    let Some(mut testbed) = Testbed::start(1).await else { return };
    testbed.file.write(&json!({ "endpoints": [{ "name": "x", "address": "nowhere" }] }));
    let event = testbed.picker.process.event("endpoints file not read, keeping what is known");
    let error = event.await["error"].to_string();
    assert!(error.contains("nowhere") && error.contains("endpoints[0].port"), "{error}");
    let reply = testbed.chat("hello").await;
    assert_eq!(testbed.served_by(&reply), 0);
}

#[tokio::test]
async fn a_picker_that_is_told_to_end_finishes_its_streams() {
    let flags = ["--response-path=body", "--shutdown-delay=0s"];
    let Some(mut testbed) = Testbed::with_flags(1, &flags).await else { return };
    let mut answer = testbed.open().await;
    let held = testbed.engines[0].held().await;
    held.event(&json!({ "n": 0 })).await;
    answer.next().await.unwrap();
    testbed.picker.process.terminate();
    testbed.picker.process.event("draining; a second signal ends at once").await;
    for n in 1..4 {
        held.event(&json!({ "n": n })).await;
        assert_eq!(answer.next().await.unwrap(), format!("{{\"n\":{n}}}"));
    }
    drop(held);
    assert_eq!(answer.end().await.unwrap(), "");
    let status = testbed.picker.process.ended().await;
    assert!(status.success(), "{status}\n{}", testbed.picker.process.log());
}

#[tokio::test]
async fn streams_that_outlast_the_drain_limit_are_cut_off() {
    let flags = ["--response-path=body", "--shutdown-delay=0s", "--drain-timeout=100ms"];
    let Some(mut testbed) = Testbed::with_flags(1, &flags).await else { return };
    let mut answer = testbed.open().await;
    let held = testbed.engines[0].held().await;
    held.event(&json!({ "n": 0 })).await;
    answer.next().await.unwrap();
    testbed.picker.process.terminate();
    let status = testbed.picker.process.ended().await;
    assert!(status.success(), "{status}\n{}", testbed.picker.process.log());
    answer.end().await.expect_err("the answer was not complete");
}

#[tokio::test]
async fn a_picker_that_is_told_to_end_picks_on_until_gateways_know() {
    let flags = ["--shutdown-delay=60s"];
    let Some(testbed) = Testbed::with_flags(1, &flags).await else { return };
    testbed.picker.process.terminate();
    until("it is no longer ready", async || {
        let health = testbed.picker.side.get("/health").await.status;
        (health == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
}
