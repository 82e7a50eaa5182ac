//! Requests for one model that another answers: the client never sees the other's name.

use super::testbed::{Bed, CHAT, Testbed, chat};
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::engine::HOLD;
use stator_tests::envoy::BodyMode;
use stator_tests::picker::endpoints;

/// One engine, and a rewrite of the model `food` to `food-v2`. The answers' bodies go to the
/// picker in this mode.
async fn renaming(mode: BodyMode) -> Option<Testbed> {
    let testbed = Testbed::with(1, &[], |settings, _| settings.response_body = mode).await?;
    let mut file = endpoints(&[testbed.engines[0].address()]);
    let rule = json!({ "models": ["food"], "targets": [{ "model": "food-v2" }] });
    file["rewrites"] = json!([{ "name": "canary", "rules": [rule] }]);
    testbed.file.write(&file);
    super::testbed::until("the rewrite counts", async || {
        testbed.client().post(CHAT, &chat("food", "hello")).await;
        (testbed.engines[0].last().json()["model"] == "food-v2").then_some(())
    })
    .await;
    Some(testbed)
}

#[tokio::test]
async fn an_answer_in_one_piece_names_the_model_that_was_asked_for() {
    let Some(testbed) = renaming(BodyMode::FullDuplex).await else { return };
    let reply = testbed.client().post(CHAT, &chat("food", "hello")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(testbed.engines[0].last().json()["model"], "food-v2");
    assert_eq!(reply.json()["model"], "food");

    let reply = testbed.client().post(CHAT, &chat("other", "hello")).await;
    assert_eq!(testbed.engines[0].last().json()["model"], "other");
    assert_eq!(reply.json()["model"], "other");
    let rewritten = testbed.picker.metric("llm_d_epp_model_rewrite_decisions_total").await;
    assert!(rewritten >= 2.0, "{rewritten}");
}

/// A stream whose name of the model is cut in two, in pieces that cannot come together: each is
/// sent when the client has read the one before.
async fn check_split(mode: BodyMode) {
    let Some(testbed) = renaming(mode).await else { return };
    let client = testbed.client().with_header(HOLD, "1");
    let mut answer = client.stream(CHAT, &chat("food", "hello")).await;
    let held = loop {
        let held = testbed.engines[0].held().await;
        if held.request.headers.contains_key(HOLD) {
            break held;
        }
    };
    held.event(&json!({ "model": "food-v2", "n": 1 })).await;
    let first: Value = serde_json::from_str(&answer.next().await.unwrap()).unwrap();
    assert_eq!(first, json!({ "model": "food", "n": 1 }));
    held.send("data: {\"n\":2,\"model\":\"foo").await;
    answer.until("\"n\":2").await;
    held.send("d-v2\"}\n\ndata: {\"model\": \"food-v22\"}\n\n").await;
    assert_eq!(answer.next().await.unwrap(), "{\"n\":2,\"model\":\"food\"}");
    assert_eq!(answer.next().await.unwrap(), "{\"model\": \"food-v22\"}");
    held.send("data: [DONE]\n\n").await;
    drop(held);
    assert_eq!(answer.end().await.unwrap(), "data: [DONE]\n\n");
}

#[tokio::test]
async fn a_name_that_is_cut_in_two_is_found() {
    check_split(BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn a_name_that_is_cut_in_two_is_found_in_streamed_bodies() {
    check_split(BodyMode::Streamed).await;
}

#[tokio::test]
async fn weights_share_the_requests_of_a_name() {
    let Some(testbed) = renaming(BodyMode::FullDuplex).await else { return };
    let mut file = endpoints(&[testbed.engines[0].address()]);
    let targets = json!([{ "model": "a", "weight": 1 }, { "model": "b", "weight": 1 }]);
    file["rewrites"] = json!([{ "name": "split", "rules": [{ "targets": targets }] }]);
    testbed.file.write(&file);
    let ask = async |wanted: &'static str| {
        super::testbed::until(wanted, async || {
            let reply = testbed.client().post(CHAT, &chat("food", "hello")).await;
            assert_eq!(reply.json()["model"], "food");
            (testbed.engines[0].last().json()["model"] == wanted).then_some(())
        })
        .await;
    };
    ask("a").await;
    ask("b").await;
}
