//! Flags of `stator operator`.

use crate::objects::OperatorSettings;
use crate::translate::SubstituteArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Flags of `stator operator`.
#[derive(Args, Clone, Debug)]
pub struct OperatorArgs {
    /// Names of a manifest, and what stands in for each.
    #[command(flatten)]
    pub substitutes: SubstituteArgs,

    /// Leave containers as the manifest has them, so that they run Dynamo's own programs.
    #[arg(long, env = "STATOR_KEEP_MODULES")]
    pub keep_modules: bool,

    /// Action to take.
    #[command(subcommand)]
    pub action: OperatorAction,
}

/// Flags of the operator at work.
#[derive(Args, Clone, Debug, Default)]
pub struct ServeArgs {
    /// Namespaces whose graphs are operated, comma-separated. Default: the one of the service account
    /// or of the kubeconfig.
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',')]
    pub namespaces: Vec<String>,

    /// Kubeconfig file. Without it `KUBECONFIG`, `~/.kube/config` or the pod's service account say
    /// which cluster it is.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Folder with the configurations of models that requests may name:
    /// FOLDER/org/name/config.json. A request can also bring its own.
    #[arg(long, value_name = "FOLDER")]
    pub model_configs: Option<PathBuf>,
}

/// Action of the operator.
#[derive(Clone, Debug, Subcommand)]
pub enum OperatorAction {
    /// Print the custom resource definitions of the kinds of `nvidia.com`.
    Crds,
    /// Make the objects of graphs in a cluster, and keep them as the graphs say.
    Run(ServeArgs),
    /// Print the objects that a manifest leads to, and what of it has no counterpart. Needs no
    /// cluster.
    Explain {
        /// Manifest of one or more documents, YAML.
        file: PathBuf,
    },
}

impl OperatorArgs {
    /// Choices that hold for all graphs.
    pub(crate) fn settings(&self) -> OperatorSettings {
        let settings = OperatorSettings::new(self.substitutes.clone().into());
        OperatorSettings { translates: !self.keep_modules, ..settings }
    }
}
