//! The endpoints of a pool's pods.

use crate::AppProtocol;
use stator_epp_scheduler::{Endpoint, LabelSelector, Roles};
use stator_protos::{WorkerId, WorkerRank};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Most target ports of a pool, and so ranks of a pod.
///
/// Source: `spec.targetPorts` of `InferencePool` v1.
pub const PORTS_MAX: usize = 8;

/// A pool's own words about its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpec {
    /// Selector of the pool's pods; an empty one selects none.
    pub selector: LabelSelector,
    /// Ports that take requests, one rank each, [`PORTS_MAX`] at most.
    pub target_ports: Vec<u16>,
    /// Protocol at these ports.
    pub app_protocol: AppProtocol,
}

/// Fault of a selector or of ports from the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// A part of the selector is none, or there is nothing in it.
    #[error("endpoint selector: {0:?} is no part of a label selector")]
    Selector(String),
    /// Too few or too many ports.
    #[error("endpoint target ports: {0} given, limit 1 to {PORTS_MAX}")]
    Ports(usize),
    /// A port that cannot be one, or is given twice.
    #[error("endpoint target ports: {0} is 0 or given twice")]
    Port(u16),
}

impl PoolSpec {
    /// A pool without an `InferencePool`: `selector` is one of Kubernetes in its text form.
    ///
    /// # Errors
    ///
    /// [`InvalidSpec`] if a value is malformed or out of range.
    pub fn standalone(selector: &str, target_ports: &[u16]) -> Result<Self, InvalidSpec> {
        let selector = LabelSelector::parse(selector).map_err(InvalidSpec::Selector)?;
        if selector.0.is_empty() {
            return Err(InvalidSpec::Selector(String::new()));
        }
        if !(1..=PORTS_MAX).contains(&target_ports.len()) {
            return Err(InvalidSpec::Ports(target_ports.len()));
        }
        for (at, port) in target_ports.iter().enumerate() {
            if *port == 0 || target_ports[..at].contains(port) {
                return Err(InvalidSpec::Port(*port));
            }
        }
        let target_ports = target_ports.to_vec();
        Ok(Self { selector, target_ports, app_protocol: AppProtocol::Unsaid })
    }

    /// Whether a pod with these labels belongs to the pool.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = |name: &str| labels.get(name).map(String::as_str);
        !self.selector.0.is_empty() && self.selector.selects(label)
    }
}

/// The parts of a pod that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Identity of the pod's present life: a pod made anew under its name has another one.
    pub uid: Arc<str>,
    /// Its labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// The node that it runs on, once it is known.
    pub node: Option<Arc<str>>,
    /// Ports that are in use, comma-separated, where an annotation names them.
    pub active_ports: Option<String>,
    /// Its address, once it has one.
    pub ip: Option<IpAddr>,
    /// Whether it says that it is ready.
    pub ready: bool,
    /// Whether it is on its way out.
    pub deleting: bool,
}

/// Identity of a pod in the placement core: a hash of its namespace and name, the same in every
/// process and in every life of the pod.
pub fn worker_of(namespace: &str, pod: &str) -> WorkerId {
    WorkerId(xxh3_64(format!("{namespace}/{pod}").as_bytes()))
}

/// The endpoints of a pod: one for each of the pool's ports that the pod has in use. None if it
/// is not of the pool, not ready, or leaving.
///
/// Source: pod reconciliation of the llm-d router.
pub fn endpoints_of(pod: &Pod, spec: &PoolSpec) -> Vec<Endpoint> {
    let Some(ip) = pod.ip.filter(|_| pod.ready && !pod.deleting && spec.selects(&pod.labels))
    else {
        return Vec::new();
    };
    let worker = worker_of(&pod.namespace, &pod.name);
    let roles = Roles::of(&pod.labels);
    let ports = spec.target_ports.iter().take(PORTS_MAX).enumerate();
    let ports = ports.filter(|(rank, port)| {
        is_active(pod, **port) && !spec.target_ports[..*rank].contains(port)
    });
    ports
        .map(|(rank, port)| Endpoint {
            worker: WorkerRank { worker, rank: rank as u16 },
            uid: pod.uid.clone(),
            name: format!("{}-rank-{rank}", pod.name).into(),
            pod: pod.name.clone(),
            namespace: pod.namespace.clone(),
            address: SocketAddr::new(ip, *port),
            labels: pod.labels.clone(),
            roles,
        })
        .collect()
}

