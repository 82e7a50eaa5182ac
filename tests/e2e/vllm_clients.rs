//! Clients that people use, each as its users do, against a real vLLM behind an agent and the proxy.
//!
//! Their scripts ask for what vLLM alone computes here: its grammars, its sampling, its logprobs and its
//! cached prefixes. The other surfaces of these clients are in [`crate::clients`].

use crate::agents::Agent;
use crate::clients::{node_script, python_script};
use crate::support::ready;
use stator_tests::process::Process;
use stator_tests::stock::{Bed, Engine, MODEL, Role, START_DEADLINE};
use std::path::{Path, PathBuf};
use std::process::Command;

#[tokio::test]
async fn official_clients_get_forms_calls_and_sampling_of_a_vllm() {
    let scripts = [python_script("venv", "vllm_clients.py"), node_script("vllm_clients.mjs")];
    let [Some(python), Some(node)] = scripts else { return };
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let bed = bed.with_model(without_blanks(&bed, home.path()));
    let who = ("aggregated", Role::Aggregated);
    let started = Agent::start_with(&bed, home.path(), who, (&[], 1));
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let listening = proxy.event("listening").await;
    let url = format!("http://{}", listening["address"].as_str().unwrap());
    // The clients load while the engine starts.
    let mut scripts = [python, node].map(|mut command| {
        command.args([&*url, MODEL]);
        Process::run(command.into())
    });
    let agent = Agent::ready(Engine::Vllm, started).await;
    ready(&mut proxy).await;
    // Alone at first: vLLM computes not quite alike beside other prompts.
    for script in &mut scripts {
        script.nth_line_within(START_DEADLINE, "pauses", 0).await;
        script.tell("go").await;
        script.nth_line_within(START_DEADLINE, "pauses", 1).await;
    }
    for script in &mut scripts {
        script.tell("go").await;
    }
    for script in &mut scripts {
        let status = script.ended_within(START_DEADLINE).await;
        assert!(status.success(), "{}\n{}", script.log(), agent.process.log());
    }
}

/// The model, made to write forms of JSON without thousands of blanks.
fn without_blanks(bed: &Bed, home: &Path) -> PathBuf {
    let copy = home.join("model");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/engines/without_blanks.py");
    let mut command = Command::new(bed.program().with_file_name("python"));
    let ran = command.arg(script).arg(bed.model()).arg(&copy).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    copy
}
