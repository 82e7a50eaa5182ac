//! Kinds of objects, and where they lie in the API.

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

/// Leases, of which the holder of one leads.
pub const LEASES: Resource =
    Resource { group: "coordination.k8s.io", version: "v1", plural: "leases" };
/// Pods.
pub const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };

impl Resource {
    /// The path of all objects, in a namespace or without one.
    pub fn path(&self, namespace: Option<&str>) -> String {
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
    pub fn path_of(&self, namespace: &str, name: &str) -> String {
        let mut path = self.path(Some(namespace));
        path.push('/');
        escape(name, &mut path);
        path
    }
}

/// Objects of one kind, in a namespace or without one, narrowed by selectors.
#[derive(Clone, Debug)]
pub struct Query {
    /// Their kind.
    pub resource: Resource,
    /// The namespace; `None` is all of them.
    pub namespace: Option<String>,
    /// A selector of Kubernetes in its text form: `key=value,other in (a,b)`.
    pub labels: Option<String>,
    /// As `labels`.
    pub fields: Option<String>,
}

impl Query {
    /// The path with the selectors and `parameters`.
    pub fn path(&self, parameters: &[(&str, &str)]) -> String {
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
pub(crate) fn escape(text: &str, out: &mut String) {
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
        assert_eq!(LEASES.path(None), "/apis/coordination.k8s.io/v1/leases");
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
        let everywhere = Query { namespace: None, ..plain };
        assert_eq!(everywhere.path(&[]), "/api/v1/pods");
    }
}
