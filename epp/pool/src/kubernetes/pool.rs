//! The task of one pool: starts what follows its objects, and publishes what they come to.

use super::objects::{self, PoolRef};
use super::resource::{Group, NODES, POOLS};
use super::state::{PodWatch, PoolState, Update};
use crate::PoolView;
use stator_kube::{Cluster, Decode, PODS, Query, Report, Resource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Reports that wait to be taken note of; followers wait beyond it.
const UPDATES_MAX: usize = 1024;

/// Follows the objects of one pool.
pub(super) struct PoolTask {
    pub(super) kube: Cluster,
    pub(super) pool: PoolRef,
    /// Labels of nodes that endpoints carry; nodes are not followed where there are none.
    pub(super) node_labels: Arc<[String]>,
    pub(super) state: PoolState,
    pub(super) view: watch::Sender<Arc<PoolView>>,
}

/// Tasks that follow the objects of a pool.
struct Followers {
    updates: mpsc::Sender<Update>,
    /// Dropping the set ends all tasks.
    tasks: JoinSet<()>,
    /// Tasks that follow pods, by generation.
    pods: BTreeMap<u64, AbortHandle>,
}

impl PoolTask {
    /// Runs until it is dropped. `with_object`: whether an `InferencePool` describes the pool.
    pub(super) async fn run(mut self, with_object: bool) {
        let (updates, mut received) = mpsc::channel(UPDATES_MAX);
        let mut followers = Followers { updates, tasks: JoinSet::new(), pods: BTreeMap::new() };
        if with_object {
            self.follow_pool(&mut followers);
        }
        for group in Group::ALL {
            self.follow_policies(group, &mut followers);
        }
        if !self.node_labels.is_empty() {
            self.follow_nodes(&mut followers);
        }
        let mut conflicts = BTreeSet::new();
        loop {
            self.adjust(&mut followers);
            self.publish();
            let Some(update) = received.recv().await else { return };
            self.state.apply(update, Instant::now());
            // What came together is published together.
            for _ in 0..UPDATES_MAX {
                let Ok(update) = received.try_recv() else { break };
                self.state.apply(update, Instant::now());
            }
            self.warn_of_conflicts(&mut conflicts);
        }
    }

    fn publish(&self) {
        let view = self.state.view();
        self.view.send_if_modified(|known| {
            let changed = **known != view;
            if changed {
                *known = Arc::new(view);
            }
            changed
        });
    }

    /// Starts and ends watches of pods until those run that should.
    fn adjust(&self, followers: &mut Followers) {
        let wanted: BTreeMap<_, _> =
            self.state.pod_watches().map(|watch| (watch.generation, watch)).collect();
        followers.pods.retain(|generation, task| {
            let keep = wanted.contains_key(generation);
            if !keep {
                task.abort();
            }
            keep
        });
        for (generation, watch) in wanted {
            if !followers.pods.contains_key(&generation) {
                let task = self.follow_pods(watch, followers);
                followers.pods.insert(generation, task);
            }
        }
        // Ended tasks are forgotten.
        while followers.tasks.try_join_next().is_some() {}
    }

    fn warn_of_conflicts(&self, known: &mut BTreeSet<String>) {
        let conflicts = self.state.conflicts();
        for name in conflicts.difference(known) {
            tracing::warn!(
                pool = self.pool.name,
                name,
                "a policy of this name is in two API groups; the one of llm-d.ai counts"
            );
        }
        *known = conflicts;
    }

    fn follow_pool(&self, followers: &mut Followers) {
        let name = format!("metadata.name={}", self.pool.name);
        let query = Query { fields: Some(name), ..self.all(POOLS) };
        self.follow(query, Box::new(objects::pool), Update::Pool, followers);
    }

    fn follow_nodes(&self, followers: &mut Followers) {
        let wanted = self.node_labels.clone();
        let query = Query { namespace: None, ..self.all(NODES) };
        let decode: Decode<_> = Box::new(move |json| objects::node(json, &wanted));
        self.follow(query, decode, Update::Nodes, followers);
    }

    fn follow_policies(&self, group: Group, followers: &mut Followers) {
        let (of, also_of) = (self.pool.clone(), self.pool.clone());
        let objective: Decode<_> = Box::new(move |json| objects::objective(json, &of));
        let query = self.all(group.objectives());
        self.follow(query, objective, move |report| Update::Objectives(group, report), followers);
        let rewrite: Decode<_> = Box::new(move |json| objects::rewrite(json, &also_of));
        let query = self.all(group.rewrites());
        self.follow(query, rewrite, move |report| Update::Rewrites(group, report), followers);
    }

    fn follow_pods(&self, watch: &PodWatch, followers: &mut Followers) -> AbortHandle {
        let query = Query { labels: Some(watch.spec.selector.to_string()), ..self.all(PODS) };
        let generation = watch.generation;
        let wrap = move |report| Update::Pods(generation, report);
        self.follow(query, Box::new(objects::pod), wrap, followers)
    }

    /// All objects of a kind in the pool's namespace.
    fn all(&self, resource: Resource) -> Query {
        let namespace = Some(self.pool.namespace.clone());
        Query { resource, namespace, labels: None, fields: None }
    }

    fn follow<T: Send + 'static>(
        &self,
        query: Query,
        decode: Decode<T>,
        wrap: impl Fn(Report<T>) -> Update + Send + Sync + 'static,
        followers: &mut Followers,
    ) -> AbortHandle {
        let updates = followers.updates.clone();
        let follower = self.kube.follow(query, decode, updates, Box::new(wrap));
        followers.tasks.spawn(follower.run())
    }
}
