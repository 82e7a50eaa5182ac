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

/// Action of the operator.
#[derive(Clone, Debug, Subcommand)]
pub enum OperatorAction {
    /// Print the custom resource definitions of the kinds of `nvidia.com`.
    Crds,
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
