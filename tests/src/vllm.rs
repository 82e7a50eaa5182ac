//! A real vLLM that computes on the CPU: what an agent needs to start one, and servers without an
//! agent to compare with.

use crate::http::Client;
use crate::soon;
use crate::tooling::{Tool, installed};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// Tokens of a KV block, the fewest that vLLM takes on a CPU.
pub const BLOCK_SIZE: usize = 32;
/// Most tokens of prompt and answer together.
pub const CONTEXT: usize = 2048;
/// KV blocks of one engine: so few that a test can fill them.
pub const TOTAL_BLOCKS: usize = 256;
/// The model's name in requests.
pub const MODEL: &str = "tiny";

/// Bytes of a block: keys and values of two layers and two heads of 32 numbers of two bytes.
const BLOCK_BYTES: usize = BLOCK_SIZE * 2 * 2 * 2 * 32 * 2;
/// Port of every server; each has an address of its own.
const PORT: u16 = 8000;
/// Port where a server exchanges what others need to read its KV.
const SIDE_CHANNEL_PORT: u16 = 5600;
/// What a server prints on its way, each within the deadline of all tests. Together they may take
/// longer, on a machine with two cores and cold files.
pub const WAY: [&str; 4] = [
    "non-default args",
    "Resolved architecture",
    "Starting to load model",
    "Application startup complete",
];

/// Runs the rest of the line in place of this shell, and beside it a process that ends the whole
/// group once standard input is closed, which it is when the test program ends in any way.
const GUARDED: &str = r#"
exec 3<&0
(read -r _ <&3; kill -s KILL -- -$$) >/dev/null 2>&1 &
exec 3<&-
exec "$@" </dev/null
"#;

/// Whether the suites of all engines were asked for, those that take long and much memory too:
/// `tests/run --engines all`. Says so where they were not, and the test that asked should return.
pub fn all_engines(what: &str) -> bool {
    let all = std::env::var("STATOR_TEST_ENGINES").as_deref() == Ok("all");
    if !all {
        // Past the test harness, which hides what passing tests print.
        let asked = "tests/run --engines all runs it";
        let _ = writeln!(std::io::stderr().lock(), "not run: {what}: {asked}");
    }
    all
}

/// An installed vLLM and its model.
#[derive(Clone, Debug)]
pub struct VllmBed {
    program: PathBuf,
    model: PathBuf,
    /// Locked while it lives: several engines that start at once take longer than any deadline.
    _turn: Arc<File>,
}

/// What a server does with KV of other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VllmRole {
    /// Nothing.
    Aggregated,
    /// It computes prompts for others, which read their KV over NIXL.
    Prefill,
    /// It reads KV of prompts that others computed.
    Decode,
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct VllmServer {
    address: SocketAddr,
    directory: TempDir,
    tool: Tool,
}

impl VllmBed {
    /// What `tests/run` installed, for one test at a time: this waits for its turn. `None`, and said
    /// so, where nothing is installed.
    ///
    /// # Panics
    ///
    /// When it is missing in continuous integration.
    pub fn find() -> Option<Self> {
        let program = installed("STATOR_TEST_VLLM", "vLLM")?;
        let model = installed("STATOR_TEST_VLLM_MODEL", "vLLM's model")?;
        let turn = File::create(model.with_extension("lock")).expect("beside the model");
        turn.lock().expect("a file can be locked");
        let turn = Arc::new(turn);
        Some(Self { program, model, _turn: turn })
    }

    /// The program, as an agent's `--engine-program`.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The model's folder, as an agent's `--model`.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// The folder of a LoRA adapter for the model.
    pub fn adapter(&self) -> PathBuf {
        self.model.with_file_name("adapter")
    }

    /// Environment of an engine, and so of the agent that starts it: nothing leaves the machine,
    /// one core is enough, and equal prompts have equal hashes in all engines.
    pub fn environment() -> Vec<(&'static str, &'static str)> {
        vec![
            ("DO_NOT_TRACK", "1"),
            ("GLOO_SOCKET_IFNAME", "lo"),
            ("HF_HUB_OFFLINE", "1"),
            ("OMP_NUM_THREADS", "1"),
            ("PYTHONHASHSEED", "0"),
            ("TRANSFORMERS_OFFLINE", "1"),
            ("UCX_NET_DEVICES", "lo"),
            ("UCX_TLS", "tcp,self,sm"),
            ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1"),
            ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
            // One process and half a gigabyte less.
            ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
            ("VLLM_HOST_IP", "127.0.0.1"),
            ("VLLM_NO_USAGE_STATS", "1"),
            // To reset the cache, pause and sleep.
            ("VLLM_SERVER_DEV_MODE", "1"),
        ]
    }

