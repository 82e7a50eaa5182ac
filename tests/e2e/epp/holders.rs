//! Agents that lend KV of a prompt: the picker names them to the endpoint that it chooses.

use super::testbed::{metric_is, until};
use super::tokens::{ADMITTED, gateway};
use crate::direct::testbed::{PARAMETERS, Sidecar};
use crate::kv_peers::{BLOCKS, PROMPT, Peer};
use crate::suite::tokens;
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::engine::Engine;
use stator_tests::picker::EndpointsFile;
use stator_tests::tooling::installed;
use std::net::SocketAddr;

/// The header that names them.
const HOLDERS: &str = "x-stator-kv-holders";

/// The picker's entry for an endpoint that has this agent beside it.
fn entry(stand: &str, at: SocketAddr, agent: &Peer) -> Value {
    let port = agent.record.endpoint.rsplit(':').next().expect("it has a port");
    let labels = json!({ "stator.dev/agent-port": port, "stand": stand });
    json!({ "name": stand, "address": at.ip(), "port": at.port(), "labels": labels })
}

#[tokio::test]
async fn the_picker_names_who_holds_a_prompt_to_the_endpoint_that_it_chooses() {
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompts = [tokens(21, PROMPT), tokens(22, PROMPT)];
    let (mut holder, _) = Peer::holding(home, "holder", &[], &prompts[0]).await;
    holder.ask(&prompts[1], &[]).await;
    let near = Peer::begin(home, "near", &[]).await;
    let beside = Peer::begin(home, "beside", &[]).await;
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let sidecar = Sidecar::start(engines[2].address(), &["--prefill-allow=127.0.0.0/8"]).await;
    let file = EndpointsFile::of(&[]);
    let endpoints = [
        entry("holder", engines[0].address(), &holder),
        entry("near", engines[1].address(), &near),
        entry("beside", sidecar.client.address(), &beside),
    ];
    file.write(&json!({ "endpoints": endpoints }));
    let Some((mut picker, envoy)) = gateway(&file, &["--log-level=debug"]).await else { return };
    metric_is(&picker, "stator_epp_signals_agent_feeds", 3.0).await;
    until("the index knows the blocks", async || {
        (picker.metric(ADMITTED).await >= f64::from(2 * BLOCKS)).then_some(())
    })
    .await;

    let ask = async |stand: &str, prompt: &[u32]| {
        let client = envoy.client().with_header("x-stator-labels", &format!("stand={stand}"));
        // A client names nobody.
        let client = client.with_header(HOLDERS, "10.0.0.9:1;blocks=9");
        let body = json!({ "model": "tiny", "prompt": prompt });
        let reply = client.post("/v1/completions", &body).await;
        assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    };
    ask("holder", &prompts[0]).await;
    assert!(engines[0].last().header(HOLDERS).is_empty());
    ask("near", &prompts[0]).await;
    let named = format!("{};blocks={BLOCKS}", holder.address());
    assert_eq!(engines[1].last().header(HOLDERS), [&*named]);
    assert_eq!(engines[1].last().json().get(PARAMETERS), None);
    // What stands beside an engine tells it in the words of its KV connector.
    ask("beside", &prompts[1]).await;
    let seen = engines[2].last();
    assert!(seen.header(HOLDERS).is_empty());
    assert_eq!(seen.json()[PARAMETERS], json!({ "stator_holders": [[holder.address(), BLOCKS]] }));

    let own = picker.process.nth_event("picked", 0).await;
    let cached = format!("{BLOCKS} blocks ({} tokens)", 16 * BLOCKS);
    let computed = format!("1 ({}) computed", PROMPT - 16 * BLOCKS as usize);
    assert_eq!(own["prefix"], format!("{cached} device, {computed}"), "{own}");
    let lent = picker.process.nth_event("picked", 1).await;
    let prefix = lent["prefix"].as_str().expect("the log says so");
    assert!(prefix.starts_with(&format!("{cached} from worker ")), "{lent}");
    assert!(prefix.ends_with(&format!(", {computed}")), "{lent}");
    assert_eq!(lent["kv_holders"], named);
}
