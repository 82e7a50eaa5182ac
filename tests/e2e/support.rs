//! What the tests start, and how they find it.

use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::Process;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// The bundled model's name.
pub(crate) const MODEL: &str = "stator-tiny";

/// A running `stator up` on a free port.
pub(crate) struct Up {
    pub process: Process,
    pub client: Client,
}

/// Starts `stator up` with further flags and waits until it serves.
pub(crate) async fn up(flags: &[&str]) -> Up {
    let mut args = vec!["up", "--http-port=0"];
    args.extend(flags);
    up_with(Process::start(&args)).await
}

/// Waits until a started `stator up` serves.
pub(crate) async fn up_with(mut process: Process) -> Up {
    let client = Client::new(ready(&mut process).await);
    Up { process, client }
}

/// Waits until a proxy serves a model, and says where.
pub(crate) async fn ready(process: &mut Process) -> SocketAddr {
    let listening = process.event("listening").await;
    process.event("serving a model").await;
    let address = listening["address"].as_str().expect("an address");
    address.parse().expect("an address and a port")
}

/// A greedy chat request.
pub(crate) fn chat(text: &str, max_tokens: u32) -> Value {
    json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": true,
    })
}

/// The text of a chat response or of the chunks of one.
pub(crate) fn text(response: &Value) -> String {
    response["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}

/// The joined deltas of a stream's chunks.
pub(crate) fn joined(chunks: &[Value]) -> String {
    let delta = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(String::from);
    chunks.iter().filter_map(delta).collect()
}

/// Runs a script of `tests/python` with an official client against `up`.
pub(crate) async fn official_client(script: &str, up: &Up) {
    let python = std::env::var("STATOR_TEST_PYTHON")
        .expect("STATOR_TEST_PYTHON names a Python with the official clients; `tests/run` sets it");
    client_script(python.as_ref(), script, (up.client.address(), MODEL), &up.process).await;
}

/// Runs a script of `tests/python` against a model that is served at an address. Where the script
/// fails, the log of `process` tells why.
pub(crate) async fn client_script(
    python: &Path,
    script: &str,
    (address, model): (SocketAddr, &str),
    process: &Process,
) {
    let mut command = Command::new(python);
    command.arg(format!("{}/python/{script}", env!("CARGO_MANIFEST_DIR")));
    command.args([&format!("http://{address}"), model]);
    succeeds(command, process).await;
}

/// Waits until a command has ended well. Where it fails, the log of `process` tells why.
pub(crate) async fn succeeds(mut command: Command, process: &Process) {
    let ran = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(ran.status.success(), "{}\n{}", said.concat(), process.log());
}
