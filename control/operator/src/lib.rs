//! `stator operator`: graphs of workers that were written for NVIDIA Dynamo's operator, with stator's
//! roles in the place of Dynamo's modules.
//!
//! `kinds` are the documents, as Rust types and as custom resource definitions; `convert` turns
//! older ones into newer ones and back. `objects` makes Kubernetes' own objects of a graph,
//! `translate` turns the containers in them into stator's roles, and `plan` finds the steps from what
//! a cluster has to what a graph wants. `admission` answers the API server's questions about
//! documents. All of that is pure; `serve` and `webhooks` alone talk to a cluster, and decide
//! nothing. Start reading at [`explain()`].

mod admission;
mod args;
mod condition;
mod convert;
mod events;
mod explain;
mod kinds;
mod metrics;
mod models;
mod objects;
mod plan;
mod request;
mod serve;
mod translate;
mod webhooks;

pub use args::{OperatorAction, OperatorArgs, ServeArgs, WebhookArgs};
pub use translate::SubstituteArgs;

use anyhow::Context;
use serde_json::Value;
use stator_runtime::Shutdown;
use std::path::Path;

/// Works in a cluster until `shutdown`.
///
/// # Errors
///
/// Without a connection to a cluster, without the definitions, and where another operator owns them.
pub async fn run(args: &OperatorArgs, of: &ServeArgs, shutdown: Shutdown) -> anyhow::Result<()> {
    serve::serve(of, args.settings(), shutdown).await
}

/// The custom resource definitions, as YAML.
///
/// # Errors
///
/// Never: definitions are YAML.
pub fn crds() -> anyhow::Result<String> {
    documents(&kinds::definitions())
}

/// The objects that a manifest leads to, as YAML.
///
/// # Errors
///
/// When the file cannot be read, or holds no documents that the operator understands.
pub fn explain(args: &OperatorArgs, file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let explained = explain::explain(&text, &args.settings());
    documents(&explained.map_err(anyhow::Error::msg)?)
}

/// Documents of YAML, with sorted fields.
fn documents(values: &[Value]) -> anyhow::Result<String> {
    let sorted = values.iter().cloned().map(|mut value| {
        value.sort_all_objects();
        value
    });
    let texts: Result<Vec<_>, _> = sorted.map(|value| serde_yaml_ng::to_string(&value)).collect();
    Ok(texts?.join("---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Environment variable with which the test writes the file.
    const WRITE: &str = "STATOR_WRITE_CRDS";
    /// First lines of the agents' manifest.
    const AGENTS: &str = "\
# Where agents publish what they are: one object per pod, owned by it. The same resource as
# Dynamo's: where its operator, or stator's, is installed leave this file out. Agents of stator keep
# to spec.data.stator_agents, a map from agent to record, and touch nothing else.
";

    #[test]
    fn the_manifest_has_the_definitions_of_the_types() {
        check("operator/crds.yaml", &crds().expect("definitions are YAML"));
    }

    /// Agents need no more than the definition of their records.
    #[test]
    fn agents_have_the_operators_definition_of_their_records() {
        let is_of_agents =
            |of: &Value| of["metadata"]["name"] == "dynamoworkermetadatas.nvidia.com";
        let definitions: Vec<_> = kinds::definitions().into_iter().filter(is_of_agents).collect();
        let text = documents(&definitions).expect("definitions are YAML");
        check("agents/crd.yaml", &format!("{AGENTS}{text}"));
    }

    fn check(file: &str, text: &str) {
        let path = format!("{}/../../manifests/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, text).expect("the file is ours");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{path} is not as the types are: {WRITE}=1 renews it");
    }
}
