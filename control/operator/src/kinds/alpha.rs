//! Kinds in their version `v1alpha1`: the older form of those of [`super::beta`], and those that
//! have no other.

use super::common::{
    Framework, FreeObject, GraphExperiments, ModelReference, Multinode, PickerConfig, Quantity,
    Restart, RestartStatus, Strings,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Graph of services.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldGraphSpec {
    pub(crate) backend_framework: Option<Framework>,
    pub(crate) annotations: Option<Strings>,
    pub(crate) labels: Option<Strings>,
    pub(crate) envs: Option<Vec<FreeObject>>,
    pub(crate) priority_class_name: Option<String>,
    /// Components by name.
    pub(crate) services: Option<BTreeMap<String, OldService>>,
    pub(crate) pvcs: Option<Vec<OldClaim>>,
    pub(crate) restart: Option<Restart>,
    pub(crate) topology_constraint: Option<FreeObject>,
    pub(crate) provider_override: Option<FreeObject>,
    pub(crate) experimental: Option<GraphExperiments>,
}

/// Volume claim of a graph.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldClaim {
    pub(crate) name: String,
    /// Whether the claim is made; it is there already otherwise.
    pub(crate) create: Option<bool>,
    pub(crate) size: Option<Quantity>,
    pub(crate) storage_class: Option<String>,
    pub(crate) volume_access_mode: Option<String>,
}

/// Part of a graph that is scaled by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldService {
    pub(crate) component_type: Option<String>,
    pub(crate) sub_component_type: Option<String>,
    pub(crate) service_name: Option<String>,
    pub(crate) dynamo_namespace: Option<String>,
    pub(crate) global_dynamo_namespace: Option<bool>,
    pub(crate) annotations: Option<Strings>,
    pub(crate) labels: Option<Strings>,
    #[schemars(range(min = 0))]
    pub(crate) replicas: Option<i32>,
    #[schemars(range(min = 1))]
    pub(crate) min_available: Option<i32>,
    pub(crate) resources: Option<FreeObject>,
    /// Bounds of an autoscaler. No effect.
    pub(crate) autoscaling: Option<FreeObject>,
    pub(crate) envs: Option<Vec<FreeObject>>,
    pub(crate) env_from_secret: Option<String>,
    pub(crate) volume_mounts: Option<Vec<OldMount>>,
    pub(crate) ingress: Option<FreeObject>,
    pub(crate) model_ref: Option<ModelReference>,
    pub(crate) shared_memory: Option<OldSharedMemory>,
    pub(crate) extra_pod_metadata: Option<OldPodMetadata>,
    /// Pod, whose `mainContainer` is the component.
    pub(crate) extra_pod_spec: Option<FreeObject>,
    pub(crate) liveness_probe: Option<FreeObject>,
    pub(crate) readiness_probe: Option<FreeObject>,
    pub(crate) multinode: Option<Multinode>,
    pub(crate) scaling_adapter: Option<OldSwitch>,
    pub(crate) frontend_sidecar: Option<OldSidecar>,
    pub(crate) epp_config: Option<PickerConfig>,
    pub(crate) checkpoint: Option<FreeObject>,
    pub(crate) gpu_memory_service: Option<FreeObject>,
    pub(crate) failover: Option<FreeObject>,
    pub(crate) runtime_version_override: Option<String>,
    pub(crate) topology_constraint: Option<FreeObject>,
    pub(crate) provider_override: Option<FreeObject>,
}

/// Mount of a claim.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldMount {
    pub(crate) name: String,
    pub(crate) mount_point: Option<String>,
    pub(crate) use_as_compilation_cache: Option<bool>,
}

/// Size of `/dev/shm`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct OldSharedMemory {
    pub(crate) disabled: Option<bool>,
    pub(crate) size: Option<Quantity>,
}

/// Labels and annotations of pods.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct OldPodMetadata {
    pub(crate) annotations: Option<Strings>,
    pub(crate) labels: Option<Strings>,
}

/// Whether a part is wanted.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct OldSwitch {
    pub(crate) enabled: Option<bool>,
}

