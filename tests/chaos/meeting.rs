//! The place where agents and proxies meet, and its faults: a directory on a disk of its own, an
//! etcd, or a cluster.

use crate::disk::Disk;
use crate::links::{Links, Mirror};
use crate::plan::{AGENTS, Fault, Step};
use crate::relay::{Link, Weather};
use serde_json::{Value, json};
use stator_tests::kube::{Cluster, Namespace};
use stator_tests::kube_etcd::Etcd;
use stator_tests::kube_objects::pool;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::sleep;

/// The resource that agents in a cluster write themselves into.
const CRD: &str = include_str!("../../manifests/agents/crd.yaml");
/// Pause before something is tried again.
const AGAIN: Duration = Duration::from_millis(5);

/// The place where agents register and proxies look. The linked proxy looks through something that
/// breaks.
pub(crate) enum Meeting {
    /// A directory, of which the linked proxy sees a mirror.
    Directory {
        /// The mirror, and the relays between the linked proxy and the agents.
        links: Links,
        /// The directory of the agents.
        agents: PathBuf,
        /// The mirror of that directory.
        mirror: PathBuf,
        /// The disk of the directory, if one could be mounted.
        disk: Option<Disk>,
    },
    /// An etcd.
    Etcd(Mutex<Etcd>, Registry),
    /// A cluster, whose pickers follow an `InferencePool`.
    Cluster(Box<(Mutex<Cluster>, Namespace)>, Registry),
}

/// The flags that name a registry.
pub(crate) struct Registry {
    /// By agents, one after the other.
    agents: Vec<String>,
    /// By proxies.
    proxy: String,
    /// By the linked proxy, which goes through the link.
    linked: String,
    link: Link,
}

impl Meeting {
    /// A directory below `home`.
    pub(crate) async fn directory(home: &Path) -> Self {
        let disk = Disk::begin(home).await;
        let agents = disk.as_ref().map_or(home, Disk::root).join("agents");
        let mirror = home.join("mirror");
        let links = Links::begin(agents.clone(), mirror.clone(), AGENTS);
        Self::Directory { links, agents, mirror, disk }
    }

    /// An etcd. `None`, and said so, where there is none.
    pub(crate) async fn etcd() -> Option<Self> {
        let etcd = Etcd::start(&[]).await?;
        let link = Link::begin().await;
        link.leads_to(etcd.address());
        let at = |address: SocketAddr| format!("--discovery=etcd://{address}/chaos");
        let agents = vec![at(etcd.address()); AGENTS];
        let (proxy, linked) = (at(etcd.address()), at(link.address()));
        Some(Self::Etcd(Mutex::new(etcd), Registry { agents, proxy, linked, link }))
    }

    /// A cluster with a pod for each agent. `None`, and said so, where there is none.
    pub(crate) async fn cluster(home: &Path) -> Option<Self> {
        let cluster = Cluster::start().await?;
        cluster.define(CRD).await;
        let namespace = cluster.namespace().await;
        let link = Link::begin().await;
        let kubeconfig = cluster.kubeconfig();
        let linked = through(&link, &kubeconfig, home);
        let url = |kubeconfig: &Path, more: &str| {
            let (namespace, file) = (&namespace.name, kubeconfig.display());
            format!("--discovery=kubernetes://{namespace}?kubeconfig={file}&{more}")
        };
        let mut agents = Vec::new();
        for number in 0..AGENTS {
            let (name, labels) = (format!("agent-{number}"), json!({ "app": "agent" }));
            let pod = namespace.ready_pod(&name, labels, Ipv4Addr::LOCALHOST.into()).await;
            let uid = pod["metadata"]["uid"].as_str().expect("a pod has an identity");
            agents.push(url(&kubeconfig, &format!("pod={name}&uid={uid}")));
        }
        let selector = "selector=app=agent";
        let (proxy, linked) = (url(&kubeconfig, selector), url(&linked, selector));
        let registry = Registry { agents, proxy, linked, link };
        Some(Self::Cluster(Box::new((Mutex::new(cluster), namespace)), registry))
    }

    /// The flag that tells an agent.
    pub(crate) fn of_agent(&self, number: usize) -> String {
        match self {
            Self::Directory { agents, .. } => directory(agents),
            Self::Etcd(_, registry) | Self::Cluster(_, registry) => registry.agents[number].clone(),
        }
    }

    /// The flag that tells a proxy.
    pub(crate) fn of_proxy(&self, linked: bool) -> String {
        match self {
            Self::Directory { mirror, .. } if linked => directory(mirror),
            Self::Directory { agents, .. } => directory(agents),
            Self::Etcd(_, registry) | Self::Cluster(_, registry) if linked => {
                registry.linked.clone()
            }
            Self::Etcd(_, registry) | Self::Cluster(_, registry) => registry.proxy.clone(),
        }
    }

