//! Settings of connections to engines.

use std::path::PathBuf;
use std::time::Duration;

/// TLS to an engine, and whether its certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineTls {
    Plain,
    Checked,
    /// Any certificate will do.
    Unchecked,
}

/// Checked settings of connections to engines.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamSettings {
    /// Longest wait for the head of an answer.
    pub head_timeout: Duration,
    /// Longest wait for the next part of an answer.
    pub idle_timeout: Duration,
    pub decoder_tls: EngineTls,
    pub prefiller_tls: EngineTls,
    pub ca_file: Option<PathBuf>,
}
