//! Flow control: requests that wait for room in the pool.

use super::testbed::{CHAT, DROPPED, Testbed, chat, header};
use hyper::StatusCode;

/// Every endpoint takes one request.
const ONE_EACH: &str = r#"{
  "apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
  "featureGates": ["flowControl"],
  "plugins": [{"type": "queue-scorer"},
    {"type": "concurrency-detector", "parameters": {"maxConcurrency": 1}}],
  "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
  "flowControl": {"saturationDetector": {"pluginRef": "concurrency-detector"}}
}"#;

#[tokio::test]
async fn a_request_waits_until_the_endpoint_is_free_or_its_time_is_up() {
    let flag = format!("--config-text={ONE_EACH}");
    let Some(testbed) = Testbed::with_flags(1, &[&flag]).await else { return };
    let running = testbed.open().await;
    let held = testbed.engines[0].held().await;

    let impatient = testbed.client().with_header("x-llm-d-inference-ttl", "50ms");
    let reply = impatient.post(CHAT, &chat("model", "hello")).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{reply:?}");
    assert_eq!(header(&reply, DROPPED), "rejected-ttl-expired");

    let patient = tokio::spawn({
        let client = testbed.client();
        async move { client.post(CHAT, &chat("model", "hello")).await }
    });
    testbed.metric_is("llm_d_epp_flow_control_queue_size", 1.0).await;
    drop((running, held));
    let reply = patient.await.expect("it does not panic");
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    testbed.metric_is("llm_d_epp_flow_control_queue_size", 0.0).await;
}
