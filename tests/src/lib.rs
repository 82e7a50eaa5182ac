//! The testbed: starts the real binary, waits for what it logs, and talks to it over HTTP.
//!
//! Everything runs on port 0 and in temporary directories, so tests run side by side; everything
//! waits for a signal with a deadline and never for time.

pub mod engine;
pub mod engine_answers;
pub mod envoy;
pub mod golden;
pub mod http;
pub mod kube;
pub mod kube_api;
mod kube_config;
pub mod kube_etcd;
pub mod kube_objects;
pub mod kube_schema;
pub mod kubelet;
pub mod nodes;
pub mod picker;
pub mod postgres;
pub mod process;
pub mod s3;
pub mod sglang;
pub mod stock;
pub mod tooling;
pub mod vllm;

use std::time::Duration;

/// Longest wait for anything that should happen; only a failing test waits that long.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Lines of a process that are remembered: a test of an hour does not fill the memory.
const LINES_MAX: usize = 20_000;

/// Remembers a line, and forgets the older half of those before it where they are too many.
fn keep(log: &mut Vec<String>, line: String) {
    if log.len() == LINES_MAX {
        log.drain(..LINES_MAX / 2);
    }
    log.push(line);
}

/// Waits for `future`, and fails the test when it does not come in time.
///
/// # Panics
///
/// After [`DEADLINE`].
pub async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    within(DEADLINE, what, future).await
}

/// The same, for what takes longer than others.
///
/// # Panics
///
/// After `limit`.
pub async fn within<F: IntoFuture>(limit: Duration, what: &str, future: F) -> F::Output {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: nothing within {limit:?}"),
    }
}
