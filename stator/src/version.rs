//! The version of this binary.

use std::env::consts::{ARCH, OS};

/// The commit, if the build names it: `STATOR_COMMIT=$(git rev-parse --short HEAD) cargo build`.
const COMMIT: Option<&str> = option_env!("STATOR_COMMIT");
/// The C library.
const LIBRARY: &str = match (cfg!(target_env = "gnu"), cfg!(target_env = "musl")) {
    (true, _) => "-gnu",
    (_, true) => "-musl",
    _ => "",
};

/// Version, commit where it is known, and platform: `0.1.0 (86cbdc1, x86_64-linux-gnu)`.
pub(crate) fn text() -> String {
    // A build outside a repository names an empty one.
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| format!("{commit}, ")).unwrap_or_default();
    format!("{} ({commit}{ARCH}-{OS}{LIBRARY})", env!("CARGO_PKG_VERSION"))
}
