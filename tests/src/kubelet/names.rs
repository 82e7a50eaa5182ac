//! Names of Services, as the DNS of a cluster has them. The names lead to the pods: there is no
//! address of a Service that anything answers at.
//!
//! Each node serves the names at an address of its own. Names outside the cluster do not exist.

use super::environment::{items, text};
use super::process::run;
use super::{Node, NodeSettings};
use serde_json::Value;
use stator_kube::{Cluster, Query, Report, Resource};
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tokio::net::UdpSocket;
use tokio::process::Command;
use tokio::sync::mpsc;

/// Domain of all names.
const DOMAIN: &str = "cluster.local";
const PORT: u16 = 53;
/// Longest question: without extensions a message has no more.
const QUESTION_BYTES_MAX: usize = 512;
/// Most addresses of an answer, as fit a message without extensions.
const ADDRESSES_MAX: usize = 24;
/// Reports of slices that may wait.
const REPORTS_MAX: usize = 64;
const SLICES: Resource =
    Resource { group: "discovery.k8s.io", version: "v1", plural: "endpointslices" };

/// Addresses by name in lower case, without a dot at the end.
type Names = BTreeMap<String, Vec<Ipv4Addr>>;

/// Takes the node's address, and answers questions there until dropped.
///
/// # Errors
///
/// When the address or its port is taken.
pub(super) async fn serve(settings: &NodeSettings, cluster: Cluster) -> io::Result<()> {
    let address = settings.address();
    let mut take = Command::new("ip");
    take.args(["addr", "add", &format!("{address}/24"), "dev", super::BRIDGE_NAME]);
    run(&mut take).await?;
    let socket = UdpSocket::bind((address, PORT)).await?;
    let names = std::sync::Arc::new(Mutex::new(Names::new()));
    tokio::spawn(follow(cluster, names.clone()));
    tokio::spawn(async move {
        let mut question = [0; QUESTION_BYTES_MAX];
        loop {
            // A peer that is gone shows as an error of the next receipt.
            let Ok((length, peer)) = socket.recv_from(&mut question).await else { continue };
            let answer = answer(&question[..length], &names.lock().expect("nobody panics with it"));
            if let Some(answer) = answer {
                let _ = socket.send_to(&answer, peer).await;
            }
        }
    });
    Ok(())
}

/// The files by which the containers of a pod find names, with their places there.
///
/// # Errors
///
/// Where the folder cannot be written.
pub(super) fn files(
    node: &Node,
    pod: &Value,
    address: Ipv4Addr,
    folder: &Path,
) -> io::Result<[(PathBuf, PathBuf); 2]> {
    let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
    let resolver = format!(
        "nameserver {}\nsearch {namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n",
        node.settings.address()
    );
    let hosts = format!("127.0.0.1 localhost\n{address} {name}\n");
    std::fs::create_dir_all(folder)?;
    let write = |name: &str, content: String| {
        std::fs::write(folder.join(name), content)?;
        Ok::<_, io::Error>((folder.join(name), Path::new("/etc").join(name)))
    };
    Ok([write("resolv.conf", resolver)?, write("hosts", hosts)?])
}

/// Keeps the names true to the cluster.
async fn follow(cluster: Cluster, names: std::sync::Arc<Mutex<Names>>) {
    let query = Query { resource: SLICES, namespace: None, labels: None, fields: None };
    let (sender, mut reports) = mpsc::channel(REPORTS_MAX);
    let decode = |object: &str| serde_json::from_str::<Value>(object).map(Some);
    tokio::spawn(cluster.follow(query, Box::new(decode), sender, Box::new(|report| report)).run());
    let mut slices = BTreeMap::new();
    while let Some(report) = reports.recv().await {
        match report {
            Report::Listed(all) => slices = all,
            Report::Set(name, Some(slice)) => drop(slices.insert(name, slice)),
            Report::Set(name, None) => drop(slices.remove(&name)),
            Report::Lost | Report::Found => continue,
        }
        *names.lock().expect("nobody panics with it") = table(slices.values());
    }
}

/// The names of the Services that these EndpointSlices belong to, and of their pods that have one.
/// Pods that end and still serve count if no pod is ready, as for a cluster's proxy.
fn table<'a>(slices: impl Iterator<Item = &'a Value> + Clone) -> Names {
    let ready = named(slices.clone(), "ready");
    let mut names = named(slices, "serving");
    names.extend(ready.into_iter().filter(|(_, addresses)| !addresses.is_empty()));
    names
}

