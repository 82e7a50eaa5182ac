//! Resources that the picker reads and writes in a cluster, and their place in the API.

use stator_kube::{LEASES, PODS, Resource};

/// Group of `InferencePool`, and the default of references to one.
pub const POOL_GROUP: &str = "inference.networking.k8s.io";

pub(crate) const POOLS: Resource =
    Resource { group: POOL_GROUP, version: "v1", plural: "inferencepools" };
pub(crate) const NODES: Resource = Resource { group: "", version: "v1", plural: "nodes" };
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

/// Resources that plug-ins need which go by labels of nodes: listed and watched, without a
/// namespace. Without the right to them, endpoints count as being on different nodes of unknown
/// place, but for the node's name, which pods give.
pub const TOPOLOGY: [Resource; 1] = [NODES];

/// Resources of leader election: got, created and updated in the pool's namespace.
pub const ELECTION: [Resource; 1] = [LEASES];

/// Resources that authorise readers of metrics: created, without a namespace.
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
