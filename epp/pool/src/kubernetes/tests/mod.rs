//! The edge against an API server that misbehaves.

mod faults;
mod reviews;

use super::{Cluster, PoolRef};
use crate::{PoolView, PoolWatch};
use serde_json::{Value, json};
use stator_kube_testkit::{Server, soon};
use std::sync::Arc;
use tokio::sync::watch;

const PODS: &str = "/api/v1/namespaces/n/pods";
const POOLS: &str = "/apis/inference.networking.k8s.io/v1/namespaces/n/inferencepools";
const OBJECTIVES: &str = "/apis/llm-d.ai/v1alpha2/namespaces/n/inferenceobjectives";
const LEGACY_OBJECTIVES: &str =
    "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/n/inferenceobjectives";
const REWRITES: &str = "/apis/llm-d.ai/v1alpha2/namespaces/n/inferencemodelrewrites";

fn cluster(server: &Server) -> Cluster {
    Cluster::of(server.cluster())
}

fn pool(app: &str, ports: &[u16]) -> Value {
    let ports: Vec<_> = ports.iter().map(|port| json!({"number": port})).collect();
    let spec = json!({"selector": {"matchLabels": {"app": app}}, "targetPorts": ports});
    json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
}

fn pod(name: &str, app: &str, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": "u", "labels": {"app": app}},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
    })
}

fn objective(name: &str, priority: i32) -> Value {
    let spec = json!({"priority": priority, "poolRef": {"name": "p"}});
    json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec})
}

/// A pool of the server, followed.
struct Followed {
    server: Server,
    view: watch::Receiver<Arc<PoolView>>,
    _watched: PoolWatch,
}

impl Followed {
    fn new(server: Server) -> Self {
        let watched = cluster(&server).watch(PoolRef::new("n", "p"), None);
        Self { server, view: watched.view(), _watched: watched }
    }

    /// A pool with the pods `a` and `b`, both ready, and all of it known.
    async fn with_two_pods() -> Self {
        let server = Server::start().await;
        server.put(POOLS, pool("x", &[8000]));
        server.put(PODS, pod("a", "x", true));
        server.put(PODS, pod("b", "x", true));
        let mut followed = Self::new(server);
        followed.until_pods(&["a", "b"]).await;
        followed
    }

    async fn until(&mut self, accept: impl Fn(&PoolView) -> bool) -> Arc<PoolView> {
        let found = soon(self.view.wait_for(|view| accept(view))).await;
        found.expect("the pool is followed").clone()
    }

    /// Waits until the pool is synced, in touch, and has these pods.
    async fn until_pods(&mut self, expected: &[&str]) {
        self.until(|view| view.synced && view.stale_since.is_none() && pods(view) == expected)
            .await;
    }
}

/// Pods with endpoints, by name.
fn pods(view: &PoolView) -> Vec<&str> {
    let mut names: Vec<_> = view.endpoints.iter().map(|endpoint| &*endpoint.pod).collect();
    names.sort_unstable();
    names.dedup();
    names
}
