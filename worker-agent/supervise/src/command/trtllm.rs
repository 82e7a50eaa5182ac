//! TensorRT-LLM's command line. Source: `tensorrt_llm/commands/serve.py` of 1.2; nothing was run,
//! because it needs a GPU.

use super::flags::Dialect;
use super::{CommandError, EngineCommand, Options, host, python_env, sizes, words};
use stator_protos::discovery::Role;

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

/// The command line of a TensorRT-LLM server.
///
/// KV events, iteration statistics and the transfer of KV are settings of the YAML file that the
/// user names with `--config`, which this cannot read: `kv_cache_config.event_buffer_max_size`,
/// `enable_iter_perf_stats`, `cache_transceiver_config`. A role needs such a file. The server has
/// no name for the model but its folder's.
///
/// # Errors
///
/// [`CommandError`] where the user's flags contradict ours or themselves, a role has no file, a key
/// is given, or data-parallel ranks are asked for, which that file sets too.
pub fn trtllm(options: &Options) -> Result<EngineCommand, CommandError> {
    options.refuse_encode("trtllm")?;
    let flags = options.flags(&DIALECT)?;
    let unsupported = |why: String| CommandError::Unsupported { engine: "trtllm", why };
    if options.role != Role::Aggregated && !flags.has("config") {
        let role = if options.role == Role::Prefill { "prefill" } else { "decode" };
        let file = "--config FILE with cache_transceiver_config after `--`";
        return Err(unsupported(format!("role {role} needs {file}")));
    }
    if let Some(ranks) = options.data_parallel.filter(|ranks| ranks.get() > 1) {
        let file = "enable_attention_dp in the file of --config";
        return Err(unsupported(format!("{ranks} data-parallel ranks are {file}")));
    }
    if options.key.is_some() {
        return Err(unsupported("its server asks for no key".to_owned()));
    }
    let mut args = vec![options.model.clone()];
    args.extend(words(["--host", &host(options.http.ip())]));
    args.extend(words(["--port", &options.http.port().to_string()]));
    args.extend(sizes(&flags, [("tensor_parallel_size", options.tensor_parallel)])?);
    if !flags.has("backend") {
        args.extend(words(["--backend", "pytorch"]));
    }
    args.extend(options.extra.iter().cloned());
    let program = options.program.clone().unwrap_or_else(|| "trtllm-serve".into());
    Ok(EngineCommand { program, args, env: python_env(), ..EngineCommand::default() })
}
