//! Clusters: API, kinds, rights and nodes.

use super::clock;
use crate::args::DoctorArgs;
use crate::facts::{ClusterFacts, NodeFact, Right, RightFact};
use crate::finding::Finding;
use std::collections::BTreeMap;

/// Oldest minor of Kubernetes 1 whose fields the manifests use.
const MINOR_OLDEST: u32 = 30;

/// A group of kinds that a part of stator uses.
struct KindGroup {
    group: &'static str,
    version: &'static str,
    /// The part that uses it.
    of: &'static str,
    /// Source of the definitions.
    source: &'static str,
}

/// Kinds beside those of Kubernetes.
const KINDS: [KindGroup; 6] = [
    KindGroup {
        group: "nvidia.com",
        version: "v1alpha1",
        of: "agents that register in the cluster, and graphs",
        source: "kubectl apply --server-side -f manifests/operator/crds.yaml",
    },
    KindGroup {
        group: "inference.networking.k8s.io",
        version: "v1",
        of: "the picker's pools",
        source: "the release of gateway-api-inference-extension",
    },
    KindGroup {
        group: "gateway.networking.k8s.io",
        version: "v1",
        of: "gateways and routes",
        source: "the release of gateway-api",
    },
    KindGroup {
        group: "leaderworkerset.x-k8s.io",
        version: "v1",
        of: "engines on several nodes",
        source: "the release of lws",
    },
    KindGroup {
        group: "monitoring.coreos.com",
        version: "v1",
        of: "PodMonitors and alerts",
        source: "the Prometheus operator",
    },
    KindGroup {
        group: "cert-manager.io",
        version: "v1",
        of: "certificates of the request plane",
        source: "cert-manager",
    },
];

pub(crate) fn check(cluster: &ClusterFacts, args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = vec![api(&cluster.version)];
    if cluster.version.is_err() {
        return findings;
    }
    findings.extend(cluster.clock.as_ref().map(clock::check));
    findings.push(namespace(cluster));
    findings.extend(KINDS.iter().map(|kind| kinds(kind, &cluster.groups)));
    findings.extend(cluster.graphs_converted_by.as_ref().map(|service| {
        let says = format!("Dynamo's kinds belong to the operator behind the service {service}");
        Finding::note("operator", says, "keep that operator, or remove it before you install ours")
    }));
    findings.extend(rights(&cluster.rights, args));
    findings.extend(nodes(&cluster.nodes));
    findings
}

fn api(version: &Result<String, String>) -> Finding {
    let version = match version {
        Ok(version) => version,
        Err(error) => {
            let advice = "check the address, the certificate and the token: `kubectl version`";
            return Finding::wrong("api", format!("the API server: {error}"), advice);
        }
    };
    let says = format!("Kubernetes {version}");
    // Other majors are builds that do not know their version.
    let minor = version.strip_prefix("v1.").and_then(|rest| rest.split('.').next());
    match minor.and_then(|minor| minor.parse::<u32>().ok()) {
        Some(minor) if minor < MINOR_OLDEST => Finding::warning(
            "api",
            says,
            format!("update the cluster to 1.{MINOR_OLDEST} or later"),
        ),
        _ => Finding::fine("api", says),
    }
}

fn namespace(cluster: &ClusterFacts) -> Finding {
    let name = &cluster.namespace;
    match cluster.has_namespace {
        Some(true) => Finding::fine("namespace", format!("{name} is there")),
        Some(false) => {
            let advice = format!("`kubectl create namespace {name}`");
            Finding::wrong("namespace", format!("{name} is not there"), advice)
        }
        None => {
            let says = format!("{name} cannot be looked at");
            Finding::note("namespace", says, "ask as somebody who may get namespaces")
        }
    }
}

fn kinds(kind: &KindGroup, groups: &BTreeMap<String, Vec<String>>) -> Finding {
    let KindGroup { group, version, of, source } = kind;
    match groups.get(*group) {
        Some(served) if served.iter().any(|one| one == version) => {
            Finding::fine("kinds", format!("{group} {}", served.join(", ")))
        }
        Some(served) => Finding::wrong(
            "kinds",
            format!("{group} has {}, and {of} need {version}", served.join(", ")),
            format!("update them: {source}"),
        ),
        None => {
            let says = format!("{group} is not there, which {of} need");
            Finding::note("kinds", says, format!("for them: {source}"))
        }
    }
}

fn rights(rights: &[RightFact], args: &DoctorArgs) -> Vec<Finding> {
    let whose = args.account.as_deref().unwrap_or("this account");
    let why = match args.roles.is_empty() {
        true => "to install stator",
        false => "for its roles",
    };
    let mut missing = BTreeMap::<String, Vec<&str>>::new();
    let mut unknown = None;
    for RightFact { right, allowed } in rights {
        match allowed {
            Ok(true) => {}
            Ok(false) => missing.entry(kind_of(right)).or_default().push(&right.verb),
            Err(error) => unknown = Some(error),
        }
    }
    let mut findings: Vec<_> = missing
        .iter()
        .map(|(kind, verbs)| {
            let says = format!("{whose} may not {} {kind}", verbs.join(", "));
            Finding::wrong("rights", says, format!("add the rule to a role: it is needed {why}"))
        })
        .collect();
    if let Some(error) = unknown {
        let advice = "ask as somebody who may create subjectaccessreviews";
        findings.push(Finding::note("rights", format!("some are unknown: {error}"), advice));
    }
    if findings.is_empty() {
        let says = format!("{whose} has all {} rights {why}", rights.len());
        findings.push(Finding::fine("rights", says));
    }
    findings
}

