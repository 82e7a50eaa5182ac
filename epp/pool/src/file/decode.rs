//! The text of a file made into a view, or all that is wrong with it.

use super::node::{FileFaults, Node};
use crate::{
    AppProtocol, PORTS_MAX, PoolView, Rewrite, RewriteRule, RewriteTarget, Rewrites, WEIGHT_MAX,
    worker_of,
};
use stator_epp_scheduler::{Endpoint, Roles};
use stator_protos::WorkerRank;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Most entries of one list of the file.
const ENTRIES_MAX: usize = 65_536;

/// Reads the content of a file.
///
/// # Errors
///
/// All faults, each with its path in the file.
pub(crate) fn view(content: &[u8]) -> Result<PoolView, Vec<String>> {
    let value: serde_json::Value =
        stator_runtime::yaml::from_slice(content).map_err(|error| vec![error])?;
    // Reading goes on after a fault, so that one look finds all of them.
    let faults = FileFaults::default();
    let root = Node::root(&value, &faults);
    root.only(&["endpoints", "objectives", "rewrites", "appProtocol"]);
    let endpoints = endpoints(&root);
    let rewrites: Vec<_> = root.list("rewrites", ENTRIES_MAX).iter().map(rewrite).collect();
    for (at, rewrite) in rewrites.iter().enumerate() {
        if rewrites[..at].iter().any(|other| other.name == rewrite.name) {
            root.fault(
                &format!("rewrites[{at}].name"),
                &format!("{:?} is given twice", rewrite.name),
            );
        }
    }
    let view = PoolView {
        synced: true,
        app_protocol: app_protocol(&root),
        target_ports: ports_of(&endpoints),
        objectives: Arc::new(objectives(&root)),
        rewrites: Arc::new(Rewrites::compile(&rewrites)),
        endpoints,
        stale_since: None,
    };
    faults.none(view)
}

/// The distinct ports, in order.
fn ports_of(endpoints: &[Arc<Endpoint>]) -> Vec<u16> {
    let ports: BTreeSet<_> = endpoints.iter().map(|endpoint| endpoint.address.port()).collect();
    ports.into_iter().collect()
}

fn app_protocol(root: &Node<'_>) -> AppProtocol {
    match root.text("appProtocol").as_deref() {
        None => AppProtocol::Unsaid,
        Some("http") => AppProtocol::Http,
        Some("kubernetes.io/h2c") => AppProtocol::H2c,
        Some(other) => {
            root.fault("appProtocol", &format!("{other:?} is not http or kubernetes.io/h2c"));
            AppProtocol::Unsaid
        }
    }
}

fn objectives(root: &Node<'_>) -> BTreeMap<String, i32> {
    let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
    let entries = root.map("objectives").unwrap_or_default();
    let priority = |(name, node): &(String, Node<'_>)| {
        let priority = node.integer(range.clone())?;
        Some((name.clone(), i32::try_from(priority).ok()?))
    };
    entries.iter().filter_map(priority).collect()
}

fn endpoints(root: &Node<'_>) -> Vec<Arc<Endpoint>> {
    if !root.has("endpoints") {
        root.fault("endpoints", "missing");
    }
    let mut endpoints = Vec::new();
    let mut names = BTreeSet::new();
    for entry in root.list("endpoints", ENTRIES_MAX) {
        let Some(ranks) = ranks(&entry) else { continue };
        let first = &ranks[0];
        if !names.insert((first.namespace.clone(), first.pod.clone())) {
            entry.fault("name", &format!("{:?} is given twice", first.pod));
        }
        endpoints.extend(ranks.into_iter().map(Arc::new));
    }
    endpoints.sort_unstable_by_key(|endpoint| endpoint.worker);
    endpoints
}

/// The endpoints of one entry: one, or one for each of several ports. Never empty.
fn ranks(entry: &Node<'_>) -> Option<Vec<Endpoint>> {
    entry.only(&["name", "namespace", "address", "port", "ports", "labels"]);
    let labels = labels(entry);
    let namespace = entry.text("namespace").unwrap_or_else(|| "default".to_owned());
    let address = address(entry);
    let ports = ports(entry);
    let name = entry.required("name")?;
    let (address, ports) = (address?, ports?);
    let is_one = entry.has("port");
    let worker = worker_of(&namespace, &name);
    let (pod, namespace): (Arc<str>, Arc<str>) = (name.into(), namespace.into());
    let (roles, labels) = (Roles::of(&labels), Arc::new(labels));
    let endpoint = |(rank, port): (usize, &u16)| Endpoint {
        worker: WorkerRank { worker, rank: rank as u16 },
        // A file does not tell one life of a server from the next.
        uid: "".into(),
        name: if is_one { pod.clone() } else { format!("{pod}-rank-{rank}").into() },
        pod: pod.clone(),
        namespace: namespace.clone(),
        address: SocketAddr::new(address, *port),
        labels: labels.clone(),
        roles,
    };
    Some(ports.iter().enumerate().map(endpoint).collect())
}

fn labels(entry: &Node<'_>) -> BTreeMap<String, String> {
    let labels = entry.map("labels").unwrap_or_default();
    labels.iter().filter_map(|(name, node)| Some((name.clone(), node.as_text()?))).collect()
}

fn address(entry: &Node<'_>) -> Option<IpAddr> {
    let text = entry.required("address")?;
    let address = text.parse().ok();
    if address.is_none() {
        entry.fault("address", &format!("{text:?} is not an IP address"));
    }
    address
}

/// The ports of an entry: at least one.
fn ports(entry: &Node<'_>) -> Option<Vec<u16>> {
    let port = |node: &Node<'_>| u16::try_from(node.integer(1..=65_535)?).ok();
    match (entry.get("port"), entry.has("ports")) {
        (Some(one), false) => Some(vec![port(&one)?]),
        (None, true) => {
            let list = entry.list("ports", PORTS_MAX);
            let ports: Vec<_> = list.iter().filter_map(port).collect();
            let distinct: BTreeSet<_> = ports.iter().collect();
            if list.is_empty() || distinct.len() < ports.len() {
                entry.fault("ports", "empty, or a port is given twice");
            }
            (!ports.is_empty()).then_some(ports)
        }
        _ => {
            entry.fault("port", "give either port or ports");
            None
        }
    }
}

fn rewrite(entry: &Node<'_>) -> Rewrite {
    entry.only(&["name", "rules"]);
    Rewrite {
        name: entry.required("name").unwrap_or_default(),
        created: String::new(),
        rules: entry.list("rules", ENTRIES_MAX).iter().map(rule).collect(),
    }
}

fn rule(node: &Node<'_>) -> RewriteRule {
    node.only(&["models", "targets"]);
    let models = node.list("models", ENTRIES_MAX);
    let models: Vec<_> = models.iter().filter_map(Node::as_text).collect();
    let targets: Vec<_> = node.list("targets", ENTRIES_MAX).iter().map(target).collect();
    if targets.is_empty() {
        node.fault("targets", "give at least one");
    }
    RewriteRule { models: (!models.is_empty()).then_some(models), targets }
}

fn target(node: &Node<'_>) -> RewriteTarget {
    node.only(&["model", "weight"]);
    let weight = node.get("weight").and_then(|weight| weight.integer(1..=i64::from(WEIGHT_MAX)));
    RewriteTarget {
        model: node.required("model").unwrap_or_default(),
        weight: weight.and_then(|weight| u32::try_from(weight).ok()),
    }
}
