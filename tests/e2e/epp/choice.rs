//! Which engine is chosen.

use super::testbed::{Bed, CHAT, DROPPED, Testbed, chat, header, until, until_status};
use futures::{StreamExt, stream};
use hyper::StatusCode;
use serde_json::json;
use stator_tests::engine::Load;
use stator_tests::envoy::{Routing, SCORES};
use stator_tests::picker::endpoints;
use std::collections::BTreeSet;

/// Keeps the endpoints that a header names, for conformance tests.
const PINNED: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: random-picker
";

#[tokio::test]
async fn a_long_prompt_stays_where_it_was_while_others_spread() {
    let Some(testbed) = Testbed::start(3).await else { return };
    // What is still in flight counts against an engine, whatever it holds.
    let ask = async |prompt: &str| {
        let served = testbed.served_by(&testbed.chat(prompt).await);
        testbed.metric_is("llm_d_epp_inflight_requests", 0.0).await;
        served
    };
    let long = "A long document that is asked about again and again. ".repeat(400);
    let home = ask(&long).await;
    let mut others = BTreeSet::new();
    for n in 0..10 {
        others.insert(ask(&format!("{n} {}", "Something else. ".repeat(200))).await);
        assert_eq!(ask(&format!("{long} Question {n}?")).await, home, "request {n}");
    }
    assert!(others.len() > 1, "all other prompts went to {others:?}");
}

#[tokio::test]
async fn requests_avoid_an_engine_whose_requests_wait() {
    let Some(testbed) = Testbed::start(2).await else { return };
    let busy = Load { waiting: 200, running: 200, kv_usage: 0.9, ..Load::default() };
    testbed.engines[0].set_load(busy);
    testbed.metric_is("llm_d_epp_per_endpoint_queue_size", 200.0).await;
    for n in 0..10 {
        assert_eq!(testbed.served_by(&testbed.chat(&format!("prompt {n}")).await), 1);
    }
}

#[tokio::test]
async fn sheddable_requests_are_dropped_while_the_pool_is_full() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let mut file = endpoints(&[testbed.engines[0].address()]);
    file["objectives"] = json!({ "batch": -1, "urgent": 5 });
    testbed.file.write(&file);
    testbed.engines[0].set_load(Load { waiting: 50, ..Load::default() });
    let ask = async |objective: &str| {
        let client = testbed.client().with_header("x-llm-d-inference-objective", objective);
        client.post(CHAT, &chat("model", "hello")).await
    };
    let dropped = until_status(StatusCode::TOO_MANY_REQUESTS, async || ask("batch").await).await;
    assert_eq!(header(&dropped, DROPPED), "rejected-saturated");
    assert!(!header(&dropped, "retry-after").is_empty());
    assert_eq!(ask("urgent").await.status, StatusCode::OK);
    assert_eq!(ask("unknown").await.status, StatusCode::OK);
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);

    testbed.engines[0].set_load(Load::default());
    until_status(StatusCode::OK, async || ask("batch").await).await;
}

#[tokio::test]
async fn a_request_goes_where_the_labels_are_that_it_needs() {
    let Some(testbed) = Testbed::start(2).await else { return };
    let addresses: Vec<_> = testbed.engines.iter().map(|engine| engine.address()).collect();
    let mut file = endpoints(&addresses);
    for (entry, zone) in ["a", "b"].into_iter().enumerate() {
        file["endpoints"][entry]["labels"] = json!({ "zone": zone });
    }
    testbed.file.write(&file);
    let ask = async |label: &str| {
        testbed.client().with_header("x-stator-labels", label).post(CHAT, &chat("m", "hello")).await
    };
    until_status(StatusCode::OK, async || ask("zone=b").await).await;
    for (label, home) in [("zone=a", 0), ("zone=b", 1), ("zone=a", 0)] {
        assert_eq!(testbed.served_by(&ask(label).await), home, "{label}");
    }
    let refused = ask("zone=c").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(text.contains("no worker has the label \"zone=c\" now"), "{text}");
    let own = |engine: usize| testbed.engines[engine].last().headers;
    assert!(!own(0).contains_key("x-stator-labels"), "engines need not know it");
}