/// The names with the addresses of endpoints that this condition does not deny.
fn named<'a>(slices: impl Iterator<Item = &'a Value>, condition: &str) -> Names {
    let mut names = Names::new();
    for slice in slices {
        let metadata = &slice["metadata"];
        let Some(service) = metadata["labels"]["kubernetes.io/service-name"].as_str() else {
            continue;
        };
        let service = format!("{service}.{}.svc.{DOMAIN}", text(&metadata["namespace"]));
        // A Service without pods has a name too.
        names.entry(service.clone()).or_default();
        for endpoint in items(slice, "endpoints") {
            if endpoint["conditions"][condition] == false {
                continue;
            }
            let own = endpoint["hostname"].as_str().map(|host| format!("{host}.{service}"));
            for name in own.into_iter().chain([service.clone()]) {
                let addresses = items(endpoint, "addresses");
                let addresses =
                    addresses.filter_map(|address| address.as_str()?.parse::<Ipv4Addr>().ok());
                names.entry(name).or_default().extend(addresses);
            }
        }
    }
    names
}

/// The answer to a question; `None` for what is no question.
///
/// Source: RFC 1035, section 4.1.
fn answer(question: &[u8], names: &Names) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const ADDRESS: u16 = 1;
    const NO_SUCH_NAME: u8 = 3;
    let asks = question.len() > HEADER && question[2] & 0x80 == 0;
    if !asks || question[4..6] != [0, 1] {
        return None;
    }
    let (name, end) = name(question, HEADER)?;
    let kind = u16::from_be_bytes(question.get(end..end + 2)?.try_into().ok()?);
    question.get(end + 2..end + 4)?;
    let found = names.get(&name);
    let addresses = found.filter(|_| kind == ADDRESS).map_or(&[][..], Vec::as_slice);
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    let code = if found.is_some() { 0 } else { NO_SUCH_NAME };
    let mut out = question[..end + 4].to_vec();
    // An answer by who has the name, for a client that may ask for recursion.
    out[2] = 0x84 | question[2] & 0x01;
    out[3] = 0x80 | code;
    out[6..HEADER].copy_from_slice(&[0, addresses.len() as u8, 0, 0, 0, 0]);
    for address in addresses {
        // The name of the question, an address of the internet, good for no time, four bytes.
        out.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        out.extend(address.octets());
    }
    Some(out)
}

/// A name in lower case, and the place behind it.
fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        match length {
            0 => return Some((labels.join("."), at)),
            1..64 => {
                let label = std::str::from_utf8(message.get(at..at + length)?).ok()?;
                labels.push(label.to_ascii_lowercase());
                at += length;
            }
            // A reference to another name has nothing to refer to.
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn question(name: &str, kind: u8) -> Vec<u8> {
        let mut out = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend(label.as_bytes());
        }
        out.extend([0, 0, kind, 0, 1]);
        out
    }

    fn names() -> Names {
        let slice = |service: &str, endpoints: Value| {
            let labels = json!({ "kubernetes.io/service-name": service });
            json!({ "metadata": { "namespace": "n", "labels": labels }, "endpoints": endpoints })
        };
        let ending = json!({ "ready": false, "serving": true });
        let ending = json!({ "addresses": ["198.18.0.8"], "conditions": ending });
        let ready = json!({ "ready": true, "serving": true });
        let ready = json!({ "addresses": ["198.18.0.9"], "conditions": ready, "hostname": "h" });
        table([slice("s", json!([ready, ending])), slice("old", json!([ending]))].iter())
    }

    #[test]
    fn a_service_is_known_by_its_ready_pods_and_a_pod_by_its_host_name() {
        let entry = |name: &str, last| {
            (format!("{name}.n.svc.cluster.local"), vec![Ipv4Addr::new(198, 18, 0, last)])
        };
        // One whose pods all end is known by those.
        assert_eq!(names(), BTreeMap::from([entry("h.s", 9), entry("s", 9), entry("old", 8)]));
    }

    #[test]
    fn a_question_is_answered_with_addresses() {
        let asked = question("S.n.svc.cluster.local", 1);
        let mut expected = asked.clone();
        expected[2..8].copy_from_slice(&[0x85, 0x80, 0, 1, 0, 1]);
        expected.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 198, 18, 0, 9]);
        assert_eq!(answer(&asked, &names()), Some(expected));
    }

    #[test]
    fn a_name_without_addresses_of_a_kind_differs_from_no_name() {
        let code =
            |name, kind| answer(&question(name, kind), &names()).map(|said| (said[3], said[7]));
        assert_eq!(code("s.n.svc.cluster.local", 28), Some((0x80, 0)));
        assert_eq!(code("t.n.svc.cluster.local", 1), Some((0x83, 0)));
    }

    #[test]
    fn what_is_no_question_gets_no_answer() {
        let whole = question("s.n.svc.cluster.local", 1);
        for length in 0..whole.len() {
            assert_eq!(answer(&whole[..length], &names()), None, "{length}");
        }
        let mut reply = whole.clone();
        reply[2] |= 0x80;
        assert_eq!(answer(&reply, &names()), None);
        assert_eq!(answer(&[&whole[..12], &[0xc0, 12, 0, 1, 0, 1]].concat(), &names()), None);
    }
}
