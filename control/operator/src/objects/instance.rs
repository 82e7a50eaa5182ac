//! A component as its document says, with what follows from its names.

use super::{OperatorSettings, label};
use crate::kinds::beta::{ComponentDeploymentSpec, ComponentShape, ComponentType};
use crate::kinds::common::Framework;
use crate::translate::PodPlace;
use serde_json::Value;

/// Annotation of a planner's component with words of its command line, as JSON.
pub(super) const PLANNER: &str = "stator.dev/planner";

/// A component on its way to its workload.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Name of the document, of the workload and of the Service.
    pub(crate) name: String,
    /// Name of the component in its graph.
    pub(crate) component: String,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Name of the graph; of a component by itself its own.
    pub(crate) graph: String,
    /// Whether there is a graph.
    pub(crate) is_of_graph: bool,
    /// Value of the label by which the graph's pods find each other.
    pub(crate) graph_label: String,
    /// Generation of a worker.
    pub(crate) hash: Option<String>,
    /// Whether a picker chooses among the graph's workers.
    pub(crate) is_behind_picker: bool,
    pub(crate) framework: Option<Framework>,
    pub(crate) shape: ComponentShape,
}

impl Instance {
    /// Reads a `DynamoComponentDeployment` of `v1beta1`.
    ///
    /// # Errors
    ///
    /// The field that is wrong.
    pub(crate) fn read(document: &Value) -> Result<Self, String> {
        let spec: ComponentDeploymentSpec = serde_json::from_value(document["spec"].clone())
            .map_err(|error| format!("spec: {error}"))?;
        let metadata = &document["metadata"];
        let name = metadata["name"].as_str().ok_or("metadata.name: is missing")?.to_owned();
        let namespace = metadata["namespace"].as_str().unwrap_or("default").to_owned();
        let said = |name: &str| metadata["labels"][label(name)].as_str().map(str::to_owned);
        let graph = said("dynamo-graph-deployment-name");
        let is_of_graph = graph.is_some();
        let graph = graph.unwrap_or_else(|| name.clone());
        let is_global = spec.shape.global_dynamo_namespace == Some(true);
        let graph_label =
            said("dynamo-namespace").unwrap_or_else(|| graph_label(&namespace, &graph, is_global));
        Ok(Self {
            component: spec.name.unwrap_or_else(|| name.clone()),
            hash: said("dynamo-worker-hash"),
            is_behind_picker: said("dynamo-component-class").as_deref() == Some("worker"),
            framework: spec.backend_framework,
            shape: spec.shape,
            name,
            namespace,
            graph,
            is_of_graph,
            graph_label,
        })
    }

    /// Name of the component's type in labels and variables.
    pub(super) fn type_name(&self) -> &'static str {
        self.shape.r#type.map_or("", type_name)
    }

    /// Whether one engine spans several nodes.
    pub(crate) fn is_multinode(&self) -> bool {
        self.shape.multinode.is_some()
    }

    /// Nodes of one engine.
    pub(crate) fn nodes(&self) -> i32 {
        let nodes =
            self.shape.multinode.as_ref().map(|multinode| multinode.node_count.unwrap_or(2));
        nodes.unwrap_or(1)
    }

    /// Words of a planner's command line that follow from its graph.
    fn scaled(&self) -> Vec<String> {
        let template = self.shape.pod_template.as_ref().map(|template| &template.0);
        let metadata = template.and_then(|template| template.get("metadata"));
        let text = metadata.and_then(|metadata| metadata["annotations"][PLANNER].as_str());
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Place of the component for the translation of its pod.
    pub(super) fn surroundings<'a>(&'a self, settings: &'a OperatorSettings) -> PodPlace<'a> {
        let Self { namespace, graph_label, .. } = self;
        let mut discovery = format!(
            "kubernetes://{namespace}?selector={}={graph_label}",
            label("dynamo-namespace")
        );
        // A worker takes prompts and KV from its own generation alone.
        if let Some(hash) = &self.hash {
            discovery += &format!(",{}={hash}", label("dynamo-worker-hash"));
        }
        PodPlace {
            component: &self.component,
            kind: self.shape.r#type,
            is_multinode: self.is_multinode(),
            discovery,
            scaled: self.scaled(),
            substitutes: &settings.substitutes,
        }
    }
}

/// Value of the label by which the pods of a graph find each other.
pub(super) fn graph_label(namespace: &str, graph: &str, is_global: bool) -> String {
    if is_global { "dynamo".to_owned() } else { format!("{namespace}-{graph}").replace('.', "-") }
}

/// Whether components of this type compute tokens.
pub(super) fn is_worker(kind: Option<ComponentType>) -> bool {
    matches!(kind, Some(ComponentType::Worker | ComponentType::Prefill | ComponentType::Decode))
}

pub(super) fn type_name(kind: ComponentType) -> &'static str {
    match kind {
        ComponentType::Frontend => "frontend",
        ComponentType::Worker => "worker",
        ComponentType::Prefill => "prefill",
        ComponentType::Decode => "decode",
        ComponentType::Planner => "planner",
        ComponentType::Epp => "epp",
    }
}
