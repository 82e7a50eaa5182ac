//! Receivers of decisions, which also say what they were last asked for.

mod file;
pub(crate) mod object;
mod order;
mod scale;

pub(crate) use file::replace;
pub(crate) use order::{GraphReplicas, OutputError};

use crate::config::OutputSettings;
use crate::replicas::Replicas;
use file::ReplicasFile;
use scale::Scaler;

/// A receiver of decisions.
pub(crate) enum Output {
    /// Nobody is asked for anything.
    Advice,
    /// A supervisor that reads a file.
    File(ReplicasFile),
    /// Objects of a cluster.
    Scale(Box<Scaler>),
}

impl Output {
    /// Connects to the receiver that the settings name.
    ///
    /// # Errors
    ///
    /// There is no usable configuration of a cluster.
    pub(crate) async fn open(settings: OutputSettings) -> anyhow::Result<Self> {
        Ok(match settings {
            OutputSettings::Advice => Self::Advice,
            OutputSettings::File(path) => Self::File(ReplicasFile::new(path)),
            OutputSettings::Scale { objects, namespace, kubeconfig } => {
                Self::Scale(Box::new(Scaler::connect(objects, namespace, kubeconfig).await?))
            }
        })
    }

    /// The replicas that were last asked for, by whomever; none if nobody was asked yet.
    pub(crate) async fn ordered(&mut self, model: &str) -> Result<Option<Replicas>, OutputError> {
        match self {
            Self::Advice => Ok(None),
            Self::File(file) => file.read(model).await,
            Self::Scale(scaler) => scaler.read(model).await.map(Some),
        }
    }

    /// Asks for replicas.
    pub(crate) async fn order(&mut self, wanted: &GraphReplicas) -> Result<(), OutputError> {
        match self {
            Self::Advice => Ok(()),
            Self::File(file) => file.write(wanted).await,
            Self::Scale(scaler) => scaler.write(wanted).await,
        }
    }
}
