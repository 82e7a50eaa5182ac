//! Common parts of every stator process: configuration, logs, metrics, traces, TLS, connections
//! between processes, the side server for operators, and shutdown.
//!
//! This crate knows nothing of models, workers or requests. Start reading at [`config`].

pub mod accept;
pub mod admin;
pub mod config;
pub mod date;
pub mod dial;
mod guests;
pub mod lane;
pub mod log;
pub mod metrics;
pub mod patience;
pub mod quota;
pub mod secret;
pub mod shutdown;
pub mod tls;
pub mod trace;
pub mod yaml;

pub use lane::Lane;
pub use shutdown::Shutdown;

use std::path::PathBuf;

/// Default directory in which agents register and proxies look; only this user can enter it.
///
/// `$XDG_RUNTIME_DIR/stator`, or `stator-$USER` in the directory for temporary files.
pub fn discovery_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("stator"),
        None => {
            let user = std::env::var("USER").unwrap_or_else(|_| "all".into());
            std::env::temp_dir().join(format!("stator-{user}"))
        }
    }
}
