//! Kinds in their version `v1beta1`, which is the stored one.

use super::common::{
    Framework, FreeObject, GraphExperiments, ModelReference, Multinode, PickerConfig, Quantity,
    Restart, RestartStatus, Strings,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Graph of components that serve models together.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GraphSpec {
    /// Engine of the workers. Default: the workers' commands say which.
    pub(crate) backend_framework: Option<Framework>,
    /// Annotations of all pods. A component's own win.
    pub(crate) annotations: Option<Strings>,
    /// Labels of all pods. A component's own win.
    pub(crate) labels: Option<Strings>,
    /// Environment of all main containers. A component's own wins.
    pub(crate) env: Option<Vec<FreeObject>>,
    /// Priority class of a gang.
    pub(crate) priority_class_name: Option<String>,
    /// Components, at most 25.
    #[schemars(length(max = 25), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "self.filter(c, has(c.type) && c.type == 'epp').size() <= 1",
        "message": "at most one component may have type epp"
    }]))]
    pub(crate) components: Option<Vec<Component>>,
    /// Request to restart the components.
    pub(crate) restart: Option<Restart>,
    /// Places of a gang's pods.
    pub(crate) topology_constraint: Option<FreeObject>,
    /// Fields of the gang's own objects.
    pub(crate) provider_override: Option<FreeObject>,
    pub(crate) experimental: Option<GraphExperiments>,
}

/// Part of a graph that is scaled by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Component {
    /// Name, unique in the graph.
    #[schemars(length(min = 1, max = 63))]
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) shape: ComponentShape,
}

/// Settings of a component.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComponentShape {
    /// Part that the component has in serving. Default: none, a component of any kind.
    pub(crate) r#type: Option<ComponentType>,
    /// Copies. Default: 1.
    #[schemars(range(min = 0))]
    pub(crate) replicas: Option<i32>,
    /// Copies that a gang starts with.
    #[schemars(range(min = 1))]
    pub(crate) min_available: Option<i32>,
    /// Pods; the container `main` is the component, others stand beside it.
    pub(crate) pod_template: Option<FreeObject>,
    pub(crate) multinode: Option<Multinode>,
    /// Asks for an object through which the component is scaled.
    pub(crate) scaling_adapter: Option<FreeObject>,
    /// Size of `/dev/shm`. Default: 8Gi; 0 for none.
    pub(crate) shared_memory_size: Option<Quantity>,
    pub(crate) model_ref: Option<ModelReference>,
    /// Claim where the engine keeps what it has compiled.
    pub(crate) compilation_cache: Option<CompilationCache>,
    /// Name of a container of the pod that is the door of its engine.
    pub(crate) frontend_sidecar: Option<String>,
    pub(crate) epp_config: Option<PickerConfig>,
    /// Whether workers are found by all graphs of the cluster.
    pub(crate) global_dynamo_namespace: Option<bool>,
    /// Version of the image, where its tag says none.
    pub(crate) runtime_version_override: Option<String>,
    pub(crate) topology_constraint: Option<FreeObject>,
    pub(crate) provider_override: Option<FreeObject>,
    pub(crate) experimental: Option<FreeObject>,
}

/// Part that a component has in serving.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ComponentType {
    Frontend,
    Worker,
    Prefill,
    Decode,
    Planner,
    Epp,
}

/// Claim where an engine keeps what it has compiled.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CompilationCache {
    pub(crate) pvc_name: String,
    pub(crate) mount_path: Option<String>,
}

/// State of a graph.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GraphStatus {
    /// `initializing` (the default), `pending`, `successful` or `failed`.
    #[schemars(extend("default" = "initializing"))]
    pub(crate) state: Option<String>,
    pub(crate) observed_generation: Option<i64>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub(crate) conditions: Option<Vec<StatusCondition>>,
    /// Components by name.
    pub(crate) components: Option<BTreeMap<String, ComponentStatus>>,
    pub(crate) rolling_update: Option<RollingUpdate>,
    pub(crate) restart: Option<RestartStatus>,
    pub(crate) checkpoints: Option<BTreeMap<String, FreeObject>>,
    pub(crate) placement: Option<FreeObject>,
}

/// Observation of an object.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusCondition {
    pub(crate) r#type: String,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) last_transition_time: String,
    pub(crate) observed_generation: Option<i64>,
}

/// State of a component.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComponentStatus {
    pub(crate) component_kind: String,
    pub(crate) component_names: Option<Vec<String>>,
    pub(crate) replicas: i32,
    pub(crate) updated_replicas: i32,
    pub(crate) ready_replicas: Option<i32>,
    pub(crate) available_replicas: Option<i32>,
    pub(crate) scheduled_replicas: Option<i32>,
    pub(crate) runtime_namespace: Option<String>,
}

/// Change from one generation of workers to the next.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RollingUpdate {
    /// `Pending`, `InProgress`, `Completed`, `Failed` or empty.
    pub(crate) phase: Option<String>,
    pub(crate) start_time: Option<String>,
    pub(crate) end_time: Option<String>,
    pub(crate) updated_components: Option<Vec<String>>,
}

/// Component by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComponentDeploymentSpec {
    /// Name of the component. Default: the object's name.
    pub(crate) name: Option<String>,
    pub(crate) backend_framework: Option<Framework>,
    #[serde(flatten)]
    pub(crate) shape: ComponentShape,
}

/// State of a component by itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComponentDeploymentStatus {
    pub(crate) observed_generation: Option<i64>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub(crate) conditions: Option<Vec<StatusCondition>>,
    pub(crate) component: Option<ComponentStatus>,
}

/// Number of a component's copies, for autoscalers.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScalingAdapterSpec {
    /// Copies.
    #[schemars(range(min = 0))]
    pub(crate) replicas: i32,
    pub(crate) dgd_ref: ScalingTarget,
}

/// Component of a graph.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScalingTarget {
    /// Name of the graph.
    pub(crate) name: String,
    pub(crate) component_name: String,
}

/// State of a scaling adapter.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScalingAdapterStatus {
    pub(crate) replicas: Option<i32>,
    /// Label selector of the component's pods, as text.
    pub(crate) selector: Option<String>,
    pub(crate) last_scale_time: Option<String>,
}

/// Request for a graph that meets objectives.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestSpec {
    #[schemars(length(min = 1))]
    pub(crate) model: String,
    #[schemars(extend("default" = "auto"))]
    pub(crate) backend: Option<String>,
    pub(crate) image: Option<String>,
    #[schemars(extend("default" = "rapid"))]
    pub(crate) search_strategy: Option<String>,
    /// Whether the graph is applied at once.
    #[schemars(extend("default" = true))]
    pub(crate) auto_apply: Option<bool>,
    pub(crate) hardware: Option<FreeObject>,
    pub(crate) workload: Option<FreeObject>,
    pub(crate) sla: Option<FreeObject>,
    pub(crate) model_cache: Option<FreeObject>,
    pub(crate) features: Option<FreeObject>,
    pub(crate) overrides: Option<FreeObject>,
    pub(crate) runtime_version_override: Option<String>,
}

/// State of a request.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestStatus {
    pub(crate) phase: Option<String>,
    pub(crate) profiling_phase: Option<String>,
    pub(crate) profiling_job_name: Option<String>,
    pub(crate) profiling_results: Option<FreeObject>,
    pub(crate) dgd_name: Option<String>,
    pub(crate) deployment_info: Option<FreeObject>,
    pub(crate) observed_generation: Option<i64>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub(crate) conditions: Option<Vec<StatusCondition>>,
}