/// Source: `GatewayFollowingEPPRouting` of the conformance tests of the inference extension.
#[tokio::test]
async fn the_gateway_follows_every_choice() {
    let Some(testbed) = Testbed::with_flags(3, &[&format!("--config-text={PINNED}")]).await else {
        return;
    };
    let addresses: Vec<_> = testbed.engines.iter().map(|engine| engine.address()).collect();
    for allowed in [&addresses[..1], &addresses[1..], &addresses[..]] {
        // The tests of a gateway with several pools name other pools' endpoints too.
        let names = allowed.iter().map(|address| address.to_string());
        let names: Vec<_> = names.chain(["192.0.2.1".to_owned()]).collect();
        let client = testbed.client().with_header("test-epp-endpoint-selection", &names.join(","));
        let replies: Vec<_> = stream::iter(0..100)
            .map(|n| {
                let client = client.clone();
                async move { client.post(CHAT, &chat("model", &format!("prompt {n}"))).await }
            })
            .buffer_unordered(10)
            .collect()
            .await;
        let served = replies.iter().map(|reply| addresses[testbed.served_by(reply)]);
        let served: BTreeSet<_> = served.collect();
        assert_eq!(served, allowed.iter().copied().collect());
    }
}

#[tokio::test]
async fn a_request_for_cached_prompts_only_is_refused_elsewhere() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let long = "A document. ".repeat(200);
    let client = testbed.client().with_header("prefer", "if-available");
    let reply = client.post(CHAT, &chat("model", &long)).await;
    assert_eq!(reply.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(testbed.chat(&long).await.status, StatusCode::OK);
    assert_eq!(client.post(CHAT, &chat("model", &long)).await.status, StatusCode::OK);
}

/// Source: `endpoint_scores` of the hermetic tests of the llm-d router.
#[tokio::test]
async fn all_candidates_scores_reach_the_gateway_where_they_are_wanted_alone() {
    let config = "--config-text={apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, \
                  plugins: [{type: queue-scorer}], \
                  schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]}";
    for flags in [&[config][..], &[config, "--emit-endpoint-scores"]] {
        let Some(testbed) = Testbed::with_flags(3, flags).await else { return };
        for (engine, waiting) in testbed.engines.iter().zip([10, 0, 5]) {
            engine.set_load(Load { waiting, ..Load::default() });
        }
        testbed.metric_is("llm_d_epp_per_endpoint_queue_size", 15.0).await;
        let reply = testbed.chat("hello").await;
        assert_eq!(testbed.served_by(&reply), 1);
        let told = reply.headers.get(SCORES);
        let told = told.map(|told| serde_json::from_slice(told.as_bytes()).unwrap());
        let address = |at: usize| testbed.engines[at].address().to_string();
        let scores = json!({ address(0): 0, address(1): 1, address(2): 0.5 });
        assert_eq!(told, (flags.len() > 1).then_some(scores));
        testbed.metric_is("llm_d_epp_scheduler_attempts_total", 1.0).await;
    }
}

/// A gateway that knows one of the two endpoints only goes there, whatever is picked.
#[tokio::test]
async fn picks_that_the_gateway_does_not_follow_are_counted() {
    let flags = ["--response-path=headers"];
    let testbed = Testbed::with(2, &flags, |settings, engines| {
        settings.routing = Routing::OverrideHost(vec![engines[0]]);
    });
    let Some(testbed) = testbed.await else { return };
    let counts = async || {
        let count = |name: &'static str| testbed.picker.metric(name);
        [
            count("stator_epp_picks_honoured_total").await,
            count("stator_epp_picks_not_honoured_total").await,
        ]
    };
    let mut asked = 0.0;
    until("picks of both engines", async || {
        let reply = testbed.chat(&format!("prompt {asked}")).await;
        assert_eq!(testbed.served_by(&reply), 0);
        asked += 1.0;
        let told = async || (counts().await.iter().sum::<f64>() == asked).then_some(());
        until("the answer's head was seen", told).await;
        counts().await.iter().all(|count| *count > 0.0).then_some(())
    })
    .await;
}
