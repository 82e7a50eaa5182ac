//! Flow control: requests that wait for room in the pool.

use super::testbed::{Bed, CHAT, DROPPED, Testbed, chat, header};
use hyper::StatusCode;

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
