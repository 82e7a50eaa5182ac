//! Clients that people use, each as its users do, against the built-in engine.
//!
//! The two official ones for Python are in the tests of their APIs too; over Envoy and a picker clients
//! are in [`crate::epp`], against a vLLM in [`crate::vllm_clients`]. What was run with which version is in `docs/compatibility.md`.

use crate::support::{MODEL, succeeds, up};
use stator_tests::tooling::installed;
use std::io::Write;
use std::process::Command;

/// Folder of the clients.
const CLIENTS: &str = "STATOR_TEST_CLIENTS";

/// A script of `tests/python` by the Python of a virtual environment of the clients: `venv`, `all` or
/// `others`.
pub(crate) fn python_script(environment: &str, script: &str) -> Option<Command> {
    let clients = installed(CLIENTS, "clients in Python")?;
    let mut command = Command::new(clients.join(environment).join("bin/python"));
    command.arg(format!("{}/python/{script}", env!("CARGO_MANIFEST_DIR")));
    Some(command)
}

/// A script of `tests/node`.
pub(crate) fn node_script(script: &str) -> Option<Command> {
    let clients = installed(CLIENTS, "clients in JavaScript")?;
    let mut command = Command::new(clients.join("venv/bin/node"));
    // The packages are beside the link to the scripts, not beside the scripts.
    command.args(["--preserve-symlinks", "--preserve-symlinks-main"]);
    command.arg(clients.join("node/scripts").join(script));
    Some(command)
}

async fn in_python(environment: &str, script: &str) {
    if let Some(command) = python_script(environment, script) {
        run(command).await;
    }
}

async fn in_node(script: &str) {
    if let Some(command) = node_script(script) {
        run(command).await;
    }
}

/// Runs a script against an engine of its own; the script hears the address of KServe's gRPC, too.
async fn run(mut command: Command) {
    let mut up = up(&["--workers=1", "--kserve-grpc-port=0"]).await;
    let inference = up.process.event("listening for KServe's gRPC").await;
    let inference = inference["address"].as_str().expect("an address");
    let url = format!("http://{}", up.client.address());
    command.args([&*url, MODEL, inference]);
    succeeds(command, &up.process).await;
}

#[tokio::test]
async fn openai_for_node() {
    in_node("openai_client.mjs").await;
}

#[tokio::test]
async fn anthropic_for_typescript() {
    in_node("anthropic_client.mjs").await;
}

#[tokio::test]
async fn vercels_ai_sdk() {
    in_node("vercel_client.mjs").await;
}

#[tokio::test]
async fn langchain() {
    in_python("venv", "langchain_client.py").await;
}

#[tokio::test]
async fn litellm() {
    in_python("venv", "litellm_client.py").await;
}

#[tokio::test]
async fn instructor() {
    in_python("venv", "instructor_client.py").await;
}

#[tokio::test]
async fn cohere() {
    in_python("venv", "cohere_client.py").await;
}

/// Whether the clients of `tests/run --clients all` were asked for. Says so where they were not.
fn all_clients(what: &str) -> bool {
    let all = std::env::var_os("STATOR_TEST_ALL_CLIENTS").is_some();
    if !all {
        // Past the test harness, which hides what passing tests print.
        let asked = "tests/run --clients all runs it";
        let _ = writeln!(std::io::stderr().lock(), "not run: {what}: {asked}");
    }
    all
}

#[tokio::test]
async fn loops_of_agents() {
    if all_clients("loops of agents") {
        in_python("all", "agent_loops.py").await;
    }
}

#[tokio::test]
async fn coding_agents() {
    if all_clients("coding agents") {
        in_python("venv", "coding_agents.py").await;
    }
}

#[tokio::test]
async fn triton() {
    if all_clients("Triton's client") {
        in_python("all", "triton_client.py").await;
    }
}

#[tokio::test]
async fn evaluations() {
    if all_clients("evaluations") {
        in_python("all", "evaluations.py").await;
    }
}

#[tokio::test]
async fn llama_index() {
    if all_clients("llama-index") {
        in_python("others", "llama_index_client.py").await;
    }
}

#[tokio::test]
async fn load_generators() {
    if all_clients("load generators") {
        in_python("others", "load_generators.py").await;
    }
}
