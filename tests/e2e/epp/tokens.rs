//! Prompts in tokens: engines and agents report which of them they hold, and requests follow.

use super::testbed::{Bed, CHAT, Testbed, chat, metric_is, until};
use crate::lifecycle::{agent, gauge};
use crate::support::{self, MODEL};
use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_protos::kv_event::{KvEvent, Medium, Stored, encode};
use stator_tests::engine::{Engine, Load};
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::http::Client;
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::process::Process;
use stator_tests::tooling::installed;
use stator_zmtp::Publisher;
use std::net::SocketAddr;
use tempfile::TempDir;

const EXACT: &str = "stator_epp_tokenization_total{mode=\"exact\"}";
const TEXT: &str = "stator_epp_tokenization_total{mode=\"text\"}";
/// Blocks that the index was told of.
pub(super) const ADMITTED: &str = "llm_d_epp_kv_cache_index_admissions_total";
const BLOCK_SIZE: usize = 16;

/// What an engine says of its blocks, at a port of its own.
struct Events {
    socket: Publisher,
    sent: u64,
}

impl Events {
    /// Binds the address, whose engine is about to end.
    async fn bind(address: SocketAddr) -> Self {
        let socket = until("the engine is gone", async || {
            // Its task ends in this thread.
            tokio::task::yield_now().await;
            Publisher::bind(&format!("tcp://{address}")).await.ok()
        });
        Self { socket: socket.await, sent: 0 }
    }

    /// Says that it holds these tokens, as vLLM does: whole blocks, under hashes of its own.
    fn stored(&mut self, tokens: &[u32]) {
        let mixed = |hash: u64, id: &u32| hash.wrapping_mul(31).wrapping_add(u64::from(*id));
        let hash = |block: &[u32]| block.iter().fold(7, mixed);
        let event = KvEvent::Stored(Stored {
            hashes: tokens.chunks_exact(BLOCK_SIZE).map(hash).collect(),
            parent: None,
            tokens: tokens.to_vec(),
            block_size: u32::try_from(BLOCK_SIZE).expect("it is small"),
            medium: Medium::Device,
            lora_name: None,
        });
        let mut payload = Vec::new();
        encode(0.0, &[event], Some(0), &mut payload);
        let number = Bytes::copy_from_slice(&self.sent.to_be_bytes());
        self.sent += 1;
        self.socket.publish(&[Bytes::from_static(b"kv-events"), number, payload.into()]);
    }
}

/// An Envoy and a picker of the endpoints in a file.
pub(super) async fn gateway(file: &EndpointsFile, flags: &[&str]) -> Option<(Picker, Envoy)> {
    let file = format!("--endpoints-file={}", file.path().display());
    let flags: Vec<_> = [&*file, "--secure-serving=false"].iter().chain(flags).copied().collect();
    let mut picker = Picker::start(&flags).await;
    picker.ready().await;
    let envoy = Envoy::start(&EnvoySettings::new(picker.address())).await?;
    Some((picker, envoy))
}

#[tokio::test]
async fn requests_follow_what_engines_publish() {
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let (mut engines, mut publishers) = (Vec::new(), Vec::new());
    for mut pod in Engine::pods(3, 2).await {
        // The pods' second ports are free from now on, and the same for all of them.
        let publishes = pod.pop().expect("it has two ranks").address();
        engines.extend(pod);
        publishers.push(publishes);
    }
    let port = publishers[0].port();
    let mut bound = Vec::new();
    for address in publishers {
        let second = SocketAddr::new(address.ip(), port + 1);
        bound.push([Events::bind(address).await, Events::bind(second).await]);
    }
    // Behind the one port of the first pod are two ranks.
    engines[0].set_load(Load { further_ranks: 1, ..Load::default() });
    let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
    let file = EndpointsFile::of(&addresses);
    let flag = format!("--kv-events-port={port}");
    let Some((picker, envoy)) = gateway(&file, &[&flag]).await else { return };
    let testbed = Testbed { engines, file, picker, envoy };

    for (seed, (home, rank)) in (0..).zip([(2, 0), (0, 0), (0, 1)]) {
        let tokens: Vec<u32> = (0..640).map(|n| n * 4 + seed).collect();
        let known = testbed.picker.metric(ADMITTED).await;
        // What is published before the picker has subscribed is lost.
        until("the index knows the blocks", async || {
            bound[home][rank].stored(&tokens);
            (testbed.picker.metric(ADMITTED).await > known).then_some(())
        })
        .await;
        for n in 0..5 {
            let prompt: Vec<u32> = tokens.iter().copied().chain([10_000 + n; 40]).collect();
            let body = json!({ "model": "model", "prompt": prompt });
            let reply = testbed.client().post("/v1/completions", &body).await;
            assert_eq!(testbed.served_by(&reply), home, "request {n}");
            assert_eq!(testbed.engines[home].last().json(), body);
            testbed.metric_is("llm_d_epp_inflight_requests", 0.0).await;
        }
    }
    assert_eq!(testbed.picker.metric(EXACT).await, 15.0);
    assert_eq!(testbed.picker.metric(TEXT).await, 0.0);
}

