//! vLLM's command line. Source: `vllm serve --help=all` of 0.32.0, which also ran in the tests.

use super::flags::{Dialect, Flags};
use super::{
    CommandError, EngineCommand, KvTiers, Options, host, python_env, python_path, secrets, words,
};
use serde_json::json;
use stator_protos::discovery::Role;

const DIALECT: Dialect = Dialect {
    aliases: &[
        ("tp", "tensor-parallel-size"),
        ("dp", "data-parallel-size"),
        ("asc", "api-server-count"),
    ],
    reserved: &[
        ("model", "with --model before `--`"),
        ("served-model-name", "with --model-name before `--`"),
        ("host", "which reaches it on this address only"),
        ("port", "with --engine-port before `--`"),
        ("uds", "which reaches it over TCP"),
        ("kv-events-config", "which follows the events"),
        ("headless", "which needs the HTTP server"),
        ("api-key", "with --engine-api-key-file before `--`"),
    ],
    repeatable: &["middleware"],
};

/// The connector that needs its own HTTP port and its address for others.
const MORIIO: &str = "MoRIIOConnector";

/// Default KV connector.
const CONNECTOR: &str = "NixlConnector";

/// Module of the connector that keeps KV in the agent's tiers, and of its offloading spec.
const TIERS: &str = "vllm_0_32";

/// The flag that says how blocks are hashed.
const HASHES: &str = "prefix-caching-hash-algo";

/// The flag that describes the KV connector.
const CONNECTOR_FLAG: &str = "kv-transfer-config";

/// The flag that allows adapters, at start or later.
const LORA: &str = "enable-lora";

/// Flags that the agent relies on: token ids in and out, cached-token counts, and no log line per
/// request.
const DEFAULTS: [&str; 3] =
    ["enable-scale-out", "enable-prompt-tokens-details", "disable-uvicorn-access-log"];

/// Builds the command line of a vLLM server.
///
/// The user's plain `--kv-transfer-config` replaces the one for the role; single parts
/// (`--kv-transfer-config.kv_buffer_device cpu`) are added to it.
///
/// The command turns on the development mode, which the engine needs to reset its cache, pause and
/// sleep, and to describe itself fully. Anyone who reaches its HTTP, on the loopback interface, can
/// use these. With `--enable-lora` adapters can be loaded at run time, unless the engine has
/// several API servers, as it has with data-parallel ranks. `--enable-scale-out` is always among
/// the flags: older versions cannot be started, but work when attached.
///
/// # Errors
///
/// [`CommandError`] where the user's flags contradict ours or themselves.
pub fn vllm(options: &Options) -> Result<EngineCommand, CommandError> {
    options.refuse_encode("vllm")?;
    let flags = options.flags(&DIALECT)?;
    let mut args = words(["serve", &options.model]).to_vec();
    args.extend(words(["--served-model-name", &options.served_name]));
    args.extend(words(["--host", &host(options.http.ip())]));
    args.extend(words(["--port", &options.http.port().to_string()]));
    if let Some(events) = &options.events {
        let config = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": events.publish,
            "replay_endpoint": events.replay,
            "topic": events.topic,
        });
        args.extend(words(["--kv-events-config", &config.to_string()]));
    }
    args.extend(transfer(options, &flags));
    if let Some(tiers) = &options.kv_tiers {
        args.extend(kv_tiers(options, &flags, tiers)?);
    }
    args.extend(DEFAULTS.iter().filter(|flag| !flags.has(flag)).map(|flag| format!("--{flag}")));
    args.extend(options.extra.iter().cloned());
    let program = options.program.clone().unwrap_or_else(|| "vllm".into());
    let (env, secrets) = (env(options, &flags), secrets(options));
    Ok(EngineCommand { program, args, env, files: Vec::new(), secrets })
}

/// The flags of an engine that keeps KV in the agent's tiers.
fn kv_tiers(
    options: &Options,
    flags: &Flags,
    tiers: &KvTiers,
) -> Result<Vec<String>, CommandError> {
    let refused = |why: &str| CommandError::Unsupported { engine: "vllm", why: why.into() };
    if options.role != Role::Aggregated {
        let why = "--kv-host-gb needs --role aggregated: the connector of a pair moves KV between its \
                   engines";
        return Err(refused(why));
    }
    if flags.has(CONNECTOR_FLAG) {
        return Err(refused("--kv-host-gb sets --kv-transfer-config"));
    }
    let config = json!({
        "kv_connector": "Connector",
        "kv_connector_module_path": TIERS,
        "kv_role": "kv_both",
        // A block that cannot be loaded is computed.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "Spec",
            "spec_module_path": TIERS,
            "stator_socket": tiers.socket,
        },
    });
    let mut args = words([&format!("--{CONNECTOR_FLAG}"), &config.to_string()]).to_vec();
    if !flags.has(HASHES) {
        // Other hashes differ between engines and between starts of one.
        args.extend(words([&format!("--{HASHES}"), "sha256_cbor"]));
    }
    Ok(args)
}

/// The connector of a role, part by part, so that the user can add further parts.
fn transfer(options: &Options, flags: &Flags) -> Vec<String> {
    let role = match options.role {
        Role::Prefill => "kv_producer",
        Role::Decode => "kv_consumer",
        Role::Aggregated | Role::Encode => return Vec::new(),
    };
    let connector = options.connector.as_deref().unwrap_or(CONNECTOR);
    let name = CONNECTOR_FLAG;
    let mut parts = vec![("kv_connector", connector.to_owned()), ("kv_role", role.to_owned())];
    if connector == MORIIO {
        parts.push(("kv_connector_extra_config.http_port", options.http.port().to_string()));
        let reached = options.side_channel.map(|side| side.ip().to_string());
        parts.extend(reached.map(|host| ("kv_connector_extra_config.host_ip", host)));
    }
    let missing = parts.iter().filter(|(part, _)| !flags.has_part(name, part));
    missing.flat_map(|(part, value)| words([&format!("--{name}.{part}"), value])).collect()
}

fn env(options: &Options, flags: &Flags) -> Vec<(String, String)> {
    let mut env = python_env();
    let mut turn_on = |name: &str| env.push((name.to_owned(), "1".to_owned()));
    turn_on("VLLM_SERVER_DEV_MODE");
    if flags.is_on(LORA) && has_one_server(flags) {
        turn_on("VLLM_ALLOW_RUNTIME_LORA_UPDATING");
    }
    env.extend(options.key.iter().map(|key| ("VLLM_API_KEY".to_owned(), key.0.clone())));
    env.extend(options.kv_tiers.iter().map(python_path));
    let Some(address) = options.side_channel.filter(|_| options.role != Role::Aggregated) else {
        return env;
    };
    let port = address.port().to_string();
    if options.connector.as_deref() == Some("MooncakeConnector") {
        env.push(("VLLM_MOONCAKE_BOOTSTRAP_PORT".to_owned(), port));
    } else {
        env.push(("VLLM_NIXL_SIDE_CHANNEL_HOST".to_owned(), host(address.ip())));
        env.push(("VLLM_NIXL_SIDE_CHANNEL_PORT".to_owned(), port));
    }
    env
}

/// Whether one API server takes all requests; by default there is one for each rank.
fn has_one_server(flags: &Flags) -> bool {
    let counted =
        ["api-server-count", "data-parallel-size"].into_iter().find(|flag| flags.has(flag));
    counted.is_none_or(|flag| flags.count(flag) == 1)
}