    /// The same for an engine of several data-parallel ranks: each has processes of its own, and
    /// no adapters can be loaded while it runs.
    pub fn environment_of_ranks() -> Vec<(&'static str, &'static str)> {
        let mut environment = Self::environment();
        environment.extend([
            ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0"),
            ("VLLM_ENABLE_V1_MULTIPROCESSING", "1"),
        ]);
        environment
    }

    /// The engine's own flags, which an agent takes after `--`.
    pub fn flags(role: VllmRole) -> Vec<String> {
        let memory = (TOTAL_BLOCKS * BLOCK_BYTES).to_string();
        let (block_size, context) = (BLOCK_SIZE.to_string(), CONTEXT.to_string());
        let mut flags = vec!["--enforce-eager", "--dtype", "bfloat16", "--max-num-seqs", "32"];
        flags.extend(["--block-size", &block_size, "--max-model-len", &context]);
        flags.extend(["--kv-cache-memory-bytes", &memory]);
        flags.extend(["--prefix-caching-hash-algo", "sha256_cbor"]);
        if role != VllmRole::Aggregated {
            flags.extend(["--kv-transfer-config.kv_buffer_device", "cpu"]);
        }
        flags.into_iter().map(str::to_owned).collect()
    }

    /// Starts a server without an agent, with further flags, and waits until it serves.
    ///
    /// # Panics
    ///
    /// When it does not come to serve, with what it printed.
    pub async fn serve(&self, role: VllmRole, extra: &[&str]) -> VllmServer {
        let address = unused_address();
        let directory = TempDir::new().expect("a temporary directory");
        let host = address.ip().to_string();
        let events = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint(&directory, "events"),
            "replay_endpoint": endpoint(&directory, "replay"),
            "topic": "kv-events",
        });
        let mut command = Command::new("sh");
        command.args(["-c", GUARDED, "sh"]).arg(&self.program).arg("serve").arg(&self.model);
        command.args(["--served-model-name", MODEL, "--host", &host]);
        command.args(["--port", &PORT.to_string(), "--kv-events-config", &events.to_string()]);
        command.args(["--enable-scale-out", "--enable-prompt-tokens-details"]);
        command.args(connector(role)).args(Self::flags(role)).args(extra);
        command.envs(Self::environment()).env("VLLM_NIXL_SIDE_CHANNEL_HOST", &host);
        command.env("VLLM_NIXL_SIDE_CHANNEL_PORT", SIDE_CHANNEL_PORT.to_string());
        let tool = Tool::start(command.process_group(0));
        for mark in WAY {
            tool.line(mark, |line| line.contains(mark)).await;
        }
        let server = VllmServer { address, directory, tool };
        // It says so just before it listens.
        soon("a server that listens", async {
            while TcpStream::connect(address).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let health = server.client().get("/health").await;
        assert!(health.status.is_success(), "{}:\n{}", health.status, server.log());
        server
    }
}

