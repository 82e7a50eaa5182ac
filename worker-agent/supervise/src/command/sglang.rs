//! SGLang's command line. Source: SGLang 0.5.23, `ServerArgs`.

use super::flags::{Dialect, Flags};
use super::{
    CommandError, EngineCommand, Key, KvTiers, Options, host, python_env, python_path, secrets,
    words,
};
use serde_json::json;
use stator_protos::discovery::Role;
use std::path::PathBuf;

const DIALECT: Dialect = Dialect {
    aliases: &[
        ("model", "model-path"),
        ("tp", "tp-size"),
        ("tensor-parallel-size", "tp-size"),
        ("dp", "dp-size"),
        ("data-parallel-size", "dp-size"),
        // What older versions call it.
        ("stream-output", "incremental-streaming-output"),
    ],
    reserved: &[
        ("model-path", "with --model before `--`"),
        ("served-model-name", "with --model-name before `--`"),
        ("host", "which reaches it on this address only"),
        ("port", "with --engine-port before `--`"),
        ("kv-events-config", "which follows the events"),
        ("disaggregation-mode", "with --role before `--`"),
        ("disaggregation-transfer-backend", "with --connector before `--`"),
        ("disaggregation-bootstrap-port", "which tells the decode workers"),
        ("api-key", "with --engine-api-key-file before `--`"),
    ],
    repeatable: &[],
};

/// Default KV connector.
const CONNECTOR: &str = "mooncake";

/// Flags that the agent relies on: load metrics, cached-token counts, and each token once instead
/// of all so far.
const DEFAULTS: [&str; 3] =
    ["enable-metrics", "enable-cache-report", "incremental-streaming-output"];

/// The flag that chooses the storage below the engine's own host memory.
const STORAGE: &str = "hicache-storage-backend";

/// Module of the storage that is the agent's tiers.
const TIERS: &str = "sglang_0_5";

/// Builds the command line of an SGLang server.
///
/// The key goes into a file that the server reads with `--config`. A server takes one such file; a
/// user with one of their own puts the key there (`api-key`).
///
/// # Errors
///
/// [`CommandError`] where the user's flags contradict ours or themselves.
pub fn sglang(options: &Options) -> Result<EngineCommand, CommandError> {
    options.refuse_encode("sglang")?;
    let flags = options.flags(&DIALECT)?;
    if sleeps_over_kv(options) {
        tracing::warn!("--sleep-on-idle: SGLang sleeps up to 1 s while a request waits for KV");
    }
    let mut args = Vec::new();
    if options.program.is_none() {
        args.extend(words(["-m", "sglang.launch_server"]));
    }
    args.extend(words(["--model-path", &options.model]));
    args.extend(words(["--served-model-name", &options.served_name]));
    args.extend(words(["--host", &host(options.http.ip())]));
    args.extend(words(["--port", &options.http.port().to_string()]));
    if let Some(events) = &options.events {
        let config = json!({
            "publisher": "zmq",
            "endpoint": events.publish,
            "replay_endpoint": events.replay,
            "topic": events.topic,
        });
        args.extend(words(["--kv-events-config", &config.to_string()]));
    }
    args.extend(disaggregation(options));
    if let Some(tiers) = &options.kv_tiers {
        args.extend(kv_tiers(options, &flags, tiers)?);
    }
    args.extend(DEFAULTS.iter().filter(|flag| !flags.has(flag)).map(|flag| format!("--{flag}")));
    // No line of log for each request.
    if !flags.has("log-level-http") {
        args.extend(words(["--log-level-http", "warning"]));
    }
    let key = options.key.as_ref().filter(|_| !flags.has("config"));
    let file = key.map(|key| key_file(options, key));
    if let Some((path, _)) = &file {
        args.extend(words(["--config", &path.display().to_string()]));
    }
    args.extend(options.extra.iter().cloned());
    let program = options.program.clone().unwrap_or_else(|| "python3".into());
    let (files, secrets) = (file.into_iter().collect(), secrets(options));
    Ok(EngineCommand { program, args, env: env(options), files, secrets })
}

/// Whether the scheduler sleeps although it has requests: it wakes for new ones, not for KV that comes
/// from tiers or from the other half of a pair. Source: SGLang 0.5.23, `IdleSleeper`.
pub(super) fn sleeps_over_kv(options: &Options) -> bool {
    let waits = options.kv_tiers.is_some() || options.role != Role::Aggregated;
    waits && Flags::read(&DIALECT, &options.extra).is_on("sleep-on-idle")
}

/// The flags of an engine whose host memory has the agent's tiers below it.
fn kv_tiers(
    options: &Options,
    flags: &Flags,
    tiers: &KvTiers,
) -> Result<Vec<String>, CommandError> {
    let refused = |why: &str| CommandError::Unsupported { engine: "sglang", why: why.into() };
    if options.role != Role::Aggregated {
        // Nobody has tried what of both KV goes where.
        return Err(refused("--kv-host-gb needs --role aggregated"));
    }
    let config = format!("{STORAGE}-extra-config");
    if flags.has(STORAGE) || flags.has(&config) {
        return Err(refused(&format!("--kv-host-gb sets --{STORAGE} and --{config}")));
    }
    let storage = json!({
        "backend_name": "stator",
        "module_path": TIERS,
        "class_name": "Storage",
        // Pages are copied where they are, not handed over as values.
        "interface_v1": 1,
        // With each page comes how many are before it.
        "hicache_storage_pass_prefix_keys": true,
        "stator_socket": tiers.socket,
    });
    let mut args = words([&format!("--{STORAGE}"), "dynamic"]).to_vec();
    args.extend(words([&format!("--{config}"), &storage.to_string()]));
    if !flags.has("enable-hierarchical-cache") {
        args.push("--enable-hierarchical-cache".to_owned());
    }
    Ok(args)
}

fn env(options: &Options) -> Vec<(String, String)> {
    let mut env = python_env();
    env.extend(options.kv_tiers.iter().map(python_path));
    // Where KV is sent to and fetched from; by itself it takes the first address that it finds.
    let address = options.side_channel.filter(|_| options.role != Role::Aggregated);
    env.extend(address.map(|address| ("SGLANG_HOST_IP".to_owned(), host(address.ip()))));
    env
}

/// A YAML file of flags, written as JSON, which is valid YAML.
fn key_file(options: &Options, Key(secret): &Key) -> (PathBuf, String) {
    (options.home.join("sglang.yaml"), json!({ "api-key": secret }).to_string())
}

fn disaggregation(options: &Options) -> Vec<String> {
    let mode = match options.role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Aggregated | Role::Encode => return Vec::new(),
    };
    let backend = options.connector.as_deref().unwrap_or(CONNECTOR);
    let mut args =
        words(["--disaggregation-mode", mode, "--disaggregation-transfer-backend", backend])
            .to_vec();
    // The prefill side runs the bootstrap server, the decode side is told where it is.
    if let Some(address) = options.side_channel.filter(|_| options.role == Role::Prefill) {
        args.extend(words(["--disaggregation-bootstrap-port", &address.port().to_string()]));
    }
    args
}
