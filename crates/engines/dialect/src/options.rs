//! Options of a dialect: which engine it speaks to, where, and with which keys.

use crate::connector::Connector;
use std::fmt;

/// Engine that a dialect speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// Any server of the OpenAI API. The agent watches it and asks it for no tokens.
    Openai,
}

/// Address of an engine, and settings that it does not report itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `http://host:port` or `https://host:port`, perhaps with a path before the engine's own.
    pub url: String,
    /// Bearer token of every request.
    pub api_key: Option<ApiKey>,
    /// Key that signs the KV hand-overs sent to a [`Kind::Trtllm`]: its
    /// `internal_request_auth_key`.
    pub handover_key: Option<ApiKey>,
    /// Whether prefill and decode may be asked at the same time, on a [`Kind::Trtllm`] that
    /// supports it.
    pub together: bool,
    /// KV connector of an engine that does not report one. A reported connector wins.
    pub connector: Option<Connector>,
    /// Model to use, for a [`Kind::Openai`] that serves several.
    pub model: Option<String>,
}

/// A secret that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(pub String);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// Reason why [`crate::connect`] made no dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The URL is malformed.
    #[error("url: {url:?} is not http://host:port or https://host:port")]
    Url {
        /// The URL as given.
        url: String,
    },
    /// The key cannot stand in a header.
    #[error("api_key: it contains characters that no header may contain")]
    ApiKey,
    /// There are no root certificates for `https`.
    #[error("url: https needs root certificates: {0}")]
    Roots(String),
}
