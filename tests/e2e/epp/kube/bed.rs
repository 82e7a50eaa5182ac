//! Pods that are simulated engines, a picker that learns of them from the cluster, and an Envoy.

use crate::epp::testbed::{Bed, CHAT, chat, served_by, until};
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::engine::Engine;
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::http::Client;
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_objects::{pool, reference};
use stator_tests::picker::Picker;
use stator_tests::tooling::installed;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

/// The engines of pods, not all of which exist in the cluster from the start.
pub(super) struct Fleet {
    pub(super) namespace: Namespace,
    /// The engines by pod and rank.
    pub(super) pods: Vec<Vec<Engine>>,
}

/// A fleet, a picker of it and an Envoy that asks it.
pub(super) struct KubeBed {
    pub(super) fleet: Fleet,
    pub(super) picker: Picker,
    pub(super) envoy: Envoy,
}

impl Fleet {
    /// Engines for pods of so many ranks each, in a namespace of the shared cluster. `None`, and
    /// said so, where there is no cluster or no Envoy.
    pub(super) async fn start(pods: usize, ranks: usize) -> Option<Self> {
        installed("STATOR_TEST_ENVOY", "Envoy")?;
        Some(Self::of(Cluster::shared().await?, pods, ranks).await)
    }

    pub(super) async fn of(cluster: &Cluster, pods: usize, ranks: usize) -> Self {
        let namespace = cluster.namespace().await;
        Self { namespace, pods: Engine::pods(pods, ranks).await }
    }

    /// Target ports: one per rank.
    pub(super) fn ports(&self) -> Vec<u16> {
        self.pods[0].iter().map(|engine| engine.address().port()).collect()
    }

    /// The address of the engine of a pod's first rank.
    pub(super) fn address(&self, pod: usize) -> SocketAddr {
        self.pods[pod][0].address()
    }

    /// An `InferencePool` of the pods with this label `app`.
    pub(super) async fn apply_pool(&self, name: &str, app: &str) -> Value {
        self.namespace.apply(pool(name, json!({ "app": app }), &self.ports())).await
    }

    /// Makes a pod with this label `app` exist, ready.
    pub(super) async fn add(&self, pod: usize, app: &str) {
        let (name, ip) = (pod_name(pod), self.address(pod).ip());
        self.namespace.ready_pod(&name, json!({ "app": app }), ip).await;
    }

    /// Merges into a pod.
    pub(super) async fn patch(&self, pod: usize, patch: &Value) {
        let pod = reference("v1", "Pod", &self.namespace.name, &pod_name(pod));
        self.namespace.api.patch(&pod, patch).await;
    }

    /// Flags of a picker of the pool of this name.
    pub(super) fn flags(&self, pool: &str) -> Vec<String> {
        vec![format!("--pool-name={pool}"), format!("--pool-namespace={}", self.namespace.name)]
    }
}

impl KubeBed {
    /// A pool named `pool` of all of a fleet's pods, whose label `app` is `engine`; further flags
    /// of the picker. It is ready.
    pub(super) async fn start(pods: usize, ranks: usize, flags: &[&str]) -> Option<Self> {
        let fleet = Fleet::start(pods, ranks).await?;
        fleet.apply_pool("pool", "engine").await;
        Self::of(fleet, flags, |_, _| {}).await
    }

    /// As [`KubeBed::start`], for a fleet whose pool is there already, and with changes of Envoy's
    /// settings, which may depend on the addresses of the pods.
    pub(super) async fn of(
        fleet: Fleet,
        flags: &[&str],
        change: impl FnOnce(&mut EnvoySettings, &[SocketAddr]),
    ) -> Option<Self> {
        let pods = 0..fleet.pods.len();
        for pod in pods.clone() {
            fleet.add(pod, "engine").await;
        }
        let addresses: Vec<_> = pods.map(|pod| fleet.address(pod)).collect();
        let mut all = fleet.flags("pool");
        all.extend(flags.iter().copied().map(String::from));
        let kubeconfig = Cluster::shared().await?.kubeconfig();
        let mut picker = Self::picker(&kubeconfig, all).await;
        picker.ready().await;
        let mut settings = EnvoySettings::new(picker.address());
        change(&mut settings, &addresses);
        let envoy = Envoy::start(&settings).await?;
        Some(Self { fleet, picker, envoy })
    }

    /// A picker with these flags, which says by this kubeconfig who it is. It may not be ready.
    pub(super) async fn with(fleet: Fleet, kubeconfig: &Path, flags: Vec<String>) -> Option<Self> {
        let picker = Self::picker(kubeconfig, flags).await;
        let envoy = Envoy::start(&EnvoySettings::new(picker.address())).await?;
        Some(Self { fleet, picker, envoy })
    }

    async fn picker(kubeconfig: &Path, mut flags: Vec<String>) -> Picker {
        flags.push(format!("--kubeconfig={}", kubeconfig.display()));
        flags.push("--secure-serving=false".to_owned());
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        Picker::start(&flags).await
    }

    /// Waits until the requests go to these pods, first ranks, and to all of them.
    pub(super) async fn serves(&self, pods: &[usize]) {
        let addresses: Vec<_> = pods.iter().map(|pod| self.fleet.address(*pod)).collect();
        serves(&self.client(), &addresses).await;
    }
}

impl Bed for KubeBed {
    fn engines(&self) -> Vec<&Engine> {
        self.fleet.pods.iter().flatten().collect()
    }

    fn picker(&self) -> &Picker {
        &self.picker
    }

    fn envoy(&self) -> &Envoy {
        &self.envoy
    }
}

/// Waits until the requests of a client go to these endpoints and to all of them; where there are
/// none, until they get 503.
pub(super) async fn serves(client: &Client, endpoints: &[SocketAddr]) {
    let expected: BTreeSet<_> = endpoints.iter().copied().map(Some).collect();
    let nobody = BTreeSet::from([None]);
    let expected = if expected.is_empty() { nobody } else { expected };
    until(&format!("requests go to {endpoints:?}"), async || {
        let mut served = BTreeSet::new();
        for n in 0..4 * endpoints.len().max(1) {
            let reply = client.post(CHAT, &chat("model", &format!("prompt {n}"))).await;
            served.insert(served_by(&reply));
            if !reply.status.is_success() {
                assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{reply:?}");
            }
        }
        (served == expected).then_some(())
    })
    .await;
}

pub(super) fn pod_name(pod: usize) -> String {
    format!("engine-{pod}")
}
