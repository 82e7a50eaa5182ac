//! What is read and written in a cluster, and where it lies in the API.

use std::fmt::Write as _;

/// A kind of object of the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    /// API group; empty is the core group.
    pub group: &'static str,
    /// Version of the group.
    pub version: &'static str,
    /// Name in paths and in access rules.
    pub plural: &'static str,
}

/// Group of `InferencePool`, and the default of references to one.
pub const POOL_GROUP: &str = "inference.networking.k8s.io";

pub(crate) const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };
pub(crate) const POOLS: Resource =
    Resource { group: POOL_GROUP, version: "v1", plural: "inferencepools" };
pub(crate) const NODES: Resource = Resource { group: "", version: "v1", plural: "nodes" };
pub(crate) const LEASES: Resource =
    Resource { group: "coordination.k8s.io", version: "v1", plural: "leases" };
pub(crate) const TOKEN_REVIEWS: Resource =
    Resource { group: "authentication.k8s.io", version: "v1", plural: "tokenreviews" };
pub(crate) const ACCESS_REVIEWS: Resource =
    Resource { group: "authorization.k8s.io", version: "v1", plural: "subjectaccessreviews" };

/// All that is listed and watched, in the pool's namespace. A service account that may get, list
/// and watch these, and nothing else, is enough to pick endpoints.
pub const WATCHED: [Resource; 6] = [
    PODS,
    POOLS,
    Group::LlmD.objectives(),
    Group::Legacy.objectives(),
    Group::LlmD.rewrites(),
    Group::Legacy.rewrites(),
];

/// What is listed and watched beside, without a namespace, where plug-ins go by labels of nodes.
/// Without the right to it endpoints are taken to be on different nodes of unknown place, but for
/// the node's name, which pods tell.
pub const TOPOLOGY: [Resource; 1] = [NODES];

/// What leader election gets, creates and updates, in the pool's namespace.
pub const ELECTION: [Resource; 1] = [LEASES];

/// What authorising readers of metrics creates, without a namespace.
pub const REVIEWS: [Resource; 2] = [TOKEN_REVIEWS, ACCESS_REVIEWS];

/// The API groups in which objectives and rewrites are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// `llm-d.ai`; wins where both have an object of one name.
    LlmD,
    /// `inference.networking.x-k8s.io`, where they were until v1.5 of the extension.
    Legacy,
}

impl Group {
    pub(crate) const ALL: [Self; 2] = [Self::LlmD, Self::Legacy];

    const fn name(self) -> &'static str {
        match self {
            Self::LlmD => "llm-d.ai",
            Self::Legacy => "inference.networking.x-k8s.io",
        }
    }

    pub(crate) const fn objectives(self) -> Resource {
        Resource { group: self.name(), version: "v1alpha2", plural: "inferenceobjectives" }
    }

    pub(crate) const fn rewrites(self) -> Resource {
        Resource { group: self.name(), version: "v1alpha2", plural: "inferencemodelrewrites" }
    }
}

impl Resource {
    /// The path of all objects, in a namespace or without one.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let mut path = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if let Some(namespace) = namespace {
            path.push_str("/namespaces/");
            escape(namespace, &mut path);
        }
        path.push('/');
        path.push_str(self.plural);
        path
    }

    /// The path of one object.
    pub(crate) fn path_of(&self, namespace: &str, name: &str) -> String {
        let mut path = self.path(Some(namespace));
        path.push('/');
        escape(name, &mut path);
        path
    }
}

/// Objects of one kind, in a namespace or without one, narrowed by selectors.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) resource: Resource,
    pub(crate) namespace: Option<String>,
    /// `key=value[,key=value...]`.
    pub(crate) labels: Option<String>,
    /// As `labels`.
    pub(crate) fields: Option<String>,
}

impl Query {
    /// The path with the selectors and `parameters`.
    pub(crate) fn path(&self, parameters: &[(&str, &str)]) -> String {
        let selectors = [("labelSelector", &self.labels), ("fieldSelector", &self.fields)];
        let selectors =
            selectors.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        let mut path = self.resource.path(self.namespace.as_deref());
        for (at, (name, value)) in selectors.chain(parameters.iter().copied()).enumerate() {
            path.push(if at == 0 { '?' } else { '&' });
            path.push_str(name);
            path.push('=');
            escape(value, &mut path);
        }
        path
    }
}

/// Appends `text` as it may stand in a path or a query.
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            write!(out, "%{byte:02X}").expect("a string takes all");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        assert_eq!(PODS.path(Some("a")), "/api/v1/namespaces/a/pods");
        assert_eq!(TOKEN_REVIEWS.path(None), "/apis/authentication.k8s.io/v1/tokenreviews");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b%2F..";
        assert_eq!(LEASES.path_of("a", "b/.."), lease);
    }

    #[test]
    fn selectors_and_parameters_are_escaped() {
        let query = Query {
            resource: PODS,
            namespace: Some("n".into()),
            labels: Some("a/b=c,d=".into()),
            fields: None,
        };
        assert_eq!(
            query.path(&[("limit", "5")]),
            "/api/v1/namespaces/n/pods?labelSelector=a%2Fb%3Dc%2Cd%3D&limit=5"
        );
        let plain = Query { labels: None, ..query };
        assert_eq!(plain.path(&[]), "/api/v1/namespaces/n/pods");
        let everywhere = Query { resource: NODES, namespace: None, ..plain };
        assert_eq!(everywhere.path(&[]), "/api/v1/nodes");
    }
}
