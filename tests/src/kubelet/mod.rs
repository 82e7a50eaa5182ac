//! A kubelet for tests: it runs the pods of its node as processes of this machine.
//!
//! A pod has a network namespace with an address of its own. A container has a mount namespace: its
//! root is this machine's, with the pod's volumes mounted over it, and what it writes elsewhere goes
//! with it. There are no images: a map says which program stands in for which image. There are no
//! limits on resources, no users but those that a pod names, and volumes do not follow changes of
//! their sources.
//!
//! Start reading at [`run`]; `pod` is the life of one pod.

mod container;
mod environment;
mod heartbeat;
mod names;
mod network;
mod pod;
mod probe;
mod process;
mod status;
mod volumes;

pub use network::BRIDGE_NAME;

use network::Addresses;
use pod::PodRunner;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stator_kube::{Api, ApiError, Cluster, PODS, Query, Resource};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Name by which objects know the kubelet as their author.
const MANAGER: &str = "kubelet";
/// Pause before the pods are listed again after a failure.
const RETRY: Duration = Duration::from_millis(100);
/// Last byte of the address of the bridge, by which nodes reach pods.
pub const BRIDGE: u8 = 2;
const NODES: Resource = Resource { group: "", version: "v1", plural: "nodes" };

/// A node and its place on this machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NodeSettings {
    /// Its name.
    pub name: String,
    /// A kubeconfig with all rights.
    pub kubeconfig: PathBuf,
    /// A folder for volumes, and in its folder `logs` for what containers print: a file
    /// `NAMESPACE_POD_CONTAINER_START.log` each.
    pub directory: PathBuf,
    /// Host and port of the API server, as pods reach it.
    pub server: (String, u16),
    /// The first three bytes of all addresses.
    pub network: [u8; 3],
    /// The last byte of the node's first address for pods.
    pub first: u8,
    /// Most pods that have an address at once.
    pub pods_max: u8,
    /// The last byte of the node's own address.
    pub own: u8,
    /// Files and folders of this machine that all containers have, by their places there.
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// Files that containers of an image have beside, in place of those of the same place, by the
    /// image's name without registry and tag.
    pub image_files: BTreeMap<String, BTreeMap<PathBuf, PathBuf>>,
    /// Programs that images start, by image: as a pod writes it, or only its name.
    pub images: BTreeMap<String, String>,
    /// Length of a second in the periods and delays of probes. Time limits of probes are real.
    pub probe_second: Duration,
}

impl NodeSettings {
    /// The node's own address, where its pods ask for names.
    fn address(&self) -> Ipv4Addr {
        let [a, b, c] = self.network;
        Ipv4Addr::new(a, b, c, self.own)
    }
}

/// Parts that all pods of a node share.
struct Node {
    settings: NodeSettings,
    api: Api,
    addresses: Mutex<Addresses>,
}

impl Node {
    /// An object of the core group.
    async fn object(&self, plural: &str, namespace: &str, name: &str) -> Result<Value, ApiError> {
        let path = format!("/api/v1/namespaces/{namespace}/{plural}/{name}");
        let answer = self.api.call(http::Method::GET, &path, Vec::new()).await?;
        serde_json::from_slice(&answer).map_err(|error| ApiError::Malformed(error.to_string()))
    }
}

/// Registers the node and runs its pods, until it is dropped.
///
/// # Errors
///
/// Without a usable kubeconfig, and when the node cannot be registered.
pub async fn run(settings: NodeSettings) -> Result<Infallible, Box<dyn std::error::Error>> {
    let cluster = Cluster::connect(Some(&settings.kubeconfig)).await?;
    names::serve(&settings, cluster.clone()).await?;
    register(&cluster.api, &settings).await?;
    tokio::spawn(heartbeat::beat(cluster.api.clone(), settings.name.clone()));
    println!("node {}", settings.name);
    let addresses = Addresses::new(settings.network, settings.first, settings.pods_max);
    let node = Node { settings, api: cluster.api, addresses: Mutex::new(addresses) };
    let mut pods = Pods { node: Arc::new(node), known: BTreeMap::new(), tasks: JoinSet::new() };
    loop {
        if let Err(error) = pods.follow().await {
            eprintln!("watching pods: {error}");
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Creates the node and says that it is ready.
async fn register(api: &Api, settings: &NodeSettings) -> Result<(), ApiError> {
    let path = format!("{}/{}", NODES.path(None), settings.name);
    let room = json!({ "cpu": "64", "memory": "256Gi", "ephemeral-storage": "256Gi",
        "nvidia.com/gpu": "8", "pods": settings.pods_max.to_string() });
    let mut node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": settings.name, "labels": {
            "kubernetes.io/hostname": settings.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        } },
    });
    api.apply(&path, MANAGER, node.to_string().into()).await?;
    node["status"] = json!({
        "capacity": room,
        "allocatable": room,
        "addresses": [{ "type": "InternalIP", "address": settings.address() }],
        "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
    });
    api.apply(&format!("{path}/status"), MANAGER, node.to_string().into()).await.map(drop)
}

/// The pods that run.
struct Pods {
    node: Arc<Node>,
    /// The newest state of each pod by its identity; `None` of one that is gone.
    known: BTreeMap<String, watch::Sender<Option<Value>>>,
    tasks: JoinSet<()>,
}

impl Pods {
    /// Lists the pods of the node, and watches them until the server ends the watch.
    async fn follow(&mut self) -> Result<(), ApiError> {
        let query = Query {
            resource: PODS,
            namespace: None,
            labels: None,
            fields: Some(format!("spec.nodeName={}", self.node.settings.name)),
        };
        let read = |line: &[u8]| {
            serde_json::from_slice::<Value>(line)
                .map_err(|error| ApiError::Malformed(error.to_string()))
        };
        let list = self.node.api.call(http::Method::GET, &query.path(&[]), Vec::new()).await?;
        let list = read(&list)?;
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let there: Vec<_> = all.iter().map(identity).collect();
        for state in self.known.iter().filter(|(known, _)| !there.contains(known)) {
            state.1.send_replace(None);
        }
        all.into_iter().for_each(|pod| self.set(pod));
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let path = query.path(&[("watch", "true"), ("resourceVersion", version)]);
        let mut events = self.node.api.watch(&path).await?;
        while let Some(line) = events.next().await? {
            let mut event = read(&line)?;
            let pod = event["object"].take();
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => self.set(pod),
                Some("DELETED") => {
                    if let Some(state) = self.known.get(&identity(&pod)) {
                        state.send_replace(None);
                    }
                }
                _ => return Ok(()),
            }
            self.known.retain(|_, state| !state.is_closed());
        }
        Ok(())
    }

    fn set(&mut self, pod: Value) {
        let identity = identity(&pod);
        if let Some(state) = self.known.get(&identity) {
            state.send_replace(Some(pod));
            return;
        }
        let (sender, state) = watch::channel(Some(pod));
        self.known.insert(identity, sender);
        self.tasks.spawn(PodRunner::new(self.node.clone(), state).run());
        while self.tasks.try_join_next().is_some() {}
    }
}

fn identity(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}
