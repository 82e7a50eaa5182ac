//! Metrics that only a whole picker gives values to.

use super::testbed::{Bed, CHAT, Testbed, chat, until};
use serde_json::json;
use stator_tests::engine::HOLD;

/// Chooses by what endpoints are believed to hold.
const BY_PREFIX: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{ type: prefix-cache-scorer }, { type: max-score-picker }]
schedulingProfiles:
- name: default
  plugins: [{ pluginRef: prefix-cache-scorer }, { pluginRef: max-score-picker }]
";

/// A prompt of so many thousand characters.
fn prompt(thousands: usize) -> String {
    "A document of about forty characters or so. ".repeat(thousands * 1000 / 44)
}

#[tokio::test]
async fn gaps_between_the_pieces_of_a_streamed_answer_are_measured() {
    let flags = ["--response-path=body"];
    let Some(testbed) = Testbed::with_flags(1, &flags).await else { return };
    let mut asked = chat("model", "hello");
    asked["stream"] = json!(true);
    let client = testbed.client().with_header(HOLD, "1");
    let mut answer = client.stream(CHAT, &asked).await;
    let held = testbed.engines[0].held().await;
    for n in 0..3 {
        held.event(&json!({ "n": n })).await;
        answer.next().await.expect("the event goes through");
    }
    drop(held);
    answer.end().await.expect("the answer is whole");
    testbed.metric_is("llm_d_epp_request_streaming_itl_seconds_count", 2.0).await;
    testbed.metric_is("llm_d_epp_request_ttft_seconds_count", 1.0).await;
    testbed.metric_is("llm_d_epp_response_processing_duration_seconds_count", 1.0).await;
}

#[tokio::test]
async fn what_is_found_of_prompts_is_measured() {
    let flag = format!("--config-text={BY_PREFIX}");
    let Some(testbed) = Testbed::with_flags(2, &[&flag]).await else { return };
    for _ in 0..2 {
        testbed.chat(&prompt(4)).await;
    }
    testbed.metric_is("llm_d_epp_prefix_indexer_hit_ratio_count", 2.0).await;
    testbed.metric_is("llm_d_epp_prefix_indexer_hit_ratio_sum", 1.0).await;
    assert!(testbed.picker.metric("llm_d_epp_prefix_indexer_size").await >= 10.0);
    let bytes = testbed.picker.metric("llm_d_epp_prefix_indexer_hit_bytes_sum").await;
    assert!((3000.0..=4200.0).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn lookups_of_the_kv_index_are_measured() {
    let Some(testbed) = Testbed::start(2).await else { return };
    for _ in 0..2 {
        testbed.chat(&prompt(4)).await;
    }
    testbed.metric_is("llm_d_epp_kv_cache_index_lookup_requests_total", 2.0).await;
    testbed.metric_is("llm_d_epp_kv_cache_index_lookup_latency_seconds_count", 2.0).await;
    assert!(testbed.picker.metric("llm_d_epp_kv_cache_index_lookup_hits_total").await > 10.0);
}

#[tokio::test]
async fn pages_that_do_not_come_are_counted() {
    let Some(mut testbed) = Testbed::start(1).await else { return };
    testbed.engines.clear();
    until("a page does not come", async || {
        let failed = testbed.picker.metric("llm_d_epp_datalayer_poll_errors_total").await;
        (failed > 0.0).then_some(())
    })
    .await;
}
