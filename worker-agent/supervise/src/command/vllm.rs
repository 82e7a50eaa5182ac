//! vLLM's command line. Source: `vllm serve --help=all` of 0.32.0, which also ran in the tests.

use super::flags::{Dialect, Flags};
use super::{
    CommandError, EngineCommand, KvTiers, Options, host, python_env, python_path, secrets, words,
};
use serde_json::{Value, json};
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

/// The connector that has several others side by side.
const SEVERAL: &str = "MultiConnector";

/// Settings that [`SEVERAL`] has for all of its connectors.
const SETTINGS_OF_ALL: [&str; 2] = ["engine_id", "kv_load_failure_policy"];

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
/// (`--kv-transfer-config.kv_buffer_device cpu`) are added to it. An engine of a pair that keeps KV in
/// tiers has two connectors; the parts are those of the one for the role.
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
    let mut extra = options.extra.clone();
    if let Some(tiers) = &options.kv_tiers {
        args.extend(kv_tiers(options, &flags, tiers)?);
        extra = Flags::without_parts(&DIALECT, &extra, CONNECTOR_FLAG);
    } else {
        let parts = transfer(options, &flags).into_iter();
        args.extend(parts.flat_map(|(part, value)| [format!("--{CONNECTOR_FLAG}.{part}"), value]));
    }
    args.extend(DEFAULTS.iter().filter(|flag| !flags.has(flag)).map(|flag| format!("--{flag}")));
    args.extend(options.is_follower.then(|| "--headless".to_owned()));
    args.extend(extra);
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
    let is_paired = options.role != Role::Aggregated;
    // Of a pair's connector the user may set parts.
    if flags.is_on(CONNECTOR_FLAG) || !is_paired && flags.has(CONNECTOR_FLAG) {
        let why = "--kv-host-gb sets --kv-transfer-config".into();
        return Err(CommandError::Unsupported { engine: "vllm", why });
    }
    let mut config = json!({
        "kv_connector": "Connector",
        "kv_connector_module_path": TIERS,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "Spec",
            "spec_module_path": TIERS,
            "stator_socket": tiers.socket,
        },
    });
    if is_paired {
        config = beside(&hand_over(options, flags), &config);
    }
    // A block that cannot be loaded is computed.
    let policy = &mut config["kv_load_failure_policy"];
    if policy.is_null() {
        *policy = "recompute".into();
    }
    let mut args = words([&format!("--{CONNECTOR_FLAG}"), &config.to_string()]).to_vec();
    if !flags.has(HASHES) {
        // Other hashes differ between engines and between starts of one.
        args.extend(words([&format!("--{HASHES}"), "sha256_cbor"]));
    }
    Ok(args)
}

/// The configuration of the connector for the engine's role and of the one of its tiers. The first
/// is asked first: a prompt that a prefill engine has computed comes from there as a whole, and the
/// prefill engine is told that its blocks are free.
fn beside(hand_over: &Value, tiers: &Value) -> Value {
    let mut first = hand_over.clone();
    let mut both = json!({ "kv_connector": SEVERAL, "kv_role": first["kv_role"] });
    for name in SETTINGS_OF_ALL {
        if let Some(value) = first.as_object_mut().and_then(|first| first.remove(name)) {
            both[name] = value;
        }
    }
    both["kv_connector_extra_config"] = json!({ "connectors": [first, tiers] });
    both
}

/// The connector of a role as one value, with the user's parts.
fn hand_over(options: &Options, flags: &Flags) -> Value {
    let mut config = json!({});
    for (part, value) in transfer(options, flags) {
        // vLLM reads a part so, too.
        let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
        set_part(&mut config, part, value);
    }
    for (part, value) in flags.parts(CONNECTOR_FLAG) {
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        set_part(&mut config, part, value);
    }
    config
}

/// Sets `a.b` of a configuration.
fn set_part(config: &mut Value, path: &str, value: Value) {
    if !config.is_object() {
        *config = json!({});
    }
    match path.split_once('.') {
        Some((name, rest)) => set_part(&mut config[name], rest, value),
        None => config[path] = value,
    }
}

/// The connector of a role, part by part, so that the user can add further parts.
fn transfer(options: &Options, flags: &Flags) -> Vec<(&'static str, String)> {
    let role = match options.role {
        Role::Prefill => "kv_producer",
        Role::Decode => "kv_consumer",
        Role::Aggregated | Role::Encode => return Vec::new(),
    };
    let connector = options.connector.as_deref().unwrap_or(CONNECTOR);
    let mut parts = vec![("kv_connector", connector.to_owned()), ("kv_role", role.to_owned())];
    if connector == MORIIO {
        parts.push(("kv_connector_extra_config.http_port", options.http.port().to_string()));
        let reached = options.side_channel.map(|side| side.ip().to_string());
        parts.extend(reached.map(|host| ("kv_connector_extra_config.host_ip", host)));
    }
    parts.retain(|(part, _)| !flags.has_part(CONNECTOR_FLAG, part));
    parts
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
