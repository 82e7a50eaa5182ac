//! A proxy beside an engine, and what it says of itself.

use serde_json::{Value, json};
use stator_tests::engine::Engine;
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::soon;
use std::net::SocketAddr;

/// Where chat requests go.
pub(crate) const CHAT: &str = "/v1/chat/completions";
/// The header by which a picker names the engine that is to compute the prompt.
pub(crate) const PREFILLER: &str = "x-prefiller-host-port";
/// The member of requests and answers that carries a hand-over.
pub(crate) const PARAMETERS: &str = "kv_transfer_params";

/// A running sidecar.
pub(crate) struct Sidecar {
    pub(crate) process: Process,
    pub(crate) client: Client,
    side: Client,
}

impl Sidecar {
    /// Starts one beside whatever listens at `engine`, with further flags.
    pub(crate) async fn start(engine: SocketAddr, flags: &[&str]) -> Self {
        let port = format!("--engine-port={}", engine.port());
        let host = format!("--engine-host={}", engine.ip());
        let mut args = vec!["sidecar", "--http-port=0", "--metrics-port=0"];
        args.extend(["--http-host=127.0.0.1", &port, &host]);
        // By this header a test asks its engine for an answer that the test gives.
        args.push("--pass-headers=x-test-hold");
        args.extend(flags);
        let mut process = Process::start(&args);
        let side = Client::new(address(&process.event("side server listening").await));
        let client = Client::new(address(&process.event("listening").await));
        Self { process, client, side }
    }

    /// Starts one that may have prompts computed at `prefiller`.
    pub(crate) async fn pair(engine: &Engine, prefiller: SocketAddr, flags: &[&str]) -> Self {
        let allow = format!("--prefill-allow={prefiller}");
        let flags: Vec<_> = [&*allow].into_iter().chain(flags.iter().copied()).collect();
        Self::start(engine.address(), &flags).await
    }

    /// A client whose prompts are to be computed at `prefiller`.
    pub(crate) fn client_of(&self, prefiller: SocketAddr) -> Client {
        self.client.clone().with_header(PREFILLER, &prefiller.to_string())
    }

    /// Waits until the samples of a metric that have all these labels add up to `sum`: an answer is
    /// counted after its last byte was sent.
    pub(crate) async fn counts(&self, name: &str, labels: &[&str], sum: f64) {
        soon(name, async {
            while self.metric(name, labels).await != sum {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// The sum of the samples of a metric that have all these labels.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = self.side.get("/metrics").await.body;
        let page = String::from_utf8(page.to_vec()).expect("metrics are text");
        let samples = page.lines().filter(|line| {
            line.starts_with(name) && labels.iter().all(|label| line.contains(label))
        });
        let values = samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum()
    }
}

fn address(event: &Value) -> SocketAddr {
    let address = event["address"].as_str().expect("the event has an address");
    address.parse().expect("an address and a port")
}

/// A chat request.
pub(crate) fn chat(prompt: &str) -> Value {
    json!({ "model": "model", "max_tokens": 9,
            "messages": [{ "role": "user", "content": prompt }] })
}
