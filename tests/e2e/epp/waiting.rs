//! Flow control: requests that wait for room in the pool.

use super::testbed::{Bed, CHAT, DROPPED, Testbed, chat, header, served_by, until};
use hyper::StatusCode;
use serde_json::json;
use stator_tests::engine::{Engine, HOLD};
use stator_tests::picker::endpoints;

/// Every endpoint takes one request.
pub(super) const ONE_EACH: &str = r#"{
  "apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
  "featureGates": ["flowControl"],
  "plugins": [{"type": "queue-scorer"},
    {"type": "concurrency-detector", "parameters": {"maxConcurrency": 1}}],
  "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
  "flowControl": {"saturationDetector": {"pluginRef": "concurrency-detector"}}
}"#;

/// Requests that wait.
const QUEUED: &str = "llm_d_epp_flow_control_queue_size";

#[tokio::test]
async fn a_request_waits_until_the_endpoint_is_free_or_nobody_waits_for_it() {
    let flag = format!("--config-text={ONE_EACH}");
    let Some(testbed) = Testbed::with_flags(1, &[&flag]).await else { return };
    check_waiting(&testbed).await;
}

/// A batch request whose answer has begun breaks off for one that waits.
#[tokio::test]
async fn running_batch_requests_give_way_to_those_that_wait() {
    let config =
        ONE_EACH.replace(r#""flowControl": {"#, r#""flowControl": {"enableEviction": true, "#);
    let flag = format!("--config-text={config}");
    let Some(testbed) = Testbed::with_flags(1, &[&flag]).await else { return };
    let engine = &testbed.engines[0];
    let mut file = endpoints(&[engine.address()]);
    file["objectives"] = json!({ "batch": -1 });
    let rule = json!({ "models": ["old"], "targets": [{ "model": "new" }] });
    file["rewrites"] = json!([{ "name": "seen", "rules": [rule] }]);
    testbed.file.write(&file);
    until("the objective counts", async || {
        testbed.client().post(CHAT, &chat("old", "hello")).await;
        (engine.last().json()["model"] == "new").then_some(())
    })
    .await;

    let batch = testbed.client().with_header("x-llm-d-inference-objective", "batch");
    let mut running = batch.clone().with_header(HOLD, "1").stream(CHAT, &chat("model", "hi")).await;
    let held = loop {
        let held = engine.held().await;
        if held.request.headers.contains_key(HOLD) {
            break held;
        }
    };
    held.event(&json!({ "n": 1 })).await;
    running.until("\"n\":1").await;
    let urgent = testbed.chat("hello");
    let (reply, end) = tokio::join!(urgent, running.end());
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    assert!(end.is_err(), "the answer breaks off: {end:?}");
    held.aborted().await;
    testbed.metric_is("llm_d_epp_flow_control_revocations_total", 1.0).await;
    testbed.metric_is(QUEUED, 0.0).await;
}

/// Envoy asks only a picker that says it is ready, which it is though the pool is empty.
#[tokio::test]
async fn requests_of_an_empty_pool_wait_for_its_first_endpoint() {
    let flag = format!("--config-text={ONE_EACH}");
    let testbed = Testbed::with(0, &[&flag], |settings, _| settings.health_checks = true).await;
    let Some(testbed) = testbed else { return };
    until("the picker is healthy", async || {
        (testbed.envoy.stat("cluster.picker.membership_healthy").await == 1).then_some(())
    })
    .await;
    let client = testbed.client();
    let waiting = tokio::spawn(async move { client.post(CHAT, &chat("model", "hello")).await });
    testbed.metric_is(QUEUED, 1.0).await;
    let engine = Engine::start().await;
    testbed.file.write(&endpoints(&[engine.address()]));
    let reply = waiting.await.expect("it does not panic");
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    assert_eq!(served_by(&reply), Some(engine.address()));
}

/// A request waits while the only endpoint is busy, which takes one: until its time is up, its
/// client hangs up, or the endpoint is free.
pub(super) async fn check_waiting(bed: &impl Bed) {
    let running = bed.open().await;
    let held = bed.engines()[0].held().await;
    let seen = bed.engines()[0].requests().len();

    let impatient = bed.client().with_header("x-llm-d-inference-ttl", "50ms");
    let reply = impatient.post(CHAT, &chat("model", "hello")).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{reply:?}");
    assert_eq!(header(&reply, DROPPED), "rejected-ttl-expired");

    let wait = || {
        let client = bed.client();
        tokio::spawn(async move { client.post(CHAT, &chat("model", "hello")).await })
    };
    let hung_up = wait();
    bed.metric_is(QUEUED, 1.0).await;
    hung_up.abort();
    bed.metric_is(QUEUED, 0.0).await;

    let patient = wait();
    bed.metric_is(QUEUED, 1.0).await;
    drop((running, held));
    let reply = patient.await.expect("it does not panic");
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    bed.metric_is(QUEUED, 0.0).await;
    assert_eq!(bed.engines()[0].requests().len(), seen + 1, "the engine saw the patient one alone");
}
