//! Command lines that the operator makes of manifests, read as this binary reads them.

use crate::cli;
use serde::Deserialize;
use serde_json::Value;
use stator_epp::config::EppArgs;
use stator_operator::{OperatorAction, OperatorArgs, SubstituteArgs};
use stator_planner::RunSettings;
use stator_proxy::{DirectSettings, ProxySettings};
use stator_worker_agent::AgentSettings;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Manifests of other projects, beside the checkout.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/dynamo-manifests");
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/operator/graphs");
/// Parts of words that only a pod knows or a large machine has, and what may stand there.
const VARIABLES: [(&str, &str); 5] = [
    ("--kv-host-gb=100", "--kv-host-gb=1"),
    ("$(POD_IP)", "10.0.0.1"),
    ("$(MODEL_PATH)", "/models/m"),
    ("$(SERVED_MODEL_NAME)", "m"),
    ("${K8S_NAMESPACE}", "n"),
];

#[test]
fn lines_of_our_manifests_are_understood() {
    assert_eq!(check(Path::new(OWN)), 3);
}

#[test]
fn lines_of_dynamos_manifests_are_understood() {
    if !Path::new(DATA).is_dir() {
        let _ = writeln!(std::io::stderr().lock(), "not run: there is no {DATA}");
        return;
    }
    assert_eq!(check(&Path::new(DATA).join("examples")), 24);
    assert_eq!(check(&Path::new(DATA).join("deploy/utils")), 2);
}

/// Checks every manifest below a folder, and returns their number.
fn check(folder: &Path) -> usize {
    let mut files = Vec::new();
    gather(folder, &mut files);
    for file in &files {
        let documents = explained(file);
        let roles: Vec<_> = documents.iter().flat_map(|object| roles(object, &documents)).collect();
        let text = std::fs::read_to_string(file).unwrap();
        // Engines on several nodes stay as they are.
        let may_have_none =
            text.contains("DynamoGraphDeploymentRequest") || text.contains("DynamoModel");
        assert!(may_have_none || !roles.is_empty(), "{} starts nothing", file.display());
    }
    files.len()
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => gather(&path, files),
            false => {
                files.extend((path.extension().is_some_and(|of| of == "yaml")).then_some(path))
            }
        }
    }
}

fn explained(file: &Path) -> Vec<Value> {
    let args = OperatorArgs {
        substitutes: SubstituteArgs::default(),
        keep_modules: false,
        pull_secrets: Vec::new(),
        action: OperatorAction::Explain { file: file.to_owned() },
    };
    let text = stator_operator::explain(&args, file)
        .unwrap_or_else(|error| panic!("{}: {error:#}", file.display()));
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The roles that an object's pods start; all their settings are valid.
fn roles(object: &Value, all: &[Value]) -> Vec<String> {
    if object["kind"] != "Deployment" {
        return Vec::new();
    }
    let containers = object["spec"]["template"]["spec"]["containers"].as_array();
    let ours = containers
        .into_iter()
        .flatten()
        .filter(|of| of["command"] == serde_json::json!(["stator"]));
    ours.map(|container| {
        let words = container["args"].as_array().unwrap().iter().map(|word| {
            let word = word.as_str().unwrap().to_owned();
            VARIABLES.iter().fold(word, |word, (name, value)| word.replace(name, value))
        });
        let words: Vec<_> = ["stator".to_owned()].into_iter().chain(words).collect();
        let name = words[1].clone();
        let settings = settings(words, all);
        settings.unwrap_or_else(|error| panic!("{error}\n{container:#}"));
        name
    })
    .collect()
}

/// Reads a command line as far as it can be read without files that only a pod has.
fn settings(mut words: Vec<String>, all: &[Value]) -> Result<(), String> {
    let config = tempfile::NamedTempFile::new().unwrap();
    if let Some(at) = words.iter().position(|word| word == "--config-file") {
        let settings = all.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
        let text = settings["data"]["epp-config-dynamo.yaml"].as_str().unwrap();
        std::fs::write(config.path(), text).unwrap();
        words[at + 1] = config.path().display().to_string();
    }
    let role = cli::role(&words).map_err(|error| error.to_string())?;
    match role {
        cli::Role::Agent(role) => {
            AgentSettings::try_from(role.args.agent).map(drop).map_err(|e| e.to_string())
        }
        cli::Role::Proxy(role) => {
            ProxySettings::try_from(role.args).map(drop).map_err(|e| e.to_string())
        }
        cli::Role::Sidecar(role) => {
            DirectSettings::try_from(role.args).map(drop).map_err(|e| e.to_string())
        }
        cli::Role::Planner(role) => {
            RunSettings::try_from(role.args).map(drop).map_err(|e| e.to_string())
        }
        cli::Role::Epp(role) => explain(&role.args),
        _ => Err(format!("{words:?} starts no server")),
    }
}

/// Reads the picker's configuration, and all plug-ins in it.
fn explain(args: &EppArgs) -> Result<(), String> {
    stator_epp::config::explain(args).map(drop).map_err(|error| error.to_string())
}
