//! The part of the Kubernetes API that several rooms share: a client whose requests have limits,
//! and a [`Follower`] that lists and watches the objects of one query through every way in which a
//! server can fail. An [`Elector`] is one of several processes that lead in turn.
//!
//! It knows kinds of objects only by name, and of their content the [`meta`]data that all have;
//! the callers read the rest. Start reading at [`Follower`].

mod api;
mod follow;
pub mod fuzz;
mod lease;
pub mod meta;
mod resource;

pub use api::{Api, ApiError, Lines};
pub use follow::{Decode, FollowTiming, Follower, Report, Wrap};
pub use lease::{Election, ElectionPace, Elector};
pub use resource::{LEASES, PODS, Query, Resource};

use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::Path;

/// Why there is no connection to a cluster. A server that is out of reach is no reason: it is
/// asked again and again.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file cannot be read, or says nothing useful.
    #[error("kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// The fault.
        reason: String,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error("no cluster configured: {0}")]
    Unconfigured(String),
    /// The configuration makes no client, for example because of its certificates.
    #[error("kubernetes client: {0}")]
    Client(String),
}

/// A connection to a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    /// Its API.
    pub api: Api,
    /// Time limits and pauses of its followers.
    pub timing: FollowTiming,
    /// The namespace of the configuration: the service account's own in a pod.
    pub namespace: String,
}

impl Cluster {
    /// Connects as the kubeconfig file says; without one as `KUBECONFIG` or `~/.kube/config`
    /// say, or as the pod's service account.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if there is no usable configuration.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        stator_runtime::tls::install_provider();
        let config = match kubeconfig {
            None => kube::Config::infer()
                .await
                .map_err(|error| ConnectError::Unconfigured(error.to_string()))?,
            Some(path) => read(path).await.map_err(|error| ConnectError::Kubeconfig {
                path: path.display().to_string(),
                reason: error.to_string(),
            })?,
        };
        Self::of(config, FollowTiming::default())
    }

    /// Connects to the server at a URL without showing who asks, for example to `kubectl proxy`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if it makes no client.
    pub fn at(url: http::Uri, timing: FollowTiming) -> Result<Self, ConnectError> {
        Self::of(kube::Config::new(url), timing)
    }

    fn of(mut config: kube::Config, timing: FollowTiming) -> Result<Self, ConnectError> {
        // Waits are ours, so that they have one bound.
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let client = kube::Client::try_from(config)
            .map_err(|error| ConnectError::Client(error.to_string()))?;
        Ok(Self { api: Api::new(client, timing.request_timeout), timing, namespace })
    }
}

async fn read(path: &Path) -> Result<kube::Config, kube::config::KubeconfigError> {
    let file = Kubeconfig::read_from(path)?;
    kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(kubeconfig: &str, reason: &str) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), kubeconfig).expect("the file is ours");
        match Cluster::connect(Some(file.path())).await {
            Err(ConnectError::Kubeconfig { path, reason: found }) => {
                assert_eq!(path, file.path().display().to_string());
                assert!(found.contains(reason), "{found}");
            }
            other => panic!("{:?} is not a refused kubeconfig", other.map(|_| ())),
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_that_says_nothing_useful_is_refused() {
        check("clusters: 3", "parse").await;
        check("apiVersion: v1\nkind: Config\n", "context").await;
    }
}
