//! The command line of `stator chat`. Every flag is also an environment variable, `STATOR_CHAT_` and
//! the flag's name in capitals.

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Conversation with a model behind any OpenAI-compatible endpoint.
#[derive(Args, Clone, Debug)]
pub struct ChatArgs {
    /// Address of the server; a path is kept, and a trailing /v1 may be left out.
    #[arg(default_value = "http://127.0.0.1:8000", env = "STATOR_CHAT_URL", value_name = "URL")]
    pub url: String,

    /// Model to talk to. Default: the first that the server lists.
    #[arg(long, env = "STATOR_CHAT_MODEL", value_name = "NAME")]
    pub model: Option<String>,

    /// System prompt, which the conversation begins with.
    #[arg(long, env = "STATOR_CHAT_SYSTEM", value_name = "TEXT")]
    pub system: Option<String>,

    /// Most tokens of an answer. Default: the server's.
    #[arg(long, env = "STATOR_CHAT_MAX_TOKENS", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,

    /// Randomness of answers: 0 gives the likeliest token each time. Default: the server's.
    #[arg(long, env = "STATOR_CHAT_TEMPERATURE", value_name = "T")]
    pub temperature: Option<f64>,

    /// File with tools that the model may call: a JSON list, as the field `tools` of the API. Calls
    /// are printed and not run; in a terminal you type what they return.
    #[arg(long, env = "STATOR_CHAT_TOOLS_FILE", value_name = "FILE")]
    pub tools_file: Option<PathBuf>,

    /// Print no reasoning. In a pipe it is never printed.
    #[arg(long, env = "STATOR_CHAT_HIDE_REASONING")]
    pub hide_reasoning: bool,

    /// API key, sent as a bearer token. Default: that of OPENAI_API_KEY.
    #[arg(long, env = "STATOR_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,

    /// PEM file with the authorities that the certificate of an https server may be from. Default:
    /// those of the system.
    #[arg(long, env = "STATOR_CHAT_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// Take any certificate of an https server, such as one that a proxy signs itself.
    #[arg(long, env = "STATOR_CHAT_INSECURE", conflicts_with = "ca_file")]
    pub insecure: bool,
}

/// Reads a list of tools.
pub(crate) fn read_tools(file: &Path) -> Result<Value> {
    let name = || format!("tools-file: {}", file.display());
    let text = std::fs::read_to_string(file).with_context(name)?;
    let tools: Value = serde_json::from_str(&text).with_context(name)?;
    ensure!(tools.is_array(), "{}: not a list", name());
    Ok(tools)
}
