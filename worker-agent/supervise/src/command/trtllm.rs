//! TensorRT-LLM's command line. Source: `tensorrt_llm/commands/serve.py` of 1.2; nothing was run,
//! because it needs a GPU.

use super::flags::{Dialect, Flags};
use super::{CommandError, EngineCommand, Options, host, python_env, words};
use serde_json::{Map, Value, json};
use stator_protos::discovery::Role;
use std::path::PathBuf;

const DIALECT: Dialect = Dialect {
    aliases: &[("tp-size", "tensor-parallel-size"), ("extra-llm-api-options", "config")],
    reserved: &[
        ("host", "which reaches it on this address only"),
        ("port", "with --engine-port before `--`"),
        ("server-role", "with --role before `--`"),
        ("disagg-cluster-uri", "which registers it itself"),
    ],
    repeatable: &["custom-module-dirs"],
};

/// Most events that the server keeps until the agent reads them, every few milliseconds.
const EVENTS_MAX: u32 = 16_384;

/// Flags for settings under `kv_cache_config` of the file, each with its name there: versions that
/// take that section of the file as a whole would ignore the flag.
const KV_CACHE_FLAGS: [(&str, &str); 2] = [
    ("kv-cache-free-gpu-memory-fraction", "free_gpu_memory_fraction"),
    ("kv-cache-dtype", "dtype"),
];

/// Builds the command line of a TensorRT-LLM server.
///
/// KV events, iteration statistics and the metrics page are settings of a YAML file, which the
/// agent writes unless the user names one with `--config`. The agent cannot read the user's file:
/// `kv_cache_config.event_buffer_max_size`, `enable_iter_perf_stats` and `return_perf_metrics` have
/// to be set there. The transfer of KV is configured there too (`cache_transceiver_config`), and
/// only the operator knows it: a role needs such a file. The server names the model after its
/// folder.
///
/// # Errors
///
/// [`CommandError`] where the user's flags contradict ours or themselves, a role has no file, or a
/// key is given.
pub fn trtllm(options: &Options) -> Result<EngineCommand, CommandError> {
    options.refuse_encode("trtllm")?;
    let flags = options.flags(&DIALECT)?;
    let unsupported = |why: String| CommandError::Unsupported { engine: "trtllm", why };
    if options.kv_tiers.is_some() {
        // Its connector is named in a file of settings, beside what only the operator knows.
        return Err(unsupported(
            "--kv-host-gb needs an engine that runs already (--attach)".into(),
        ));
    }
    if options.role != Role::Aggregated && !flags.has("config") {
        let role = if options.role == Role::Prefill { "prefill" } else { "decode" };
        let file = "--config FILE with cache_transceiver_config after `--`";
        return Err(unsupported(format!("role {role} needs {file}")));
    }
    if options.key.is_some() {
        return Err(unsupported("its server asks for no key".to_owned()));
    }
    let mut args = vec![options.model.clone()];
    args.extend(words(["--host", &host(options.http.ip())]));
    args.extend(words(["--port", &options.http.port().to_string()]));
    if !flags.has("backend") {
        args.extend(words(["--backend", "pytorch"]));
    }
    let file = (!flags.has("config")).then(|| config(options, &flags));
    if let Some((path, _)) = &file {
        // The name that versions of all ages know it by.
        args.extend(words(["--extra_llm_api_options", &path.display().to_string()]));
    }
    args.extend(options.extra.iter().cloned());
    let program = options.program.clone().unwrap_or_else(|| "trtllm-serve".into());
    let files = file.into_iter().collect();
    Ok(EngineCommand { program, args, env: python_env(), files, ..EngineCommand::default() })
}

/// The settings as YAML, written as JSON, which is valid YAML.
fn config(options: &Options, flags: &Flags) -> (PathBuf, String) {
    let mut kv_cache = Map::new();
    if options.events.is_some() {
        kv_cache.insert("event_buffer_max_size".to_owned(), EVENTS_MAX.into());
        for (flag, name) in KV_CACHE_FLAGS {
            let Some(value) = flags.value(flag) else { continue };
            let value = value.parse::<f64>().map_or_else(|_| value.into(), Value::from);
            kv_cache.insert(name.to_owned(), value);
        }
    }
    let mut config = json!({ "enable_iter_perf_stats": true, "return_perf_metrics": true });
    if !kv_cache.is_empty() {
        config["kv_cache_config"] = kv_cache.into();
    }
    (options.home.join("trtllm.yaml"), config.to_string())
}