    /// The flags of pickers of these proxies, where they follow the cluster.
    pub(crate) async fn of_pickers(&self, proxies: &[SocketAddr]) -> Option<Vec<String>> {
        let Self::Cluster(cluster, _) = self else { return None };
        let (cluster, namespace) = &**cluster;
        let ports: Vec<_> = proxies.iter().map(SocketAddr::port).collect();
        namespace.apply(pool("pool", json!({ "app": "proxy" }), &ports)).await;
        let labels = json!({ "app": "proxy" });
        namespace.ready_pod("proxies", labels, Ipv4Addr::LOCALHOST.into()).await;
        let kubeconfig = cluster.lock().await.kubeconfig();
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let namespace = format!("--pool-namespace={}", namespace.name);
        Some(vec!["--pool-name=pool".to_owned(), namespace, kubeconfig])
    }

    /// The links between the linked proxy and the agents.
    pub(crate) fn links(&self) -> &Links {
        match self {
            Self::Directory { links, .. } => links,
            Self::Etcd(..) | Self::Cluster(..) => panic!("only a directory is mirrored"),
        }
    }

    /// Lets a fault of the directory or the registry happen, and undoes it.
    pub(crate) async fn suffer(&self, step: &Step) {
        match self {
            Self::Directory { links, agents, disk, .. } => {
                suffer_in_directory(links, agents, disk.as_ref(), step).await;
            }
            Self::Etcd(etcd, registry) => match step.fault {
                Fault::KillRegistry => {
                    let mut etcd = etcd.lock().await;
                    etcd.stop();
                    sleep(step.hold).await;
                    etcd.restart().await;
                }
                Fault::StopRegistry => {
                    let etcd = etcd.lock().await;
                    etcd.signal("STOP");
                    sleep(step.hold).await;
                    etcd.signal("CONT");
                }
                _ => registry.suffer(step).await,
            },
            Self::Cluster(cluster, registry) => match step.fault {
                Fault::KillRegistry => {
                    let mut cluster = cluster.0.lock().await;
                    cluster.stop();
                    sleep(step.hold).await;
                    cluster.restart().await;
                }
                Fault::StopRegistry => {
                    let cluster = cluster.0.lock().await;
                    cluster.signal("STOP");
                    sleep(step.hold).await;
                    cluster.signal("CONT");
                }
                _ => registry.suffer(step).await,
            },
        }
    }
}

impl Registry {
    async fn suffer(&self, step: &Step) {
        let weather = match step.fault {
            Fault::CutRegistry => Weather::Cut,
            Fault::StallRegistry => Weather::Stalled,
            Fault::SlowRegistry => Weather::Slow,
            fault => panic!("a registry has no {fault:?}"),
        };
        self.link.suffer(weather, step.hold).await;
    }
}

async fn suffer_in_directory(links: &Links, agents: &Path, disk: Option<&Disk>, step: &Step) {
    let mirror = match step.fault {
        Fault::FreezeDirectory => Mirror::Frozen,
        Fault::SkewClocks => Mirror::Skewed,
        Fault::SlowDisk => Mirror::Late,
        Fault::HideDirectory => Mirror::Hidden,
        Fault::FillDisk => {
            return match disk {
                Some(disk) => disk.fill(step.hold).await,
                None => sleep(step.hold).await,
            };
        }
        Fault::RemoveDirectory => {
            // Agents write into it all the time, so a removal may have to be tried again.
            while std::fs::remove_dir_all(agents).is_err() {
                sleep(AGAIN).await;
            }
            return sleep(step.hold).await;
        }
        fault => panic!("a directory has no {fault:?}"),
    };
    links.mirror(mirror);
    sleep(step.hold).await;
    links.mirror(Mirror::Faithful);
}

/// A kubeconfig that leads through a link, written below `home`.
fn through(link: &Link, kubeconfig: &Path, home: &Path) -> PathBuf {
    let text = std::fs::read(kubeconfig).expect("the cluster's kubeconfig");
    let mut config: Value = serde_json::from_slice(&text).expect("it is JSON");
    let server = &mut config["clusters"][0]["cluster"]["server"];
    let address = server.as_str().expect("a URL").trim_start_matches("https://");
    link.leads_to(address.trim_end_matches('/').parse().expect("an address and a port"));
    *server = json!(format!("https://{}", link.address()));
    let path = home.join("linked.kubeconfig");
    std::fs::write(&path, config.to_string()).expect("a writable home");
    path
}

fn directory(path: &Path) -> String {
    format!("--discovery-dir={}", path.display())
}
