//! Requests that two engines work on.

use super::testbed::{Bed, CHAT, Testbed, chat};
use hyper::StatusCode;
use serde_json::json;
use std::collections::BTreeSet;

/// The header by which a decode endpoint's sidecar learns who computes the prompt.
const PREFILLER: &str = "x-prefiller-host-port";
/// Every prompt is computed by an endpoint of role prefill.
const SPLIT: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters: { deciders: { prefill: always-disagg-pd-decider } }
- type: prefill-filter
- type: decode-filter
- type: random-picker
schedulingProfiles:
- name: prefill
  plugins: [{ pluginRef: prefill-filter }, { pluginRef: random-picker }]
- name: decode
  plugins: [{ pluginRef: decode-filter }, { pluginRef: random-picker }]
";

/// Engines of these roles.
async fn start(roles: &[&str]) -> Option<Testbed> {
    let testbed = Testbed::with_flags(roles.len(), &[&format!("--config-text={SPLIT}")]).await?;
    let entry = |(role, engine): (&&str, &stator_tests::engine::Engine)| {
        let (address, labels) = (engine.address(), json!({ "llm-d.ai/role": role }));
        let name = format!("engine-{}", address.port());
        json!({ "name": name, "address": address.ip(), "port": address.port(), "labels": labels })
    };
    let entries: Vec<_> = roles.iter().zip(&testbed.engines).map(entry).collect();
    testbed.file.write(&json!({ "endpoints": entries }));
    Some(testbed)
}

#[tokio::test]
async fn the_endpoint_that_answers_learns_who_computes_the_prompt() {
    let Some(testbed) = start(&["decode", "prefill", "prefill"]).await else { return };
    let prefillers: BTreeSet<_> =
        testbed.engines[1..].iter().map(|engine| engine.address().to_string()).collect();
    // What a client says of it does not count.
    let client = testbed.client().with_header(PREFILLER, "10.0.0.1:1");
    let mut helped = BTreeSet::new();
    super::testbed::until("both computed a prompt", async || {
        let reply = client.post(CHAT, &chat("model", "hello")).await;
        assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
        // Until the roles are read, requests may go anywhere.
        if testbed.served_by(&reply) != 0 {
            return None;
        }
        let seen = testbed.engines[0].last();
        let [helper] = seen.header(PREFILLER)[..] else { return None };
        assert!(prefillers.contains(helper), "{helper}");
        helped.insert(helper.to_owned());
        (helped == prefillers).then_some(())
    })
    .await;
    let before: Vec<_> = testbed.engines.iter().map(|engine| engine.requests().len()).collect();
    for _ in 0..4 {
        client.post(CHAT, &chat("model", "hello")).await;
    }
    let after: Vec<_> = testbed.engines.iter().map(|engine| engine.requests().len()).collect();
    assert_eq!(after, [before[0] + 4, before[1], before[2]], "only who decodes is asked");
    let split = "llm_d_epp_disagg_decision_total";
    assert!(testbed.picker.metric(split).await >= 4.0);
}

#[tokio::test]
async fn without_anybody_to_compute_prompts_the_other_does_all() {
    let Some(testbed) = start(&["decode"]).await else { return };
    let reply = testbed.chat("hello").await;
    assert_eq!(testbed.served_by(&reply), 0);
    assert_eq!(testbed.engines[0].last().header(PREFILLER), [""; 0]);
}