/// Whether a pod has a port in use. An annotation that names none leaves none.
fn is_active(pod: &Pod, port: u16) -> bool {
    let named = |list: &str| list.split(',').any(|part| part.trim().parse() == Ok(port));
    pod.active_ports.as_deref().is_none_or(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn pod() -> Pod {
        Pod {
            namespace: "ns".into(),
            name: "vllm-0".into(),
            uid: "life-1".into(),
            labels: Arc::new(labels(&[("app", "vllm"), ("llm-d.ai/role", "prefill")])),
            node: None,
            active_ports: None,
            ip: Some("10.0.0.7".parse().expect("an address")),
            ready: true,
            deleting: false,
        }
    }

    fn spec(ports: &[u16]) -> PoolSpec {
        PoolSpec::standalone("app=vllm", ports).expect("a pool")
    }

    fn check(pod: &Pod, ports: &[u16], expected: &[(u16, &str)]) {
        let found = endpoints_of(pod, &spec(ports));
        let found: Vec<_> = found.iter().map(|e| (e.worker.rank, e.address.to_string())).collect();
        let expected: Vec<_> = expected.iter().map(|(rank, at)| (*rank, at.to_string())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_ready_pod_has_an_endpoint_per_port() {
        check(&pod(), &[8000], &[(0, "10.0.0.7:8000")]);
        check(&pod(), &[8000, 8001], &[(0, "10.0.0.7:8000"), (1, "10.0.0.7:8001")]);
        let endpoint = endpoints_of(&pod(), &spec(&[8000, 8001])).remove(1);
        assert_eq!(&*endpoint.name, "vllm-0-rank-1");
        assert_eq!(&*endpoint.pod, "vllm-0");
        assert_eq!(&*endpoint.uid, "life-1");
        assert_eq!(endpoint.worker.worker, worker_of("ns", "vllm-0"));
        assert!(endpoint.roles.prefill && !endpoint.roles.decode);
    }

    #[test]
    fn a_pod_that_cannot_take_requests_has_none() {
        check(&Pod { ready: false, ..pod() }, &[8000], &[]);
        check(&Pod { deleting: true, ..pod() }, &[8000], &[]);
        check(&Pod { ip: None, ..pod() }, &[8000], &[]);
        check(&Pod { labels: Arc::new(labels(&[("app", "other")])), ..pod() }, &[8000], &[]);
        assert!(
            endpoints_of(&pod(), &PoolSpec { selector: LabelSelector::default(), ..spec(&[1]) })
                .is_empty()
        );
    }

    #[test]
    fn an_annotation_narrows_the_ports_and_keeps_their_ranks() {
        let active = |list: &str| Pod { active_ports: Some(list.into()), ..pod() };
        check(&active("8001"), &[8000, 8001], &[(1, "10.0.0.7:8001")]);
        check(
            &active(" 8001 ,8000,x,9"),
            &[8000, 8001],
            &[(0, "10.0.0.7:8000"), (1, "10.0.0.7:8001")],
        );
        check(&active(""), &[8000], &[]);
        check(&active("80"), &[8000], &[]);
    }

    #[test]
    fn an_ipv6_address_is_written_with_brackets() {
        let pod = Pod { ip: Some("fd00::7".parse().expect("an address")), ..pod() };
        check(&pod, &[8000], &[(0, "[fd00::7]:8000")]);
    }

    #[test]
    fn a_worker_is_the_same_everywhere_and_for_ever() {
        // Other processes compute this number too: it may not change.
        assert_eq!(worker_of("default", "vllm-0").0, xxh3_64(b"default/vllm-0"));
        assert_ne!(worker_of("a", "b-c"), worker_of("a-b", "c"));
    }

    #[test]
    fn a_standalone_pool_is_checked() {
        let check = |selector: &str, ports: &[u16], fault: InvalidSpec| {
            assert_eq!(PoolSpec::standalone(selector, ports), Err(fault));
        };
        check("app=x,=y", &[1], InvalidSpec::Selector("=y".into()));
        check("", &[1], InvalidSpec::Selector("".into()));
        check("app in x", &[1], InvalidSpec::Selector("app in x".into()));
        check("app=x", &[], InvalidSpec::Ports(0));
        check("app=x", &[1, 2, 3, 4, 5, 6, 7, 8, 9], InvalidSpec::Ports(9));
        check("app=x", &[1, 0], InvalidSpec::Port(0));
        check("app=x", &[1, 1], InvalidSpec::Port(1));
        let spec = PoolSpec::standalone("app=x, role=", &[1]).expect("a pool");
        assert_eq!(spec.selector, labels(&[("app", "x"), ("role", "")]).into_iter().collect());
        let spec = PoolSpec::standalone("app in (x,y),tier!=test,!old", &[1]).expect("a pool");
        assert!(spec.selects(&labels(&[("app", "y")])));
        assert!(!spec.selects(&labels(&[("app", "y"), ("old", "")])));
        assert!(!spec.selects(&labels(&[("app", "y"), ("tier", "test")])));
    }

    fn any_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        btree_map("[ab]", "[xy]", 0..3)
    }

    proptest! {
        /// The endpoints are the pool's distinct ports, of a pod that has every selected label.
        #[test]
        fn agrees_with_the_plain_rules(
            selector in any_labels(),
            has in any_labels(),
            ports in vec(1u16..12, 0..12),
            active in proptest::option::of(vec(1u16..12, 0..4)),
            (ready, deleting) in any::<(bool, bool)>(),
        ) {
            let list = active.as_ref().map(|ports| {
                ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
            });
            let selected = !selector.is_empty() && selector.iter().all(|pair| {
                has.iter().any(|other| other == pair)
            });
            let mut expected = Vec::new();
            for (rank, port) in ports.iter().enumerate().take(PORTS_MAX) {
                let first = ports.iter().position(|other| other == port) == Some(rank);
                let used = active.as_ref().is_none_or(|active| active.contains(port));
                if selected && ready && !deleting && first && used {
                    expected.push((rank as u16, *port));
                }
            }
            let pod = Pod { labels: Arc::new(has), active_ports: list, ready, deleting, ..pod() };
            let selector = selector.into_iter().collect();
            let spec = PoolSpec { selector, target_ports: ports, ..PoolSpec::default() };
            let found: Vec<_> = endpoints_of(&pod, &spec)
                .iter()
                .map(|e| (e.worker.rank, e.address.port()))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
