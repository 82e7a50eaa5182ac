//! A cluster whose pods run: an API server with controllers and a scheduler, and nodes whose
//! [kubelets](crate::kubelet) run pods as processes of this machine.
//!
//! All pods have addresses on one bridge, which this process reaches too. There is no kube-proxy: the
//! name of a Service leads to its pods, and so do its [endpoints](PodSpace::endpoints) for this
//! process. Ports are those of the pods.

use crate::kube::{Cluster, Machinery, Namespace};
use crate::kube_api::Watched;
use crate::kube_objects::reference;
use crate::kubelet::{BRIDGE, BRIDGE_NAME, NodeSettings};
use crate::process::{binary, built};
use crate::soon;
use crate::tooling::Tool;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{OnceCell, watch};

/// Networks that a test may take: 100.126.0.0/15, which no host of the internet has, and which proxies
/// take for the network of pods.
///
/// Source: RFC 6598.
const NETWORKS: u32 = 512;
/// Addresses that each node has for its pods.
const PODS_MAX: u8 = 60;
/// Last byte of the address of this process.
const GATEWAY: u8 = 1;
/// Last byte of the address of the first node; those of the others follow.
const FIRST_NODE: u8 = 3;
/// Length of a second of probes.
const PROBE_SECOND: Duration = Duration::from_millis(100);
/// Programs that stand in for images, by the image's name without registry and tag.
const IMAGES: [(&str, &str); 7] = [
    ("echo", "echo"),
    ("envoy", "envoy"),
    ("stator", "stator"),
    // With a pretend vLLM beside.
    ("stator-vllm", "stator"),
    // Without engines: agents simulate those that they are to start.
    (SIMULATED_IMAGE, "stator"),
    // Those of graphs, ours and Dynamo's examples.
    ("dynamo", "stator"),
    ("dynamo-planner", "stator"),
];
/// The image whose agents start no engine, and its program in the place of `stator`.
const SIMULATED_IMAGE: &str = "stator-simulated";
const SIMULATED: &str = r#"#!/bin/sh
# Runs the command line that follows, with a simulated engine in the place of a stock one.
own=yes
for word; do
    shift
    case $own$word in
    yes--) own=no ;;
    yes--engine=*) set -- "$@" --engine=sim ;;
    yes--connector=* | yes--model=*) ;;
    yes*) set -- "$@" "$word" ;;
    esac
done
exec /usr/local/bin/stator-program "$@"
"#;
/// Place of the bundled model's folder in containers.
pub const MODEL: &str = "/models/Qwen3-0.6B";

/// Links the namespace of process `$2` to this one by a link that is called `$1` here, and makes a
/// bridge called `$5` there. `$3` is the address here, `$4` that of the bridge.
///
/// A bridge without a hardware address of its own takes the lowest of its links': whenever a pod
/// with that one came or went, the others did not reach their node, and its DNS, for half a minute.
const BUILD: &str = r#"
ip link add "$1" type veth peer name uplink netns "$2"
ip addr add "$3/24" dev "$1"
ip link set dev "$1" up
nsenter --net="/proc/$2/ns/net" sh -ec '
    ip link set dev lo up
    ip link add "$2" address 02:00:00:00:00:01 type bridge
    ip addr add "$1/24" dev "$2"
    ip link set dev "$2" up
    ip link set dev uplink master "$2" up
' sh "$4" "$5"
"#;

/// A cluster whose pods run.
pub struct PodCluster {
    cluster: Cluster,
    network: PodsNetwork,
    nodes: Vec<(String, Tool)>,
    directory: TempDir,
}

/// The bridge of the pods, in a network namespace of its own. It goes when this is dropped.
struct PodsNetwork {
    holder: Tool,
    /// The first three bytes of all addresses.
    prefix: [u8; 3],
}

