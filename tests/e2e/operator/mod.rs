//! `stator operator`: its definitions on a real API server beside Dynamo's, and its objects beside
//! those that Dynamo's operator makes.

mod definitions;
mod fields;
mod golden;
mod models;
mod nodes;
mod request;
pub(crate) mod serve;
mod webhooks;

use serde::Deserialize as _;
use serde_json::Value;
use stator_tests::process::binary;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Data of other projects, beside the checkout. `None`, and said so, where there is none.
fn data(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(folder);
    if !path.is_dir() {
        let _ = writeln!(std::io::stderr().lock(), "not run: there is no {}", path.display());
        return None;
    }
    Some(path)
}

/// Documents of YAML.
fn documents(text: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let documents = documents.map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// Documents of a file.
fn read(path: &Path) -> Vec<Value> {
    documents(&std::fs::read_to_string(path).unwrap())
}

/// The documents that `stator operator` prints.
fn operator(args: &[&str]) -> Vec<Value> {
    let output = Command::new(binary()).arg("operator").args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    documents(&String::from_utf8(output.stdout).unwrap())
}

/// All YAML files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.extend(path.extension().is_some_and(|of| of == "yaml").then_some(path)),
        }
    }
    found
}
