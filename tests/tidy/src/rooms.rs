//! The workspace's crates and the arrows between them.

use serde_json::Value;
use std::process::Command;

/// A crate of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// Its name, for example `stator-kv-index`.
    pub name: String,
    /// Its folder, from the workspace's root.
    pub folder: String,
    /// Names of the workspace's crates that its production code uses.
    pub uses: Vec<String>,
}

impl Crate {
    /// The top folder, or for shared crates the folder below `crates`: `crates/fleet`, `epp`.
    pub fn room(&self) -> &str {
        let depth = if self.is_shared() { 2 } else { 1 };
        let end = self.folder.match_indices('/').nth(depth - 1).map(|(at, _)| at);
        &self.folder[..end.unwrap_or(self.folder.len())]
    }

    /// Whether it stands in `crates`.
    pub fn is_shared(&self) -> bool {
        self.folder.starts_with("crates/")
    }
}

/// All crates of the workspace, as Cargo tells.
///
/// # Panics
///
/// Cargo does not answer.
pub fn crates() -> Vec<Crate> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = command.current_dir(crate::source::root()).output().expect("Cargo starts");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("Cargo writes JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let root = text(&metadata["workspace_root"]) + "/";
    let packages = list(&metadata["packages"]);
    let crates = packages.iter().map(|package| {
        let manifest = text(&package["manifest_path"]);
        let folder = manifest.trim_start_matches(&root).trim_end_matches("/Cargo.toml");
        let uses = list(&package["dependencies"]).into_iter();
        // Paths are what the workspace has itself; a kind is of tests or of build scripts.
        let uses = uses.filter(|used| used["kind"].is_null() && used["path"].is_string());
        Crate {
            name: text(&package["name"]),
            folder: folder.to_owned(),
            uses: uses.map(|used| text(&used["name"])).collect(),
        }
    });
    crates.collect()
}
