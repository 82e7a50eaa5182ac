//! A namespace with an operator in a pod of its own, and the graphs that it makes run.

use serde::Deserialize as _;
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::nodes::{PodCluster, PodSpace};
use stator_tests::process::binary;
use std::convert::Infallible;
use std::process::Command;

const OPERATOR: &str = include_str!("../../manifests/operator/operator.yaml");
const GRAPH: &str = "DynamoGraphDeployment";

/// A namespace with an operator.
pub(crate) struct GraphBed<'a> {
    pub(crate) space: PodSpace<'a>,
}

impl<'a> GraphBed<'a> {
    /// Installs the definitions and the operator, as its manifest has it.
    pub(crate) async fn new(cluster: &'a PodCluster) -> Self {
        Self::with(cluster, &[], &[]).await
    }

    /// The same, with images and models that stand in for those of manifests.
    pub(crate) async fn with(
        cluster: &'a PodCluster,
        images: &[(&str, &str)],
        models: &[(&str, &str)],
    ) -> Self {
        let definitions = Command::new(binary()).args(["operator", "crds"]).output().unwrap();
        for definition in documents(&String::from_utf8(definitions.stdout).unwrap()) {
            cluster.cluster().define(&serde_yaml_ng::to_string(&definition).unwrap()).await;
        }
        let space = cluster.space().await;
        let pairs = |all: &[(&str, &str)]| {
            all.iter().map(|(from, to)| format!("{from}={to}")).collect::<Vec<_>>().join(",")
        };
        for mut object in documents(OPERATOR) {
            if object["kind"] == "Deployment" && !images.is_empty() {
                let operator = &mut object["spec"]["template"]["spec"]["containers"][0];
                let env = operator["env"].as_array_mut().unwrap();
                env.retain(|variable| variable["name"] != "STATOR_IMAGES");
                for (name, all) in [("STATOR_IMAGES", images), ("STATOR_MODELS", models)] {
                    env.push(json!({ "name": name, "value": pairs(all) }));
                }
            }
            space.namespace.apply(object).await;
        }
        Self { space }
    }

    /// Applies a graph, and waits until the operator calls it ready.
    pub(crate) async fn run(&self, graph: &Value) -> Value {
        let applied = self.space.namespace.apply(graph.clone()).await;
        self.ready(&applied).await
    }

    /// Waits until the operator calls this graph, as it was applied, ready.
    pub(crate) async fn ready(&self, applied: &Value) -> Value {
        let name = applied["metadata"]["name"].as_str().unwrap();
        let generation = &applied["metadata"]["generation"];
        let graph = self.space.object("nvidia.com/v1beta1", GRAPH, name);
        let is_ready = |graph: &Value| {
            let ready = &graph["status"]["conditions"][0];
            graph["status"]["observedGeneration"] == *generation && ready["status"] == "True"
        };
        self.space.namespace.api.until(&graph, "a graph that is ready", is_ready).await
    }

    /// A client of a graph's only frontend.
    pub(crate) async fn frontend(&self, graph: &str) -> Client {
        let endpoints = self.space.endpoints(&format!("{graph}-frontend"), 1).await;
        Client::new(endpoints[0])
    }

    /// Waits until a component has this many pods, all of them ready, and returns their names.
    pub(crate) async fn pods(&self, component: &str, number: usize) -> Vec<String> {
        let labels = format!("nvidia.com/dynamo-component={component}");
        let is_ready = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
        };
        let enough = |pods: &[Value]| pods.len() == number && pods.iter().all(is_ready);
        let pods = self.space.pods(&labels, component, enough).await;
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// A request for an answer as it comes, without chance.
pub(crate) fn chat(model: &str, prompt: &str, tokens: u32) -> Value {
    json!({
        "model": model,
        "messages": [{ "role": "user", "content": prompt }],
        "max_tokens": tokens,
        "ignore_eos": true,
        "temperature": 0,
        "stream": true,
    })
}

/// Streams an answer; returns its text.
///
/// # Errors
///
/// Whatever a user would call a failure.
pub(crate) async fn answer(client: &Client, request: &Value) -> Result<String, String> {
    let stream = client.try_stream("/v1/chat/completions", request).await;
    let mut stream = stream.map_err(|broken| format!("no answer: {broken:?}"))?;
    if !stream.response.status().is_success() {
        return Err(format!("status {}: {:?}", stream.response.status(), stream.end().await));
    }
    let (mut text, mut reason) = (String::new(), None);
    loop {
        let Some(event) = stream.next().await else { return Err(format!("ended after {text:?}")) };
        if event == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(&event).map_err(|_| format!("event {event:?}"))?;
        if !event["error"].is_null() {
            return Err(format!("after {text:?}: {event}"));
        }
        let choice = &event["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        reason = choice["finish_reason"].as_str().map(str::to_owned).or(reason);
    }
    match reason.as_deref() {
        Some("length") => Ok(text),
        _ => Err(format!("finish reason {reason:?} after {text:?}")),
    }
}

/// Asks for one answer after another: the load stays until whoever scales and the cluster have come round.
pub(crate) async fn asks_on(client: &Client, prompt: &str, tokens: u32) -> Infallible {
    loop {
        answer(client, &chat("org/model", prompt, tokens)).await.unwrap();
    }
}

/// Documents of YAML.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let documents = documents.map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}