impl PodCluster {
    /// The cluster of two nodes that all tests of a program share, each in a
    /// [`PodCluster::space`] of its own. `None`, and said so, where there can be none.
    ///
    /// # Panics
    ///
    /// When it does not start, or cannot in continuous integration.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<PodCluster>> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start(&["node-a", "node-b"])).await.as_ref()
    }

    /// A cluster of these nodes for one test. `None`, and said so, where there can be none.
    ///
    /// # Panics
    ///
    /// As [`PodCluster::shared`].
    pub async fn start(names: &[&str]) -> Option<Self> {
        Self::start_with(names, Machinery::Controllers).await
    }

    /// A cluster of these nodes for one test, whose scheduler knows gangs. `None`, and said so, where
    /// there can be none.
    ///
    /// # Panics
    ///
    /// As [`PodCluster::shared`].
    pub async fn start_with_gangs(names: &[&str]) -> Option<Self> {
        Self::start_with(names, Machinery::Gangs).await
    }

    async fn start_with(names: &[&str], machinery: Machinery) -> Option<Self> {
        if !can_make_namespaces() {
            return None;
        }
        let network = PodsNetwork::new().await;
        let cluster = Cluster::start_at(address(network.prefix, GATEWAY), machinery).await?;
        let directory = TempDir::new().expect("a temporary directory");
        let mut this = Self { cluster, network, nodes: Vec::new(), directory };
        for name in names {
            this.add_node(name).await;
        }
        Some(this)
    }

    /// Adds a node, and waits until it is registered.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn add_node(&mut self, name: &str) {
        let folder = self.directory.path().join(name);
        std::fs::create_dir_all(folder.join("logs")).expect("the directory is ours");
        let number = u8::try_from(self.nodes.len()).expect("few nodes");
        let settings = NodeSettings {
            name: name.to_owned(),
            kubeconfig: self.cluster.kubeconfig(),
            directory: folder,
            server: self.cluster.address(),
            network: self.network.prefix,
            first: 10 + number * PODS_MAX,
            pods_max: PODS_MAX,
            own: FIRST_NODE + number,
            files: files(),
            image_files: image_files(self.directory.path()),
            images: IMAGES.map(|(image, name)| (image.to_owned(), name.to_owned())).into(),
            probe_second: PROBE_SECOND,
        };
        let settings = serde_json::to_string(&settings).expect("settings are JSON");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.network.holder.id()));
        command.args(["--", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        let node = Tool::start(command.arg(built("kubelet")).arg(settings));
        node.line("the registered node", |line| line == format!("node {name}")).await;
        self.nodes.push((name.to_owned(), node));
    }

    /// Loses a node, as a cut of its power does: nothing on it says another word.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn lose_node(&mut self, name: &str) {
        let at = self.nodes.iter().position(|(known, _)| known == name);
        drop(self.nodes.remove(at.expect("a node of the cluster")));
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A namespace for one test, once pods can be created in it.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn space(&self) -> PodSpace<'_> {
        let namespace = self.cluster.namespace().await;
        let account = reference("v1", "ServiceAccount", &namespace.name, "default");
        namespace.api.until(&account, "the default account", |_| true).await;
        PodSpace { namespace, cluster: self }
    }

    /// A namespace that somebody made, or will make.
    pub fn space_called(&self, name: &str) -> PodSpace<'_> {
        let namespace = Namespace { name: name.to_owned(), api: self.cluster.api() };
        PodSpace { namespace, cluster: self }
    }

    /// Output of the kubelets.
    pub fn log(&self) -> String {
        self.nodes.iter().map(|(_, node)| node.log()).collect::<Vec<_>>().join("\n")
    }
}

impl PodsNetwork {
    /// Takes a network that nobody has.
    async fn new() -> Self {
        let mut command = Command::new("unshare");
        let holder = Tool::start(command.args(["--net", "sh", "-c", "echo made; exec cat"]));
        holder.line("the network namespace", |line| line == "made").await;
        let first = std::process::id();
        for number in (0..NETWORKS).map(|next| (first + next) % NETWORKS) {
            let [.., high, low] = number.to_be_bytes();
            let prefix = [100, 126 + high, low];
            let words = [
                &format!("pods{number}"),
                &holder.id().to_string(),
                &address(prefix, GATEWAY).to_string(),
                &address(prefix, BRIDGE).to_string(),
                BRIDGE_NAME,
            ];
            let made = Command::new("sh").args(["-ec", BUILD, "sh"]).args(words).output();
            let made = made.expect("there is a shell");
            let said = String::from_utf8_lossy(&made.stderr);
            // Whoever makes the link has the network of its number.
            if made.status.success() {
                return Self { holder, prefix };
            }
            assert!(said.contains("File exists"), "{said}");
        }
        panic!("all {NETWORKS} networks are taken: `ip link` shows by whom");
    }
}

fn address([a, b, c]: [u8; 3], last: u8) -> Ipv4Addr {
    Ipv4Addr::new(a, b, c, last)
}

/// Files that all containers have, by their places there. Envoy is among them where it is installed.
fn files() -> BTreeMap<PathBuf, PathBuf> {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-agent/tiny-model");
    let mut programs = vec![("stator", binary()), ("vllm", built("chaos_engine"))];
    programs.extend(["echo", "chaos_engine"].map(|name| (name, built(name))));
    programs.extend(std::env::var_os("STATOR_TEST_ENVOY").map(|envoy| ("envoy", envoy.into())));
    let place = |(name, from)| (Path::new("/usr/local/bin").join(name), from);
    programs.into_iter().map(place).chain([(MODEL.into(), bundled)]).collect()
}

