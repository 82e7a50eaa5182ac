//! The agents of a namespace: what they published, and which of their pods are ready.

use super::objects::{Published, published, ready_in_slice, ready_pod};
use super::{METADATA, SLICES, connect};
use crate::known::Known;
use crate::roster::{Absence, Sight, Sighting};
use crate::source::{KubernetesSource, Readiness};
use crate::{DiscoveryError, Watch};
use stator_kube::{Cluster, PODS, Query, Report};
use std::collections::BTreeSet;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Reports that may wait; the watches are held up beyond them.
const REPORTS_MAX: usize = 256;

/// What the watches say.
pub(super) enum News {
    /// Of what agents published.
    Published(Report<Published>),
    /// Of the pods that are ready.
    Ready(Report<Vec<String>>),
}

/// Follows a namespace.
pub(crate) struct Watcher {
    news: mpsc::Receiver<News>,
    state: State,
    _tasks: JoinSet<()>,
}

impl Watcher {
    pub(crate) async fn open(source: &KubernetesSource) -> Result<Self, DiscoveryError> {
        let (cluster, namespace) = connect(source).await?;
        Ok(Self::of(&cluster, namespace, source))
    }

    pub(super) fn of(cluster: &Cluster, namespace: String, source: &KubernetesSource) -> Self {
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
            Box::new(News::Published),
        );
        let (resource, decode): (_, fn(&str) -> _) = match source.readiness {
            Readiness::Pods => (PODS, ready_pod),
            Readiness::EndpointSlices => (SLICES, ready_in_slice),
        };
        let ready = cluster.follow(
            query(resource, source.selector.clone()),
            Box::new(decode),
            sender,
            Box::new(News::Ready),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(metadata.run());
        tasks.spawn(ready.run());
        Self { news, state: State::default(), _tasks: tasks }
    }
}

#[async_trait::async_trait]
impl Watch for Watcher {
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

/// What is known of a namespace.
#[derive(Default)]
pub(super) struct State {
    published: Known<Published>,
    ready: Known<Vec<String>>,
    sight: Sight,
}

impl State {
    pub(super) fn apply(&mut self, news: News) {
        match news {
            News::Published(report) => self.published.apply(report),
            News::Ready(report) => self.ready.apply(report),
        }
    }

    /// The agents whose pods are ready. A resource that an earlier pod of the same name left
    /// behind is not of the present one, so pods are told by their identity. An agent whose pod is
    /// not ready is doubted: the kubelet may be out of reach instead of the agent.
    pub(super) fn sighting(&mut self) -> Sighting {
        let ready: BTreeSet<&String> = self.ready.objects.values().flatten().collect();
        let is_ready = |published: &Published| published.owners.iter().any(|o| ready.contains(o));
        let (ready, others): (Vec<_>, Vec<_>) =
            self.published.objects.values().partition(|published| is_ready(published));
        let agents = ready.into_iter().flat_map(|published| &published.agents);
        let seen = self.sight.of(agents.map(|(agent, read)| (agent.as_str(), read)));
        let others = others.into_iter().flat_map(|published| published.agents.keys());
        // One that has moved to another pod is judged by that.
        let doubted = others
            .filter(|agent| !seen.records.contains_key(*agent) && !seen.malformed.contains(*agent));
        Sighting {
            complete: self.published.listed && self.ready.listed,
            stale: self.published.lost || self.ready.lost,
            doubted: doubted.cloned().collect(),
            absence: Absence::Departure,
            ..seen
        }
    }
}