/// Door of an engine, beside it in its pod.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldSidecar {
    pub(crate) image: String,
    pub(crate) args: Option<Vec<String>>,
    pub(crate) envs: Option<Vec<FreeObject>>,
    pub(crate) env_from_secret: Option<String>,
}

/// State of a graph.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldGraphStatus {
    #[schemars(extend("default" = "initializing"))]
    pub(crate) state: Option<String>,
    pub(crate) observed_generation: Option<i64>,
    pub(crate) conditions: Option<Vec<FreeObject>>,
    pub(crate) services: Option<BTreeMap<String, FreeObject>>,
    pub(crate) rolling_update: Option<FreeObject>,
    pub(crate) restart: Option<RestartStatus>,
    pub(crate) checkpoints: Option<BTreeMap<String, FreeObject>>,
    pub(crate) placement: Option<FreeObject>,
}

/// Component by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldComponentDeploymentSpec {
    pub(crate) backend_framework: Option<Framework>,
    #[serde(flatten)]
    pub(crate) service: OldService,
}

/// State of a component by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldComponentDeploymentStatus {
    pub(crate) observed_generation: Option<i64>,
    pub(crate) conditions: Option<Vec<FreeObject>>,
    pub(crate) pod_selector: Option<Strings>,
    pub(crate) service: Option<FreeObject>,
}

/// Number of a component's copies, for autoscalers.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldScalingAdapterSpec {
    #[schemars(range(min = 0))]
    pub(crate) replicas: i32,
    pub(crate) dgd_ref: OldScalingTarget,
}

/// Service of a graph.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldScalingTarget {
    pub(crate) name: String,
    pub(crate) service_name: Option<String>,
    /// Name of the component, as in `v1beta1`: an autoscaler that sets the scale in this version
    /// must not lose it.
    pub(crate) component_name: Option<String>,
}

/// Request for a graph that meets objectives.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldRequestSpec {
    pub(crate) model: String,
    pub(crate) backend: String,
    #[schemars(extend("default" = false))]
    pub(crate) auto_apply: Option<bool>,
    #[schemars(extend("default" = true))]
    pub(crate) enable_gpu_discovery: Option<bool>,
    #[schemars(extend("default" = false))]
    pub(crate) use_mocker: Option<bool>,
    pub(crate) profiling_config: FreeObject,
    pub(crate) deployment_overrides: Option<FreeObject>,
    pub(crate) runtime_version_override: Option<String>,
}

/// State of a request.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldRequestStatus {
    #[schemars(extend("default" = "Initializing"))]
    pub(crate) state: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) observed_generation: Option<i64>,
    pub(crate) conditions: Option<Vec<FreeObject>>,
    pub(crate) profiling_results: Option<String>,
    pub(crate) generated_deployment: Option<FreeObject>,
    pub(crate) deployment: Option<FreeObject>,
}

/// Model or adapter that workers serve.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelSpec {
    /// Name that clients ask for.
    pub(crate) model_name: String,
    /// Model that the workers have; an adapter's own base.
    pub(crate) base_model_name: String,
    /// `base` (the default), `lora` or `adapter`.
    #[schemars(extend("default" = "base"))]
    pub(crate) model_type: Option<String>,
    pub(crate) source: Option<ModelSource>,
}

/// Place of an adapter's weights.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct ModelSource {
    /// `s3://`, `hf://` or `file:///`.
    pub(crate) uri: String,
}

/// Workers that serve a model.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelStatus {
    pub(crate) endpoints: Option<Vec<ModelEndpoint>>,
    pub(crate) ready_endpoints: Option<i32>,
    pub(crate) total_endpoints: Option<i32>,
    pub(crate) lora_fallback_covered_endpoints: Option<i32>,
    pub(crate) conditions: Option<Vec<FreeObject>>,
}

/// Worker that serves a model.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelEndpoint {
    pub(crate) address: String,
    pub(crate) pod_name: Option<String>,
    pub(crate) ready: bool,
    pub(crate) lora_fallback_covered: Option<bool>,
}

/// Records of the workers in one pod.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct WorkerMetadataSpec {
    /// Records by their kind. Agents of stator keep to `stator_agents`.
    pub(crate) data: FreeObject,
}