/// Files that containers of some images have beside, by image.
fn image_files(folder: &Path) -> BTreeMap<String, BTreeMap<PathBuf, PathBuf>> {
    let script = folder.join("simulated");
    std::fs::write(&script, SIMULATED).expect("the directory is ours");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("the file is ours");
    let bin = Path::new("/usr/local/bin");
    let files = [(bin.join("stator"), script), (bin.join("stator-program"), binary())];
    BTreeMap::from([(SIMULATED_IMAGE.to_owned(), files.into())])
}

/// Whether this process may make namespaces; says so if it may not.
///
/// # Panics
///
/// When it may not in continuous integration.
fn can_make_namespaces() -> bool {
    let mut trial = Command::new("unshare");
    trial.args(["--net", "--mount", "--pid", "--fork", "ip", "link", "set", "dev", "lo", "up"]);
    let said = match trial.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let missing = format!("pods need root, util-linux and iproute2: {said}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
    // Past the test harness, which hides what passing tests print.
    let _ = writeln!(std::io::stderr().lock(), "not run: {missing}");
    false
}

/// A namespace of one test in a [`PodCluster`]. A test that fails prints what its pods printed.
pub struct PodSpace<'a> {
    /// The namespace.
    pub namespace: Namespace,
    cluster: &'a PodCluster,
}

impl PodSpace<'_> {
    /// An object of this namespace.
    pub fn object(&self, api_version: &str, kind: &str, name: &str) -> Value {
        reference(api_version, kind, &self.namespace.name, name)
    }

    /// Waits until the pods that a label selector means are as they should be, and returns them.
    ///
    /// # Panics
    ///
    /// When that does not happen within the deadline.
    pub async fn pods(
        &self,
        labels: &str,
        what: &str,
        are_they: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        let pod = self.object("v1", "Pod", "any");
        let query = format!("labelSelector={labels}");
        self.namespace.api.until_all(&pod, &query, what, are_they).await
    }

    /// Waits until a Service has this many endpoints that are ready, and returns them in order.
    ///
    /// # Panics
    ///
    /// When that does not happen within the deadline.
    pub async fn endpoints(&self, service: &str, number: usize) -> Vec<SocketAddr> {
        let mut slices = self.slices(service).await;
        soon(service, async {
            while ready_endpoints(&slices.objects).len() != number {
                assert!(slices.changed().await, "the watch of {service} ended");
            }
            ready_endpoints(&slices.objects)
        })
        .await
    }

    /// The endpoints of a Service that are ready, in order, as long as anybody looks at them.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn follow(&self, service: &str) -> watch::Receiver<Vec<SocketAddr>> {
        let mut slices = self.slices(service).await;
        let (sender, endpoints) = watch::channel(ready_endpoints(&slices.objects));
        tokio::spawn(async move {
            while slices.changed().await && sender.send(ready_endpoints(&slices.objects)).is_ok() {}
        });
        endpoints
    }

    async fn slices(&self, service: &str) -> Watched {
        let slice = self.object("discovery.k8s.io/v1", "EndpointSlice", "any");
        let query = format!("labelSelector=kubernetes.io/service-name={service}");
        self.namespace.api.watched(&slice, &query).await
    }

    /// Output of the containers of pods whose names begin so.
    pub fn log(&self, pods: &str) -> String {
        let start = format!("{}_{pods}", self.namespace.name);
        let list = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let nodes = list(self.cluster.directory.path()).map(|node| node.path().join("logs"));
        let mut files: Vec<_> =
            nodes.flat_map(|logs| list(&logs)).map(|file| file.path()).collect();
        files.sort();
        let name =
            |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let files = files.iter().filter(|path| name(path).starts_with(&start));
        let texts = files.map(|path| {
            format!("== {}\n{}", name(path), std::fs::read_to_string(path).unwrap_or_default())
        });
        texts.collect()
    }
}

impl Drop for PodSpace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}\n{}", self.cluster.log(), self.log(""));
        }
    }
}

/// The endpoints of a Service that are ready, in order.
fn ready_endpoints(slices: &[Value]) -> Vec<SocketAddr> {
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let mut found: Vec<SocketAddr> = slices
        .iter()
        .flat_map(|slice| {
            let port = slice["ports"][0]["port"].as_u64().unwrap_or_default() as u16;
            let ready = list(&slice["endpoints"]).into_iter();
            let ready = ready.filter(|one| one["conditions"]["ready"] == true);
            ready.filter_map(move |one| {
                Some(SocketAddr::new(one["addresses"][0].as_str()?.parse().ok()?, port))
            })
        })
        .collect();
    found.sort();
    found
}
