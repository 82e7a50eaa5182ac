//! Pools of a Kubernetes cluster. The only place that knows Kubernetes.
//!
//! A [`Cluster`] is a connection; [`Cluster::watch`] follows one pool, [`Elector`] is one of
//! several pickers that lead in turn, [`Reviewer`] asks who may read metrics.

mod api;
mod follow;
mod lease;
#[cfg(test)]
mod manifests_tests;
mod objects;
mod pool;
mod resource;
mod review;
mod state;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;

pub use api::ApiError;
pub use lease::{Election, Elector};
pub use objects::PoolRef;
pub use resource::{ELECTION, POOL_GROUP, REVIEWS, Resource, TOPOLOGY, WATCHED};
pub use review::{Access, Reviewer};

use crate::{PoolSpec, PoolView, Watched};
use api::Api;
use follow::Timing;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pool::PoolTask;
use state::State;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// A connection to a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    api: Api,
    timing: Timing,
    namespace: String,
    node_labels: Arc<[String]>,
}

/// Why there is no connection to a cluster. A server that is out of reach is no reason: it is
/// asked again and again.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file cannot be read, or says nothing useful.
    #[error("kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error("no cluster configured: {0}")]
    Unconfigured(String),
    /// The configuration makes no client, for example because of its certificates.
    #[error("kubernetes client: {0}")]
    Client(String),
}

impl Cluster {
    /// Connects as the kubeconfig file says; without one as `KUBECONFIG` or `~/.kube/config`
    /// say, or as the pod's service account. The process has installed a TLS provider before.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if there is no usable configuration.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            None => kube::Config::infer()
                .await
                .map_err(|error| ConnectError::Unconfigured(error.to_string()))?,
            Some(path) => read(path).await.map_err(|error| ConnectError::Kubeconfig {
                path: path.display().to_string(),
                reason: error.to_string(),
            })?,
        };
        Self::of(config, Timing::default())
    }

    fn of(mut config: kube::Config, timing: Timing) -> Result<Self, ConnectError> {
        // Waits are ours, so that they have one bound.
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let client = kube::Client::try_from(config)
            .map_err(|error| ConnectError::Client(error.to_string()))?;
        let (api, node_labels) = (Api::new(client, timing.request_timeout), Arc::default());
        Ok(Self { api, timing, namespace, node_labels })
    }

    /// The same, where endpoints carry these labels of the nodes that they are on. Of a node's name
    /// every pod tells; the others are read from [`TOPOLOGY`].
    #[must_use]
    pub fn with_node_labels(self, labels: Vec<String>) -> Self {
        Self { node_labels: labels.into(), ..self }
    }

    /// The namespace of the configuration: the service account's own in a pod.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Follows a pool from now on. It is described by an `InferencePool`, or by `standalone`.
    ///
    /// Must be called within a Tokio runtime.
    pub fn watch(&self, pool: PoolRef, standalone: Option<PoolSpec>) -> Watched {
        let with_object = standalone.is_none();
        let node_labels = self.node_labels.clone();
        let state = standalone.map_or_else(State::new, State::standalone);
        let state = state.with_node_labels(&node_labels);
        let (sender, view) = watch::channel(Arc::new(PoolView::default()));
        let (api, timing) = (self.api.clone(), self.timing);
        let task = PoolTask { api, timing, pool, node_labels, state, view: sender };
        Watched { view, task: tokio::spawn(task.run(with_object)) }
    }
}

async fn read(path: &Path) -> Result<kube::Config, kube::config::KubeconfigError> {
    let file = Kubeconfig::read_from(path)?;
    kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await
}

#[cfg(test)]
mod connect_tests {
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
