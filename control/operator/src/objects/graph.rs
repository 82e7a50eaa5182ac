//! A graph's components, and the objects that they share.

use super::document::GraphDocument;
use super::generation::generation;
use super::instance::{graph_label, is_worker};
use super::nearness::{self, NEARNESS};
use super::{
    OperatorSettings, WantedObjects, label, object, planner, shared, strings, unsupported,
};
use crate::kinds::BETA;
use crate::kinds::beta::ComponentType;
use crate::kinds::common::Framework;
use serde_json::{Map, Value, json};

/// Annotations of a graph that its pods have too.
const PASSED_ON: [&str; 5] = [
    "enable-metrics",
    "dynamo-discovery-backend",
    "dynamo-kube-discovery-mode",
    "dynamo-operator-origin-version",
    "vllm-distributed-executor-backend",
];
/// Modules that say which framework a component has.
const FRAMEWORKS: [(&str, Framework); 3] = [
    ("dynamo.vllm", Framework::Vllm),
    ("dynamo.sglang", Framework::Sglang),
    ("dynamo.trtllm", Framework::Trtllm),
];

/// The objects of a graph of `v1beta1`, its components last.
///
/// # Errors
///
/// The field that is wrong.
pub(crate) fn objects(
    document: &Value,
    settings: &OperatorSettings,
) -> Result<WantedObjects, String> {
    let document = match settings.translates {
        true => planner::with_adapters(document.clone()),
        false => document.clone(),
    };
    let graph = GraphDocument::read(&document)?;
    if graph.spec.components.iter().flatten().next().is_none() {
        return Err("spec.components: at least one is needed".to_owned());
    }
    let said = graph.written["components"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut components: Vec<_> =
        said.iter().map(|component| graph.component(component, settings)).collect();
    let generation = generation(&components);
    for (component, said) in components.iter_mut().zip(graph.spec.components.iter().flatten()) {
        if is_worker(said.shape.r#type) {
            give_generation(component, &generation);
        }
    }
    let mut notes = unsupported::of_graph(&graph.spec);
    let (mut objects, lost) = shared::objects(&graph)?;
    notes.extend(lost);
    objects.extend(components);
    Ok(WantedObjects { objects, notes })
}

impl GraphDocument<'_> {
    /// A component as a document of its own, without a generation.
    fn component(&self, said: &Value, settings: &OperatorSettings) -> Value {
        let name = said["name"].as_str().unwrap_or_default();
        let kind: Option<ComponentType> = serde_json::from_value(said["type"].clone()).ok();
        let id = format!("{}-{}", self.name, name.to_lowercase());
        let mut component = object(BETA, "DynamoComponentDeployment", self.namespace, &id);
        let mut spec = said.clone();
        if spec["replicas"].is_null() {
            spec["replicas"] = 1.into();
        }
        let framework = self.spec.backend_framework.or_else(|| framework(said));
        if let Some(framework) = framework {
            spec["backendFramework"] = json!(framework);
        }
        self.fill_template(&mut spec["podTemplate"], settings);
        if kind == Some(ComponentType::Planner) && settings.translates {
            let (name, words) = planner::annotation(self);
            spec["podTemplate"]["metadata"]["annotations"][name] = words;
        }
        if let Some(bound) = self.nearness().filter(|_| settings.translates) {
            spec["podTemplate"]["metadata"]["annotations"][NEARNESS] = bound;
        }
        let mut labels = strings(&spec["podTemplate"]["metadata"], "labels");
        let is_global = said["globalDynamoNamespace"] == true;
        let own = [
            ("dynamo-component", json!(name)),
            ("dynamo-namespace", json!(graph_label(self.namespace, self.name, is_global))),
            ("dynamo-graph-deployment-name", json!(self.name)),
        ];
        labels.extend(own.map(|(name, value)| (label(name), value)));
        if is_worker(kind) && self.has(ComponentType::Epp) {
            labels.insert(label("dynamo-component-class"), "worker".into());
        }
        component["metadata"]["labels"] = labels.into();
        component["spec"] = spec;
        component
    }

    /// The annotation with the bound on the way of KV, if it can be kept.
    fn nearness(&self) -> Option<Value> {
        let policy = self.spec.experimental.as_ref()?.kv_transfer_policy.as_ref()?;
        nearness::annotation(policy).ok()
    }

    /// Gives a pod template what the graph says for all of them.
    fn fill_template(&self, template: &mut Value, settings: &OperatorSettings) {
        let version = json!(settings.origin_version);
        let mut annotations: Map<_, _> =
            [(label("dynamo-operator-origin-version"), version)].into_iter().collect();
        let graph = strings(self.metadata, "annotations");
        let passed = PASSED_ON.map(label).into_iter();
        annotations
            .extend(passed.filter_map(|name| Some((name.clone(), graph.get(&name)?.clone()))));
        let said = self.spec.annotations.iter().flatten();
        annotations.extend(said.map(|(name, value)| (name.clone(), json!(value))));
        annotations.extend(strings(&template["metadata"], "annotations"));
        template["metadata"]["annotations"] = annotations.into();
        let said = self.spec.labels.iter().flatten();
        let mut labels: Map<_, _> =
            said.map(|(name, value)| (name.clone(), json!(value))).collect();
        labels.extend(strings(&template["metadata"], "labels"));
        if !labels.is_empty() {
            template["metadata"]["labels"] = labels.into();
        }
        if let Some(class) = &self.spec.priority_class_name
            && template["spec"]["priorityClassName"].is_null()
        {
            template["spec"]["priorityClassName"] = json!(class);
        }
        let env: Vec<_> = self.spec.env.iter().flatten().map(|variable| json!(variable)).collect();
        let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
        for main in containers.into_iter().flatten().filter(|of| of["name"] == "main") {
            let own = main["env"].as_array().cloned().unwrap_or_default();
            let mut all = env.clone();
            all.retain(|variable| !own.iter().any(|mine| mine["name"] == variable["name"]));
            all.extend(own);
            if !all.is_empty() {
                main["env"] = all.into();
            }
        }
    }
}

/// Makes a worker one of a generation.
fn give_generation(component: &mut Value, generation: &str) {
    let name = label("dynamo-worker-hash");
    let id = format!("{}-{generation}", component["metadata"]["name"].as_str().unwrap_or_default());
    component["metadata"]["name"] = id.into();
    component["metadata"]["labels"][&name] = generation.into();
    component["spec"]["podTemplate"]["metadata"]["labels"][&name] = generation.into();
}

/// The framework that a component's command names.
pub(crate) fn framework(component: &Value) -> Option<Framework> {
    let containers = component["podTemplate"]["spec"]["containers"].as_array()?;
    let main = containers.iter().find(|container| container["name"] == "main")?;
    let words = [&main["command"], &main["args"]].into_iter().filter_map(Value::as_array).flatten();
    let text: Vec<_> = words.filter_map(Value::as_str).collect();
    let text = text.join(" ");
    FRAMEWORKS.iter().find(|(module, _)| text.contains(module)).map(|(_, framework)| *framework)
}
