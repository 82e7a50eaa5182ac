//! Objects of the Kubernetes API as the tests make them, and where the server serves them.

use serde_json::{Value, json};

/// Kinds without a namespace that the tests use.
const CLUSTER_SCOPED: [&str; 9] = [
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "GatewayClass",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "ValidatingWebhookConfiguration",
];

/// What is enough of an object to say which one is meant. Kinds of the core group have the
/// version `v1`; cluster-scoped kinds have no namespace, `""`.
pub fn reference(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let metadata = match namespace {
        "" => json!({ "name": name }),
        _ => json!({ "name": name, "namespace": namespace }),
    };
    json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata })
}

/// An `InferencePool` of the pods with these labels (an object of strings), a Service `picker`
/// being its picker. The namespace is still to be set.
pub fn pool(name: &str, labels: Value, ports: &[u16]) -> Value {
    let mut pool = reference("inference.networking.k8s.io/v1", "InferencePool", "", name);
    let ports: Value = ports.iter().map(|number| json!({ "number": number })).collect();
    pool["spec"] = json!({
        "selector": { "matchLabels": labels },
        "targetPorts": ports,
        "endpointPickerRef": { "name": "picker", "port": { "number": 9002 } },
    });
    pool
}

/// Where an object is served.
///
/// # Panics
///
/// For an object without version, kind or name.
pub fn path(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().expect("an object has a name");
    format!("{}/{name}", collection(object))
}

/// Where the objects of its kind, in its namespace, are served.
pub(crate) fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().expect("an object has a version");
    let kind = object["kind"].as_str().expect("an object has a kind");
    let root = if version.contains('/') { "apis" } else { "api" };
    let plural = plural(kind);
    if CLUSTER_SCOPED.contains(&kind) {
        return format!("/{root}/{version}/{plural}");
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    format!("/{root}/{version}/namespaces/{namespace}/{plural}")
}

/// A kind's name in paths. English is regular enough for the kinds that the tests use.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with('a') => format!("{stem}ies"),
        _ if kind.ends_with('s') => format!("{kind}es"),
        _ => format!("{kind}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(api_version: &str, kind: &str, namespace: &str, expected: &str) {
        assert_eq!(path(&reference(api_version, kind, namespace, "x")), expected);
    }

    #[test]
    fn objects_are_found_by_group_kind_and_namespace() {
        check("v1", "Pod", "a", "/api/v1/namespaces/a/pods/x");
        check("v1", "Namespace", "", "/api/v1/namespaces/x");
        check("v1", "Service", "", "/api/v1/namespaces/default/services/x");
        let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/x";
        check("rbac.authorization.k8s.io/v1", "ClusterRole", "", role);
        let policy = "/apis/networking.k8s.io/v1/namespaces/a/networkpolicies/x";
        check("networking.k8s.io/v1", "NetworkPolicy", "a", policy);
        let gateway = "/apis/gateway.networking.k8s.io/v1/namespaces/a/gateways/x";
        check("gateway.networking.k8s.io/v1", "Gateway", "a", gateway);
        let class = "/apis/gateway.networking.k8s.io/v1/gatewayclasses/x";
        check("gateway.networking.k8s.io/v1", "GatewayClass", "", class);
    }
}
