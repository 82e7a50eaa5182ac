//! Objectives and rewrites, in the llm-d group and in the one before it.

use super::bed::KubeBed;
use crate::epp::testbed::{Bed, CHAT, DROPPED, chat, header, until, until_status};
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::engine::Load;
use stator_tests::http::Client;
use stator_tests::kube_objects::reference;
use std::time::Duration;

const GROUPS: [&str; 2] = ["llm-d.ai", "inference.networking.x-k8s.io"];
const REWRITE: &str = "InferenceModelRewrite";
const OBJECTIVE: &str = "InferenceObjective";

/// A policy for the pool of this name.
fn policy(group: &str, kind: &str, name: &str, pool: &str, mut spec: Value) -> Value {
    let mut policy = reference(&format!("{group}/v1alpha2"), kind, "", name);
    spec["poolRef"] = json!({ "name": pool });
    policy["spec"] = spec;
    policy
}

async fn delete(bed: &KubeBed, mut object: Value) {
    object["metadata"]["namespace"] = json!(bed.fleet.namespace.name);
    bed.fleet.namespace.api.delete(&object, Duration::ZERO).await;
}

fn asking(bed: &KubeBed, objective: &str) -> Client {
    bed.client().with_header("x-llm-d-inference-objective", objective)
}

/// A full pool drops requests of an objective with a negative priority while the objective is
/// there.
async fn check_objective(group: &str) {
    let Some(bed) = KubeBed::start(1, 1, &[]).await else { return };
    bed.fleet.pods[0][0].set_load(Load { waiting: 100, ..Load::default() });
    let objective =
        |priority: i32| policy(group, OBJECTIVE, "batch", "pool", json!({ "priority": priority }));
    bed.fleet.namespace.apply(objective(-1)).await;
    let others = policy(group, OBJECTIVE, "others", "another-pool", json!({ "priority": -1 }));
    bed.fleet.namespace.apply(others).await;
    let ask = async || asking(&bed, "batch").post(CHAT, &chat("model", "hello")).await;
    let dropped = until_status(StatusCode::TOO_MANY_REQUESTS, ask).await;
    assert_eq!(header(&dropped, DROPPED), "rejected-saturated");
    assert!(!header(&dropped, "retry-after").is_empty());
    assert_eq!(bed.chat("hello").await.status, StatusCode::OK);
    let others = asking(&bed, "others").post(CHAT, &chat("model", "hello")).await;
    assert_eq!(others.status, StatusCode::OK, "the objective is another pool's");

    bed.fleet.namespace.apply(objective(3)).await;
    until_status(StatusCode::OK, ask).await;
    bed.fleet.namespace.apply(objective(-1)).await;
    until_status(StatusCode::TOO_MANY_REQUESTS, ask).await;
    delete(&bed, objective(-1)).await;
    until_status(StatusCode::OK, ask).await;
}

#[tokio::test]
async fn objectives_of_the_llm_d_group_count() {
    check_objective(GROUPS[0]).await;
}

#[tokio::test]
async fn objectives_of_the_former_group_count() {
    check_objective(GROUPS[1]).await;
}

/// Requests for a model go to the one that a rewrite names while the rewrite is there, and the
/// client does not see it.
async fn check_rewrite(group: &str) {
    let Some(bed) = KubeBed::start(1, 1, &[]).await else { return };
    let matches = json!([{ "model": { "type": "Exact", "value": "food" } }]);
    let rule =
        json!({ "matches": matches, "targets": [{ "weight": 1, "modelRewrite": "food-v2" }] });
    let rewrite = policy(group, REWRITE, "canary", "pool", json!({ "rules": [rule] }));
    bed.fleet.namespace.apply(rewrite.clone()).await;
    let becomes = async |expected: &str| {
        until(&format!("the model is {expected}"), async || {
            let reply = bed.client().post(CHAT, &chat("food", "hello")).await;
            assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
            assert_eq!(reply.json()["model"], "food", "{reply:?}");
            (bed.fleet.pods[0][0].last().json()["model"] == *expected).then_some(())
        })
        .await;
    };
    becomes("food-v2").await;
    bed.client().post(CHAT, &chat("other", "hello")).await;
    assert_eq!(bed.fleet.pods[0][0].last().json()["model"], "other");
    delete(&bed, rewrite).await;
    becomes("food").await;
}

#[tokio::test]
async fn rewrites_of_the_llm_d_group_count() {
    check_rewrite(GROUPS[0]).await;
}

#[tokio::test]
async fn rewrites_of_the_former_group_count() {
    check_rewrite(GROUPS[1]).await;
}
