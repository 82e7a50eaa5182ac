//! A real vLLM that computes on the CPU: what an agent needs to start one, and servers without an
//! agent to compare with.

use crate::http::Client;
use crate::soon;
use crate::stock::{BLOCK_SIZE, Bed, CONTEXT, Engine, MODEL, Role, START_DEADLINE, TOTAL_BLOCKS};
use crate::tooling::Tool;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// Bytes of a block: keys and values of two layers and two heads of 32 numbers of two bytes.
const BLOCK_BYTES: usize = BLOCK_SIZE * 2 * 2 * 2 * 32 * 2;
/// Port of every server; each has an address of its own.
const PORT: u16 = 8000;
/// Port where a server exchanges what others need to read its KV.
const SIDE_CHANNEL_PORT: u16 = 5600;
/// What a server prints on its way, each within the deadline of all tests where it starts alone.
/// Together they may take longer, on a machine with two cores and cold files.
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

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct VllmServer {
    address: SocketAddr,
    directory: TempDir,
    tool: Tool,
}

/// Environment of an engine, and so of the agent that starts it: nothing leaves the machine, one
/// core is enough, and equal prompts have equal hashes in all engines. Several ranks have processes
/// of their own, and load no adapters while they run.
pub fn environment(ranks: u16) -> Vec<(&'static str, &'static str)> {
    let alone = if ranks == 1 { "1" } else { "0" };
    vec![
        ("DO_NOT_TRACK", "1"),
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("HF_HUB_OFFLINE", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("PYTHONHASHSEED", "0"),
        ("TRANSFORMERS_OFFLINE", "1"),
        ("UCX_NET_DEVICES", "lo"),
        ("UCX_TLS", "tcp,self,sm"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", alone),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        // One process and half a gigabyte less.
        ("VLLM_ENABLE_V1_MULTIPROCESSING", if ranks == 1 { "0" } else { "1" }),
        ("VLLM_HOST_IP", "127.0.0.1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        // To reset the cache, pause and sleep.
        ("VLLM_SERVER_DEV_MODE", "1"),
    ]
}

/// The engine's own flags, which an agent takes after `--`.
pub fn flags(role: Role, ranks: u16) -> Vec<String> {
    let memory = (TOTAL_BLOCKS * BLOCK_BYTES).to_string();
    let (block_size, context) = (BLOCK_SIZE.to_string(), CONTEXT.to_string());
    let ranks = ranks.to_string();
    let mut flags = vec!["--enforce-eager", "--dtype", "bfloat16", "--max-num-seqs", "32"];
    flags.extend(["--block-size", &block_size, "--max-model-len", &context]);
    flags.extend(["--kv-cache-memory-bytes", &memory]);
    flags.extend(["--prefix-caching-hash-algo", "sha256_cbor"]);
    if ranks != "1" {
        // One server for all ranks is enough, and they wait for each other for two minutes only.
        flags.extend(["--data-parallel-size", &ranks, "--api-server-count", "1"]);
    }
    if role != Role::Aggregated {
        flags.extend(["--kv-transfer-config.kv_buffer_device", "cpu"]);
    }
    flags.into_iter().map(str::to_owned).collect()
}

/// Path and body that ask for a greedy answer, whatever the end-of-text token.
pub(crate) fn question(model: &str, prompt: &[u32], max_tokens: u32) -> (&'static str, Value) {
    let sampling = json!({ "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true });
    let body = json!({ "model": model, "token_ids": prompt, "sampling_params": sampling });
    ("/inference/v1/generate", body)
}

/// Starts a server without an agent, with further flags, and waits until it serves.
///
/// # Panics
///
/// When it does not come to serve, with what it printed.
pub async fn serve(bed: &Bed, role: Role, extra: &[&str]) -> VllmServer {
    serve_with(bed, role, extra, &[]).await
}

/// Starts a server like [`serve`], with further environment variables.
///
/// # Panics
///
/// The same errors as [`serve`].
pub async fn serve_with(
    bed: &Bed,
    role: Role,
    extra: &[&str],
    variables: &[(&str, &str)],
) -> VllmServer {
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
    command.args(["-c", GUARDED, "sh"]).arg(bed.program()).arg("serve").arg(bed.model());
    command.args(["--served-model-name", MODEL, "--host", &host]);
    command.args(["--port", &PORT.to_string(), "--kv-events-config", &events.to_string()]);
    command.args(["--enable-scale-out", "--enable-prompt-tokens-details"]);
    command.args(connector(role)).args(flags(role, 1)).args(extra);
    command.envs(environment(1)).envs(variables.iter().copied());
    command.env("VLLM_NIXL_SIDE_CHANNEL_HOST", &host);
    command.env("VLLM_NIXL_SIDE_CHANNEL_PORT", SIDE_CHANNEL_PORT.to_string());
    let tool = Tool::start(command.process_group(0));
    for mark in WAY {
        tool.line_within(START_DEADLINE, mark, |line| line.contains(mark)).await;
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
        let (path, body) = question(model, prompt, max_tokens);
        let reply = self.post(path, &body).await;
        (Engine::Vllm.answer(&reply), reply)
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
fn connector(role: Role) -> Vec<&'static str> {
    let role = match role {
        Role::Aggregated => return Vec::new(),
        Role::Prefill => "kv_producer",
        Role::Decode => "kv_consumer",
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
        let Some(bed) = Bed::find(Engine::Vllm) else { return };
        let server = serve(&bed, Role::Aggregated, &[]).await;
        let prompt: Vec<u32> = (0..100).map(|i| 100 + i * 37 % 7000).collect();
        let cached = "/usage/prompt_tokens_details/cached_tokens";
        let (first, reply) = server.generate(&prompt, 8).await;
        assert_eq!((first.len(), reply.pointer(cached)), (8, Some(&json!(0))));
        let (second, reply) = server.generate(&prompt, 8).await;
        assert_eq!((second, reply.pointer(cached)), (first, Some(&json!(3 * BLOCK_SIZE))));
        assert_eq!(server.metric("vllm:prefix_cache_hits_total", "tiny").await, 96.0);
        let [config, _] = server.events().map(|endpoint| endpoint.replace("ipc://", ""));
        assert!(std::path::Path::new(&config).exists(), "events are published at {config}");
        let blocks = format!("num_gpu_blocks=\"{TOTAL_BLOCKS}\"");
        assert_eq!(server.metric("vllm:cache_config_info", &blocks).await, 1.0);
    }
}
