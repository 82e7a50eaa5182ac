//! A real SGLang that computes on the CPU: what an agent needs to start one.

use crate::process::descendant;
use crate::stock::{BLOCK_SIZE, CONTEXT, Role, TOTAL_BLOCKS};
use serde_json::{Value, json};

/// What a server prints on its way, each once.
pub const WAY: [&str; 3] = ["server_args={", "Load weight begin", "fired up and ready to roll"];

/// Environment of a server, and so of the agent that starts it: nothing leaves the machine, and
/// one core is enough for each rank.
pub fn environment(ranks: u16) -> Vec<(&'static str, &'static str)> {
    let mut environment = vec![
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("HF_HUB_OFFLINE", "1"),
        // KV between engines goes over TCP, and stays on this machine.
        ("MC_TCP_BIND_ADDRESS", "127.0.0.1"),
        ("MOONCAKE_PROTOCOL", "tcp"),
        ("OMP_NUM_THREADS", "1"),
        ("SGLANG_HOST_IP", "127.0.0.1"),
        ("SGLANG_USE_CPU_ENGINE", "1"),
        ("TRANSFORMERS_OFFLINE", "1"),
    ];
    if ranks > 1 {
        // Cores are given out by the memory that is next to them, and there is one for both.
        environment.push(("SGLANG_CPU_OMP_THREADS_BIND", "0|1"));
    }
    environment
}

/// The process that computes, below the one that an agent says last that it started.
pub(crate) fn core(log: &str) -> u32 {
    let events = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let started = events.into_iter().find(|event| event["message"] == "engine started");
    let process = started.and_then(|event| event["pid"].as_u64()).expect("an engine was started");
    descendant(process as u32, "sglang::scheduler")
}

/// The engine's own flags, which an agent takes after `--`. Its numbers are long: in short ones a
/// prompt that holds an answer so far, and that answer as it came, are often followed by another
/// token.
pub fn flags(role: Role, ranks: u16) -> Vec<String> {
    let (block_size, context) = (BLOCK_SIZE.to_string(), CONTEXT.to_string());
    let (pool, ranks) = ((TOTAL_BLOCKS * BLOCK_SIZE).to_string(), ranks.to_string());
    let mut flags = vec!["--device", "cpu", "--dtype", "float32", "--max-running-requests", "32"];
    flags.extend(["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]);
    flags.extend(["--grammar-backend", "xgrammar", "--disable-cuda-graph"]);
    flags.extend(["--disable-overlap-schedule", "--page-size", &block_size]);
    // Otherwise each uses up a core while it waits, and three of them starve those that start. KV that
    // comes meanwhile is noticed up to a second later.
    flags.push("--sleep-on-idle");
    flags.extend(["--context-length", &context, "--max-total-tokens", &pool]);
    if ranks != "1" {
        flags.extend(["--dp-size", &ranks]);
    }
    if role == Role::Decode {
        // The other ways need a GPU.
        flags.extend(["--disaggregation-decode-retraction-backup", "cpu_tensor"]);
    }
    flags.into_iter().map(str::to_owned).collect()
}

/// Path and body that ask for a greedy answer, whatever the end-of-text token.
pub(crate) fn question(prompt: &[u32], max_tokens: u32) -> (&'static str, Value) {
    let sampling = json!({ "temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": true });
    ("/generate", json!({ "input_ids": prompt, "sampling_params": sampling }))
}
