//! Flags of `stator doctor`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Flags of `stator doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Patient to examine.
    #[arg(value_enum, default_value_t = Patient::Laptop)]
    pub patient: Patient,

    /// Print the findings as JSON: `findings` with `area`, `severity`, `says` and `advice`.
    #[arg(long, env = "STATOR_DOCTOR_JSON")]
    pub json: bool,

    /// Folder of a model to examine: its configuration, tokenizer and weights.
    #[arg(long, env = "STATOR_DOCTOR_MODEL", value_name = "FOLDER")]
    pub model: Option<PathBuf>,

    /// Engine to look for, and to compare with the version that stator is tested with.
    #[arg(long, env = "STATOR_DOCTOR_ENGINE", value_enum)]
    pub engine: Option<EngineName>,

    /// Program of the engine. Default: the engine's usual one, looked for in PATH.
    #[arg(long, env = "STATOR_DOCTOR_ENGINE_PROGRAM", value_name = "FILE", requires = "engine")]
    pub engine_program: Option<PathBuf>,

    /// Ports of this machine that must be free, comma-separated.
    #[arg(long, env = "STATOR_DOCTOR_PORTS", value_name = "PORT", value_delimiter = ',', default_values_t = [8000, 9090])]
    pub ports: Vec<u16>,

    /// HTTP servers whose clocks must agree with this machine's, `http://HOST:PORT`,
    /// comma-separated. The API server's clock is always compared.
    #[arg(long = "clock", env = "STATOR_DOCTOR_CLOCK", value_name = "URL", value_delimiter = ',')]
    pub clocks: Vec<String>,

    /// Kubeconfig file. Without it `KUBECONFIG`, `~/.kube/config` or the pod's service account say
    /// which cluster it is.
    #[arg(long, env = "STATOR_DOCTOR_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace to examine. Default: the one of the kubeconfig or of the service account.
    #[arg(long, env = "STATOR_DOCTOR_NAMESPACE")]
    pub namespace: Option<String>,

    /// Roles whose rights are checked, comma-separated. Default: the rights to install stator.
    #[arg(
        long = "roles",
        env = "STATOR_DOCTOR_ROLES",
        value_enum,
        value_name = "ROLE",
        value_delimiter = ','
    )]
    pub roles: Vec<RoleName>,

    /// Service account of the namespace whose rights are checked. Default: whoever asks.
    #[arg(long, env = "STATOR_DOCTOR_ACCOUNT", value_name = "NAME")]
    pub account: Option<String>,
}

/// Patient of the doctor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Patient {
    /// This machine, to try stator on: a GPU is welcome.
    Laptop,
    /// This machine or container, to serve a fleet: a GPU is needed.
    Node,
    /// The cluster of the kubeconfig: its API, kinds, rights and nodes.
    Cluster,
}

impl Patient {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Laptop => "laptop",
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
    }
}

/// Engine that agents start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// The program `vllm`.
    Vllm,
    /// The Python package `sglang`.
    Sglang,
    /// The program `trtllm-serve`.
    Trtllm,
}

/// Role whose rights a manifest lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// `stator agent`.
    Agent,
    /// `stator proxy`.
    Proxy,
    /// `stator epp`.
    Epp,
    /// `stator operator`.
    Operator,
    /// `stator planner`.
    Planner,
}
