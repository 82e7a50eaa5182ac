//! Pools of a Kubernetes cluster. The only place that knows Kubernetes.
//!
//! A [`Cluster`] is a connection; [`Cluster::watch`] follows one pool, [`Cluster::elector`]
//! is one of several pickers that lead in turn, [`Reviewer`] asks who may read metrics.

#[cfg(test)]
mod manifests_tests;
pub(crate) mod objects;
mod pool;
mod resource;
mod review;
mod state;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;

pub use objects::PoolRef;
pub use resource::{ELECTION, POOL_GROUP, REVIEWS, TOPOLOGY, WATCHED};
pub use review::{ReadAccess, Reviewer};
pub use stator_kube::{ApiError, ConnectError, Election, Elector, Resource};

use crate::{PoolSpec, PoolView, PoolWatch};
use pool::PoolTask;
use state::PoolState;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// A connection to a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    kube: stator_kube::Cluster,
    node_labels: Arc<[String]>,
}

impl Cluster {
    /// Connects as the kubeconfig file says; without one as `KUBECONFIG` or `~/.kube/config`
    /// say, or as the pod's service account.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if there is no usable configuration.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        stator_kube::Cluster::connect(kubeconfig).await.map(Self::of)
    }

    fn of(kube: stator_kube::Cluster) -> Self {
        Self { kube, node_labels: Arc::default() }
    }

    /// Lets endpoints carry these labels of their nodes. Every pod gives its node's name; the other
    /// labels are read from [`TOPOLOGY`].
    #[must_use]
    pub fn with_node_labels(self, labels: Vec<String>) -> Self {
        Self { node_labels: labels.into(), ..self }
    }

    /// The namespace of the configuration: the service account's own in a pod.
    pub fn namespace(&self) -> &str {
        &self.kube.namespace
    }

    /// A picker called `identity` among those of a pool, which lead in turn.
    pub fn elector(&self, namespace: &str, pool: &str, identity: &str) -> Elector {
        let lease = format!("epp-{namespace}-{pool}.llm-d.ai");
        Elector::new(&self.kube, namespace, &lease, identity)
    }

    /// Follows a pool from now on. It is described by an `InferencePool`, or by `standalone`.
    ///
    /// Must be called within a Tokio runtime.
    pub fn watch(&self, pool: PoolRef, standalone: Option<PoolSpec>) -> PoolWatch {
        let with_object = standalone.is_none();
        let node_labels = self.node_labels.clone();
        let state = standalone.map_or_else(PoolState::new, PoolState::standalone);
        let state = state.with_node_labels(&node_labels);
        let (sender, view) = watch::channel(Arc::new(PoolView::default()));
        let kube = self.kube.clone();
        let task = PoolTask { kube, pool, node_labels, state, view: sender };
        PoolWatch { view, task: tokio::spawn(task.run(with_object)) }
    }
}