impl VllmServer {
    /// Where it serves HTTP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it serves HTTP, as an agent's `--attach`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// ZMQ endpoints of its KV events and of their replay.
    pub fn events(&self) -> [String; 2] {
        ["events", "replay"].map(|name| endpoint(&self.directory, name))
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Its greedy answer to a prompt of token ids, whatever its end-of-text token, and all that it
    /// says about it.
    ///
    /// # Panics
    ///
    /// When it refuses, or does not answer within the deadline.
    pub async fn generate(&self, prompt: &[u32], max_tokens: u32) -> (Vec<u32>, Value) {
        self.generate_as(MODEL, prompt, max_tokens).await
    }

    /// As [`VllmServer::generate`], by an adapter of the model.
    ///
    /// # Panics
    ///
    /// As [`VllmServer::generate`].
    pub async fn generate_as(
        &self,
        model: &str,
        prompt: &[u32],
        max_tokens: u32,
    ) -> (Vec<u32>, Value) {
        let sampling = json!({ "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true });
        let body = json!({ "model": model, "token_ids": prompt, "sampling_params": sampling });
        let reply = self.post("/inference/v1/generate", &body).await;
        let tokens = serde_json::from_value(reply["choices"][0]["token_ids"].clone());
        (tokens.unwrap_or_else(|error| panic!("{error} in {reply}")), reply)
    }

    /// Posts JSON and returns the answer.
    ///
    /// # Panics
    ///
    /// When it refuses, or does not answer within the deadline.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let reply = self.client().post(path, body).await;
        let text = String::from_utf8_lossy(&reply.body);
        assert!(reply.status.is_success(), "{path}: {} {text}\n{}", reply.status, self.log());
        serde_json::from_slice(&reply.body).unwrap_or_default()
    }

    /// The sum of a counter or gauge over all its labels that contain `labels`.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        let reply = self.client().get("/metrics").await;
        let page = String::from_utf8_lossy(&reply.body).into_owned();
        let is_it =
            |series: &str| series.split('{').next() == Some(name) && series.contains(labels);
        let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let values: Vec<f64> = lines
            .filter(|(series, _)| is_it(series))
            .map(|(_, value)| value.parse().expect("a value of the page"))
            .collect();
        assert!(!values.is_empty(), "no {name} with {labels:?} in:\n{page}");
        values.iter().sum()
    }

    /// The process that computes; beside it another one serves HTTP.
    ///
    /// # Panics
    ///
    /// When it has not said who that is.
    pub fn core(&self) -> u32 {
        core(&self.log())
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        self.tool.log()
    }
}

/// The process that computes, in an engine whose log this is: the one that was named last.
///
/// # Panics
///
/// When none is named.
pub fn core(log: &str) -> u32 {
    let said = log.rsplit("(EngineCore pid=").next().filter(|rest| rest.len() < log.len());
    let process = said.and_then(|rest| rest.split(')').next()?.parse().ok());
    process.unwrap_or_else(|| panic!("the engine's core is not named:\n{log}"))
}

/// Flags for exchanging KV, part by part, so that others can be added.
fn connector(role: VllmRole) -> Vec<&'static str> {
    let role = match role {
        VllmRole::Aggregated => return Vec::new(),
        VllmRole::Prefill => "kv_producer",
        VllmRole::Decode => "kv_consumer",
    };
    let connector = ["--kv-transfer-config.kv_connector", "NixlConnector"];
    [connector, ["--kv-transfer-config.kv_role", role]].concat()
}

fn endpoint(directory: &TempDir, name: &str) -> String {
    format!("ipc://{}", directory.path().join(name).display())
}

/// A loopback address of its own for each server, so that no port is ever taken: 127.255.*, where
/// nothing else of the tests is.
fn unused_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    // Programs that run at once keep apart; where they do not, the next address is free.
    let program = 1 + (std::process::id() % 253) as u8;
    let address = || {
        SocketAddr::from((
            Ipv4Addr::new(127, 255, program, NEXT.fetch_add(1, Ordering::Relaxed)),
            PORT,
        ))
    };
    let mut addresses = (0..=u8::MAX).map(|_| address());
    let free = addresses.find(|address| TcpListener::bind(address).is_ok());
    free.expect("fewer servers run than there are addresses")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_answers_greedily_and_says_what_it_had_cached() {
        let Some(bed) = VllmBed::find() else { return };
        let server = bed.serve(VllmRole::Aggregated, &[]).await;
        let prompt: Vec<u32> = (0..100).map(|i| 100 + i * 37 % 7000).collect();
        let cached = "/usage/prompt_tokens_details/cached_tokens";
        let (first, reply) = server.generate(&prompt, 8).await;
        assert_eq!((first.len(), reply.pointer(cached)), (8, Some(&json!(0))));
        let (second, reply) = server.generate(&prompt, 8).await;
        assert_eq!((second, reply.pointer(cached)), (first, Some(&json!(3 * BLOCK_SIZE))));
        assert_eq!(server.metric("vllm:prefix_cache_hits_total", "tiny").await, 96.0);
        let [config, _] = server.events().map(|endpoint| endpoint.replace("ipc://", ""));
        assert!(Path::new(&config).exists(), "events are published at {config}");
        let blocks = format!("num_gpu_blocks=\"{TOTAL_BLOCKS}\"");
        assert_eq!(server.metric("vllm:cache_config_info", &blocks).await, 1.0);
    }
}