/// The kind as `kubectl` writes it, `deployments.apps`, and the object if it is about one.
fn kind_of(right: &Right) -> String {
    let kind = match &*right.group {
        "" => right.resource.clone(),
        group => format!("{}.{group}", right.resource),
    };
    match &*right.name {
        "" => kind,
        name => format!("{kind} {name:?}"),
    }
}

fn nodes(nodes: &Result<Vec<NodeFact>, String>) -> Vec<Finding> {
    let nodes = match nodes {
        Ok(nodes) => nodes,
        Err(error) => {
            let advice = "ask as somebody who may list nodes";
            return vec![Finding::note("nodes", format!("they cannot be seen: {error}"), advice)];
        }
    };
    let (all, gpus) = (nodes.len(), nodes.iter().map(|node| node.gpus).sum::<u64>());
    let with_rdma = nodes.iter().filter(|node| node.rdma > 0).count();
    let says = format!("{all} nodes, {gpus} GPUs, {with_rdma} nodes with RDMA");
    let mut findings = vec![match gpus {
        0 => Finding::note(
            "nodes",
            says,
            "for engines on GPUs: the GPU operator, or NVIDIA's device plugin",
        ),
        _ => Finding::fine("nodes", says),
    }];
    for node in nodes {
        let name = &node.name;
        if !node.is_ready {
            let advice = format!("`kubectl describe node {name}`");
            findings.push(Finding::warning("nodes", format!("{name} is not ready"), advice));
        } else if node.is_labelled_gpu && node.gpus == 0 {
            let says = format!("{name} has GPUs that pods cannot ask for");
            let advice = "look at the device plugin's pod on that node";
            findings.push(Finding::wrong("nodes", says, advice));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Patient;
    use crate::finding::Severity::{self, Fine, Note, Warning, Wrong};

    fn args() -> DoctorArgs {
        DoctorArgs {
            patient: Patient::Cluster,
            json: false,
            model: None,
            engine: None,
            engine_program: None,
            ports: Vec::new(),
            clocks: Vec::new(),
            kubeconfig: None,
            namespace: None,
            roles: Vec::new(),
            account: None,
        }
    }

    fn cluster() -> ClusterFacts {
        let groups = KINDS.iter().map(|kind| (kind.group.into(), vec![kind.version.into()]));
        ClusterFacts {
            namespace: "n".into(),
            version: Ok("v1.36.3".into()),
            has_namespace: Some(true),
            groups: groups.collect(),
            nodes: Ok(vec![NodeFact {
                name: "a".into(),
                is_ready: true,
                gpus: 8,
                ..NodeFact::default()
            }]),
            ..ClusterFacts::without(String::new())
        }
    }

    fn worst(change: impl FnOnce(&mut ClusterFacts)) -> Severity {
        let mut cluster = cluster();
        change(&mut cluster);
        let findings = check(&cluster, &args());
        findings.iter().map(|finding| finding.severity).max().unwrap()
    }

    #[test]
    fn a_cluster_with_everything_is_fine() {
        assert_eq!(worst(|_| {}), Fine);
    }

    #[test]
    fn each_fault_weighs_what_it_costs() {
        assert_eq!(worst(|of| of.version = Ok("v1.27.1".into())), Warning);
        assert_eq!(worst(|of| of.version = Err("refused".into())), Wrong);
        assert_eq!(worst(|of| of.has_namespace = Some(false)), Wrong);
        assert_eq!(worst(|of| of.groups.clear()), Note);
        assert_eq!(worst(|of| of.graphs_converted_by = Some("other".into())), Note);
        assert_eq!(worst(|of| of.nodes = Err("forbidden".into())), Note);
        let old = || vec!["v1alpha2".to_owned()];
        let pools = "inference.networking.k8s.io".to_owned();
        assert_eq!(worst(|of| drop(of.groups.insert(pools, old()))), Wrong);
        let node = NodeFact { name: "b".into(), is_labelled_gpu: true, ..NodeFact::default() };
        let ready = NodeFact { is_ready: true, ..node.clone() };
        assert_eq!(worst(|of| of.nodes = Ok(vec![node])), Warning);
        assert_eq!(worst(|of| of.nodes = Ok(vec![ready])), Wrong);
    }

    #[test]
    fn an_api_server_that_does_not_answer_is_the_only_finding() {
        let findings = check(&ClusterFacts::without("connection refused".into()), &args());
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].says, "the API server: connection refused");
    }

    #[test]
    fn missing_rights_are_named_by_kind() {
        let fact = |verb: &str, allowed| RightFact {
            right: Right {
                verb: verb.into(),
                group: "apps".into(),
                resource: "deployments".into(),
                name: String::new(),
            },
            allowed,
        };
        let facts = [fact("create", Ok(false)), fact("get", Ok(true)), fact("patch", Ok(false))];
        let found = rights(&facts, &args());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].says, "this account may not create, patch deployments.apps");
        let unknown = rights(&[fact("get", Err("forbidden".into()))], &args());
        assert_eq!((unknown.len(), unknown[0].severity), (1, Note));
        assert_eq!(
            rights(&facts[1..2], &args())[0].says,
            "this account has all 1 rights to install stator"
        );
    }
}