#[tokio::test]
async fn without_a_tokenizer_prompts_are_text_and_counted_so() {
    let Some(testbed) = Testbed::start(1).await else { return };
    assert_eq!(testbed.picker.metric(TEXT).await, 0.0);
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
    assert_eq!(testbed.picker.metric(TEXT).await, 1.0);
    assert_eq!(testbed.picker.metric(EXACT).await, 0.0);
}

/// An agent with an engine, and the proxy beside it that takes its requests.
struct Pod {
    client: Client,
    side: Client,
    agent_port: String,
    _processes: [Process; 2],
    _home: TempDir,
}

impl Pod {
    async fn start() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = format!("--discovery-dir={}", home.path().display());
        let mut agent = agent(&dir, &["--engine=sim", "--workers=1"]);
        let side = agent.event("side server listening").await;
        let side = side["address"].as_str().expect("the event has an address").parse();
        let side = Client::new(side.expect("an address and a port"));
        let serving = agent.event("serving").await;
        let endpoint = serving["endpoint"].as_str().expect("the event has an endpoint");
        let agent_port = endpoint.rsplit(':').next().expect("it has a port").to_owned();
        let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
        let client = Client::new(support::ready(&mut proxy).await);
        Self { client, side, agent_port, _processes: [agent, proxy], _home: home }
    }

    /// The picker's entry for it.
    fn entry(&self) -> Value {
        let address = self.client.address();
        let labels = json!({ "stator.dev/agent-port": self.agent_port });
        json!({ "name": format!("pod-{}", address.port()), "address": address.ip(),
                "port": address.port(), "labels": labels })
    }

    /// How many requests its engine has answered.
    async fn answered(&self) -> f64 {
        let completed = "stator_agent_requests_total{outcome=\"completed\"}";
        gauge(&self.side, completed).await.unwrap_or_default()
    }
}

/// What an agent's engine holds is known by the agent's word alone: a prompt that came past the
/// picker draws the next one there, token by token with the agent's own tokenizer.
#[tokio::test]
async fn requests_follow_what_agents_report() {
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let pods = [Pod::start().await, Pod::start().await, Pod::start().await];
    let file = EndpointsFile::of(&[]);
    file.write(&json!({ "endpoints": pods.iter().map(Pod::entry).collect::<Vec<_>>() }));
    let Some((picker, envoy)) = gateway(&file, &[]).await else { return };
    metric_is(&picker, "stator_epp_signals_tokenizer_ready", 1.0).await;
    metric_is(&picker, "stator_epp_signals_agent_feeds", 3.0).await;

    for home in [&pods[1], &pods[2]] {
        let port = home.client.address().port();
        let long = format!("Report number {port} about cities and their rivers. ").repeat(60);
        let known = picker.metric(ADMITTED).await;
        let reply = home.client.post(CHAT, &support::chat(&long, 2)).await;
        assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
        until("the index knows the blocks", async || {
            (picker.metric(ADMITTED).await >= known + 20.0).then_some(())
        })
        .await;
        let before = home.answered().await;
        for n in 0..5 {
            let mut body = chat(MODEL, &long);
            body["messages"][0]["content"] = json!(format!("{long} Question {n}?"));
            body["max_tokens"] = json!(2);
            let reply = envoy.client().post(CHAT, &body).await;
            assert_eq!(reply.status, StatusCode::OK, "{reply:?}\n{}", picker.process.log());
            assert_eq!(home.answered().await, before + f64::from(n + 1), "request {n}");
        }
    }
    assert_eq!(picker.metric(EXACT).await, 10.0);
    // An agent that is gone is no loss to the others.
    file.write(&json!({ "endpoints": [pods[0].entry()] }));
    metric_is(&picker, "llm_d_epp_ready_endpoints", 1.0).await;
    let before = pods[0].answered().await;
    assert_eq!(envoy.client().post(CHAT, &support::chat("hello", 2)).await.status, StatusCode::OK);
    assert_eq!(pods[0].answered().await, before + 1.0);
}
