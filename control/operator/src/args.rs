//! Flags of `stator operator`.

use crate::objects::OperatorSettings;
use crate::translate::SubstituteArgs;
use clap::{Args, Subcommand};
use std::net::IpAddr;
use std::path::PathBuf;

/// Flags of `stator operator`.
#[derive(Args, Clone, Debug)]
pub struct OperatorArgs {
    /// Names of a manifest, and what stands in for each.
    #[command(flatten)]
    pub substitutes: SubstituteArgs,

    /// Leave containers as the manifest has them, so that they run Dynamo's own programs.
    #[arg(long, global = true, env = "STATOR_KEEP_MODULES")]
    pub keep_modules: bool,

    /// Secrets for registries that the pods of all graphs get, comma-separated. A pod whose annotation
    /// `nvidia.com/disable-image-pull-secret-discovery` is `true` gets none.
    #[arg(
        long,
        global = true,
        env = "STATOR_PULL_SECRETS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub pull_secrets: Vec<String>,

    /// Action to take.
    #[command(subcommand)]
    pub action: OperatorAction,
}

/// Flags of the operator at work.
#[derive(Args, Clone, Debug)]
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

    /// Webhooks of the operator.
    #[command(flatten)]
    pub webhooks: WebhookArgs,

    /// Address that serves metrics and health for operators.
    #[arg(long, env = "STATOR_METRICS_HOST", default_value = "127.0.0.1", value_name = "IP")]
    pub metrics_host: IpAddr,

    /// Port that serves metrics and health; 0 takes a free one.
    #[arg(long, env = "STATOR_METRICS_PORT", default_value_t = 8080, value_name = "PORT")]
    pub metrics_port: u16,
}

/// Flags of the webhooks.
#[derive(Args, Clone, Debug)]
pub struct WebhookArgs {
    /// Serve webhooks: documents with faults are refused with all of them, and both versions of a
    /// kind are converted.
    #[arg(long, env = "STATOR_WEBHOOKS")]
    pub webhooks: bool,

    /// Port of the webhooks; 0 takes a free one.
    #[arg(long, env = "STATOR_WEBHOOK_PORT", default_value_t = 9443, value_name = "PORT")]
    pub webhook_port: u16,

    /// Service before the webhooks, in the operator's own namespace. Their configurations, and the
    /// Secret with their authority, have its name too.
    #[arg(
        long,
        env = "STATOR_WEBHOOK_SERVICE",
        default_value = "stator-operator",
        value_name = "NAME"
    )]
    pub webhook_service: String,

    /// Name or address at which the API server reaches the webhooks without a Service.
    #[arg(long, env = "STATOR_WEBHOOK_HOST", value_name = "HOST")]
    pub webhook_host: Option<String>,

    /// Folder with `tls.crt` and `tls.key`, and `ca.crt` if the operator is to say whom to trust, as
    /// cert-manager makes them. Default: an authority of the operator's own.
    #[arg(long, env = "STATOR_WEBHOOK_CERTIFICATES", value_name = "DIR")]
    pub webhook_certificates: Option<PathBuf>,
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
        let pull_secrets = self.pull_secrets.clone();
        OperatorSettings { translates: !self.keep_modules, pull_secrets, ..settings }
    }
}
