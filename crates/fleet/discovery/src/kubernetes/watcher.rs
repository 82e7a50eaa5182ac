//! The agents of a namespace: what they published, and which of their pods are ready.

use super::objects::{AgentsObject, ListedPod, listed_in_slice, listed_pod, published};
use super::{METADATA, SLICES, connect};
use crate::known::KnownObjects;
use crate::roster::{Absence, Sight, Sighting};
use crate::source::{KubernetesSource, Readiness};
use crate::{DiscoveryError, Watch};
use stator_kube::{Cluster, PODS, Query, Report};
use std::collections::BTreeSet;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Reports that may wait; the watches are held up beyond them.
const REPORTS_MAX: usize = 256;

/// News from the watches.
pub(super) enum WatchNews {
    /// Of what agents published.
    Published(Report<AgentsObject>),
    /// Changes of the pods that stay.
    Pods(Report<Vec<ListedPod>>),
}

/// Follows a namespace.
pub(crate) struct KubernetesWatcher {
    news: mpsc::Receiver<WatchNews>,
    state: NamespaceState,
    _tasks: JoinSet<()>,
}

impl KubernetesWatcher {
    pub(crate) async fn open(source: &KubernetesSource) -> Result<Self, DiscoveryError> {
        let (cluster, namespace) = connect(source).await?;
        Ok(Self::of(&cluster, namespace, source))
    }

    pub(super) fn of(cluster: &Cluster, namespace: String, source: &KubernetesSource) -> Self {
        // One channel for both: an agent counts when it has published itself and its pod is ready.
        let (sender, news) = mpsc::channel(REPORTS_MAX);
        let query = |resource, labels| Query {
            resource,
            namespace: Some(namespace.clone()),
            labels,
            fields: None,
        };
        let metadata = cluster.follow(
            query(METADATA, None),
            Box::new(published),
            sender.clone(),
            Box::new(WatchNews::Published),
        );
        let (resource, decode): (_, fn(&str) -> _) = match source.readiness {
            Readiness::Pods => (PODS, listed_pod),
            Readiness::EndpointSlices => (SLICES, listed_in_slice),
        };
        let pods = cluster.follow(
            query(resource, source.selector.clone()),
            Box::new(decode),
            sender,
            Box::new(WatchNews::Pods),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(metadata.run());
        tasks.spawn(pods.run());
        Self { news, state: NamespaceState::default(), _tasks: tasks }
    }
}

#[async_trait::async_trait]
impl Watch for KubernetesWatcher {
    async fn next(&mut self) -> Sighting {
        match self.news.recv().await {
            Some(news) => self.state.apply(news),
            // The followers end when this does, or when they fail.
            None => {
                tracing::error!("the watches of the cluster have ended");
                std::future::pending().await
            }
        }
        while let Ok(news) = self.news.try_recv() {
            self.state.apply(news);
        }
        self.state.sighting()
    }
}

/// Known objects of a namespace.
#[derive(Default)]
pub(super) struct NamespaceState {
    published: KnownObjects<AgentsObject>,
    pods: KnownObjects<Vec<ListedPod>>,
    sight: Sight,
}

impl NamespaceState {
    pub(super) fn apply(&mut self, news: WatchNews) {
        match news {
            WatchNews::Published(report) => self.published.apply(report),
            WatchNews::Pods(report) => self.pods.apply(report),
        }
    }

    /// The agents whose pods are ready. A resource that an earlier pod of the same name left
    /// behind is not of the present one, so pods are told by their identity. An agent whose pod is
    /// not ready is doubted: the kubelet may be out of reach instead of the agent. One whose pod is
    /// deleted has departed.
    pub(super) fn sighting(&mut self) -> Sighting {
        let pods = || self.pods.objects.values().flatten();
        let ready: BTreeSet<_> = pods().filter(|pod| pod.is_ready).map(|pod| &pod.uid).collect();
        let listed: BTreeSet<_> = pods().map(|pod| &pod.uid).collect();
        let of = |pods: &BTreeSet<&String>| {
            let owned = |it: &&AgentsObject| it.owners.iter().any(|owner| pods.contains(owner));
            self.published.objects.values().filter(owned).collect::<Vec<_>>()
        };
        let agents = of(&ready).into_iter().flat_map(|published| &published.agents);
        let seen = self.sight.of(agents.map(|(agent, read)| (agent.as_str(), read)));
        let doubted = of(&listed).into_iter().flat_map(|published| published.agents.keys());
        // One that is seen beside a ready pod is judged by that.
        let doubted = doubted
            .filter(|agent| !seen.records.contains_key(*agent) && !seen.malformed.contains(*agent));
        Sighting {
            complete: self.published.listed && self.pods.listed,
            stale: self.published.lost || self.pods.lost,
            doubted: doubted.cloned().collect(),
            absence: Absence::Departure,
            ..seen
        }
    }
}
