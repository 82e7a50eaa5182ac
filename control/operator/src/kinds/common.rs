//! Parts that several kinds have.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Labels, annotations and the like.
pub(crate) type Strings = BTreeMap<String, String>;

/// Object whose fields belong to somebody else: a pod, a probe, an engine's settings. All are kept.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct FreeObject(pub(crate) Map<String, Value>);

/// Amount as Kubernetes writes it: a number, or a text such as `8Gi`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Quantity(pub(crate) Value);

/// Engine of a graph's workers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Framework {
    Sglang,
    Vllm,
    Trtllm,
}

/// Model that a component serves.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelReference {
    pub(crate) name: String,
    pub(crate) revision: Option<String>,
}

/// One engine on several nodes.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Multinode {
    /// Nodes of one engine, at least 2.
    #[schemars(range(min = 2), extend("default" = 2))]
    pub(crate) node_count: Option<i32>,
    pub(crate) leader: Option<FreeObject>,
    pub(crate) worker: Option<FreeObject>,
}

/// Configuration of the endpoint picker.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PickerConfig {
    /// Key of a ConfigMap that holds an EndpointPickerConfig.
    pub(crate) config_map_ref: Option<ConfigMapKey>,
    /// The EndpointPickerConfig itself.
    pub(crate) config: Option<FreeObject>,
}

/// Key of a ConfigMap.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfigMapKey {
    pub(crate) name: Option<String>,
    pub(crate) key: String,
    pub(crate) optional: Option<bool>,
}

/// Settings that may change between versions.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GraphExperiments {
    /// Bound on the way of KV between the halves of a pair.
    pub(crate) kv_transfer_policy: Option<KvTransferPolicy>,
}

/// Bound on the distance between the halves of a pair.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KvTransferPolicy {
    /// Name of the distance, for example `rack`.
    pub(crate) domain: String,
    /// Label of nodes whose value names their place.
    pub(crate) label_key: Option<String>,
    pub(crate) cluster_topology_name: Option<String>,
    /// `required` (the default) or `preferred`.
    #[schemars(extend("default" = "required"))]
    pub(crate) enforcement: Option<String>,
    /// Weight of a preference, 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub(crate) preferred_weight: Option<f64>,
}

/// Request to restart a graph's components.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Restart {
    /// A change asks for a restart.
    pub(crate) id: String,
    pub(crate) strategy: Option<RestartStrategy>,
}

/// Order of a restart.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct RestartStrategy {
    /// `Sequential` (the default) or `Parallel`.
    #[schemars(extend("default" = "Sequential"))]
    pub(crate) r#type: Option<String>,
    /// Names of components, first to last.
    pub(crate) order: Option<Vec<String>>,
}

/// Progress of a restart.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RestartStatus {
    #[serde(rename = "observedID")]
    pub(crate) observed_id: Option<String>,
    pub(crate) phase: Option<String>,
    pub(crate) in_progress: Option<Vec<String>>,
}

impl JsonSchema for FreeObject {
    fn schema_name() -> Cow<'static, str> {
        "FreeObject".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}
