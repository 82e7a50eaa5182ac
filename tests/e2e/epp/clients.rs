//! Clients through Envoy and a picker, to a proxy with the built-in engine; and what the picker counts
//! of each of their APIs.

use super::testbed::{metric_is, until};
use super::tokens::gateway;
use crate::clients::{node_script, python_script};
use crate::support::{MODEL, Up, client_script, succeeds, up};
use serde_json::{Value, json};
use stator_tests::envoy::Envoy;
use stator_tests::http::Client;
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::tooling::installed;
use std::path::Path;

/// A server, and what stands before it.
struct Gateway {
    up: Up,
    picker: Picker,
    envoy: Envoy,
    _file: EndpointsFile,
}

impl Gateway {
    /// `None`, and said so, where Envoy is missing.
    async fn start() -> Option<Self> {
        installed("STATOR_TEST_ENVOY", "Envoy")?;
        let up = up(&["--workers=1"]).await;
        let file = EndpointsFile::of(&[up.client.address()]);
        // The proxy itself refuses fields that no API has.
        let flags = ["--pass-fields=*", "--error-format=openai"];
        let (picker, envoy) = gateway(&file, &flags).await?;
        Some(Self { up, picker, envoy, _file: file })
    }
}

#[tokio::test]
async fn clients_are_content_behind_a_gateway() {
    let Some(gateway) = Gateway::start().await else { return };
    let python = std::env::var("STATOR_TEST_PYTHON")
        .expect("STATOR_TEST_PYTHON names a Python with the official clients; `tests/run` sets it");
    let served = (gateway.envoy.address(), MODEL);
    for script in [
        "openai_client.py",
        "openai_tools.py",
        "responses_client.py",
        "embeddings_client.py",
        "anthropic_client.py",
    ] {
        client_script(Path::new(&python), script, served, &gateway.picker.process).await;
    }
    let others = [
        node_script("openai_client.mjs"),
        node_script("anthropic_client.mjs"),
        node_script("vercel_client.mjs"),
        python_script("venv", "langchain_client.py"),
        python_script("venv", "litellm_client.py"),
        python_script("venv", "instructor_client.py"),
    ];
    let url = format!("http://{}", gateway.envoy.address());
    for mut command in others.into_iter().flatten() {
        command.args([&*url, MODEL]);
        succeeds(command, &gateway.picker.process).await;
    }
}

/// A request of each API, and the counts of its answer: tokens of the prompt and of the answer.
#[tokio::test]
async fn the_picker_counts_every_api_of_clients() {
    let Some(gateway) = Gateway::start().await else { return };
    let Gateway { picker, envoy, up, .. } = &gateway;
    let turns = json!([{"role": "user", "content": "Tell me about the garden."}]);
    let texts = ["The garden was full of flowers.", "Two dogs ran."];
    // So many that the answer's counts stand far from one of its ends.
    let many: Vec<_> =
        (0..60).map(|n| format!("Document {n} about a garden by the sea.")).collect();
    let (mut requests, mut prompts, mut answers) = (0.0, 0.0, 0.0);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": turns, "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": "It was a", "max_tokens": 4})),
        ("/v1/responses", json!({"input": "Tell me about the garden.", "max_output_tokens": 16})),
        ("/v1/messages", json!({"messages": turns, "max_tokens": 4})),
        ("/v1/embeddings", json!({"input": texts})),
        ("/v1/rerank", json!({"query": "a garden", "documents": many})),
        ("/v2/rerank", json!({"query": "a garden", "documents": texts})),
        ("/v1/score", json!({"text_1": "a garden", "text_2": texts})),
        ("/pooling", json!({"input": texts})),
    ] {
        for streams in [false, true] {
            if streams && body.get("max_tokens").or(body.get("max_output_tokens")).is_none() {
                continue;
            }
            let mut body = body.clone();
            body["model"] = json!(MODEL);
            let usage = used(&envoy.client(), path, body, streams).await;
            requests += 1.0;
            prompts += count(&usage, &["prompt_tokens", "input_tokens", "cache_read_input_tokens"]);
            answers += count(&usage, &["completion_tokens", "output_tokens"]);
            for (of, sum) in [("input", prompts), ("output", answers)] {
                metric_is(picker, &format!("llm_d_epp_request_{of}_tokens_sum"), sum).await;
            }
            let counted = format!("llm_d_epp_request_total{{model_name=\"{MODEL}\"");
            until(&format!("{path} is counted"), async || {
                (by_label(picker, &counted).await == requests).then_some(())
            })
            .await;
        }
    }
    assert_eq!(picker.metric("llm_d_epp_request_error_total").await, 0.0, "{}", up.process.log());
}

/// The counts that an answer names.
async fn used(client: &Client, path: &str, mut body: Value, streams: bool) -> Value {
    if !streams {
        let reply = client.post(path, &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", String::from_utf8_lossy(&reply.body));
        return reply.json()["usage"].clone();
    }
    body["stream"] = json!(true);
    if path.ends_with("/completions") {
        body["stream_options"] = json!({"include_usage": true});
    }
    let mut usage = json!({});
    let answer = client.stream(path, &body).await.end().await.expect("it is whole");
    let answer = String::from_utf8_lossy(&answer);
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    for event in events.filter_map(|event| serde_json::from_str::<Value>(event).ok()) {
        // Messages tell their counts in two events, the others in one.
        for holder in [&event, &event["message"], &event["response"]] {
            let Some(said) = holder["usage"].as_object() else { continue };
            said.iter().for_each(|(name, value)| usage[name] = value.clone());
        }
    }
    usage
}

/// The sum of some counts, as far as they are there.
fn count(usage: &Value, names: &[&str]) -> f64 {
    names.iter().filter_map(|name| usage[name].as_f64()).sum()
}

/// The sum of series that begin so.
async fn by_label(picker: &Picker, start: &str) -> f64 {
    let page = picker.side.get("/metrics").await.body;
    let page = String::from_utf8_lossy(&page).into_owned();
    let samples = page.lines().filter(|line| line.starts_with(start));
    samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}
