//! An endpoint: one `ip:port` of a pod, which takes requests.

use stator_protos::WorkerRank;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Labels of a pod that say what its engine does, canonical first.
const ROLE_LABEL: &str = "llm-d.ai/role";

/// An endpoint as discovery tells of it. Never changed: a pod that changes gets a new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Identity in the placement core: the pod, and which of the pool's target ports it is.
    pub worker: WorkerRank,
    /// Identity of the pod's present life; a pod made anew under its name has another one.
    pub uid: Arc<str>,
    /// `<pod>-rank-<i>`, the name in metrics and session tokens.
    pub name: Arc<str>,
    /// Name of the pod, or of the entry in a file.
    pub pod: Arc<str>,
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Address for requests.
    pub address: SocketAddr,
    /// The pod's labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Work of the engine, by its labels.
    pub roles: Roles,
}

impl Endpoint {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

/// Work of an engine. An endpoint without a role label decodes, see [`Roles::of`].
///
/// Source: the role filters of the llm-d router (`decode-filter`, `prefill-filter`,
/// `encode-filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Computes the KV of prompts for others.
    pub prefill: bool,
    /// Produces tokens.
    pub decode: bool,
    /// Encodes images and the like for others.
    pub encode: bool,
    /// Whether a label says so.
    pub labelled: bool,
}

impl Roles {
    /// The roles of a pod with these labels. A role that nobody knows is none at all.
    pub fn of(labels: &BTreeMap<String, String>) -> Self {
        let Some(role) = labels.get(ROLE_LABEL) else {
            return Self { decode: true, ..Self::default() };
        };
        let (prefill, decode, encode) = match role.as_str() {
            "prefill" => (true, false, false),
            "decode" => (false, true, false),
            "encode" => (false, false, true),
            "prefill-decode" | "both" => (true, true, false),
            "encode-prefill" => (true, false, true),
            "encode-prefill-decode" => (true, true, true),
            _ => (false, false, false),
        };
        Self { prefill, decode, encode, labelled: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(role: Option<&str>, prefill: bool, decode: bool, encode: bool) {
        let labels = role.map(|role| (ROLE_LABEL.to_owned(), role.to_owned())).into_iter();
        let roles = Roles::of(&labels.collect());
        assert_eq!((roles.prefill, roles.decode, roles.encode), (prefill, decode, encode));
        assert_eq!(roles.labelled, role.is_some());
    }

    #[test]
    fn a_role_label_says_what_an_endpoint_does() {
        check(None, false, true, false);
        check(Some("prefill"), true, false, false);
        check(Some("decode"), false, true, false);
        check(Some("both"), true, true, false);
        check(Some("encode-prefill"), true, false, true);
        check(Some("encode-prefill-decode"), true, true, true);
        check(Some("cook"), false, false, false);
    }
}
