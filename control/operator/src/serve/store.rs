//! Objects of one namespace in the API server.

use crate::events::DocumentEvent;
use crate::kinds::GROUP;
use crate::metrics::OperatorMetrics;
use crate::objects::hash_of;
use crate::plan::{APPLIED, ObjectStep, key};
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stator_kube::meta::timestamp;
use stator_kube::{Api, ApiError, Query, Resource};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// Name of the operator among those that change objects.
const MANAGER: &str = "stator-operator";

/// Definitions of kinds.
pub(crate) const DEFINITIONS: Resource =
    resource("apiextensions.k8s.io", "v1", "customresourcedefinitions");
/// Graphs.
pub(super) const GRAPHS: Resource = resource(GROUP, "v1beta1", "dynamographdeployments");
/// Requests for graphs.
pub(super) const REQUESTS: Resource = resource(GROUP, "v1beta1", "dynamographdeploymentrequests");
/// Nodes.
const NODES: Resource = resource("", "v1", "nodes");
/// Components.
pub(super) const COMPONENTS: Resource = resource(GROUP, "v1beta1", "dynamocomponentdeployments");

/// Events.
const EVENTS: Resource = resource("", "v1", "events");

/// Kinds of the objects that the operator makes.
pub(super) const KINDS: [(&str, Resource); 17] = [
    ("DynamoComponentDeployment", COMPONENTS),
    (
        "DynamoGraphDeploymentScalingAdapter",
        resource(GROUP, "v1beta1", "dynamographdeploymentscalingadapters"),
    ),
    ("Deployment", resource("apps", "v1", "deployments")),
    ("LeaderWorkerSet", LEADER_WORKER_SETS),
    ("StatefulSet", resource("apps", "v1", "statefulsets")),
    ("PodGroup", POD_GROUPS),
    ("PodGroup", EARLY_POD_GROUPS),
    ("PodCliqueSet", CLIQUE_SETS),
    ("Service", resource("", "v1", "services")),
    ("ServiceAccount", resource("", "v1", "serviceaccounts")),
    ("ConfigMap", resource("", "v1", "configmaps")),
    ("PersistentVolumeClaim", resource("", "v1", "persistentvolumeclaims")),
    ("Role", resource("rbac.authorization.k8s.io", "v1", "roles")),
    ("RoleBinding", resource("rbac.authorization.k8s.io", "v1", "rolebindings")),
    ("Ingress", resource("networking.k8s.io", "v1", "ingresses")),
    ("PodDisruptionBudget", resource("policy", "v1", "poddisruptionbudgets")),
    ("InferencePool", resource("inference.networking.k8s.io", "v1", "inferencepools")),
];

/// Sets of pods with a leader.
pub(super) const LEADER_WORKER_SETS: Resource =
    resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets");
/// Groups of pods that are bound together or not at all, since Kubernetes 1.37.
pub(super) const POD_GROUPS: Resource = resource("scheduling.k8s.io", "v1beta1", "podgroups");
/// As [`POD_GROUPS`], of Kubernetes 1.36.
pub(super) const EARLY_POD_GROUPS: Resource =
    resource("scheduling.k8s.io", "v1alpha2", "podgroups");
/// Grove's sets of cliques.
pub(super) const CLIQUE_SETS: Resource = resource(GROVE, "v1alpha1", "podcliquesets");
/// Objects that Grove makes of such a set, by which its parts are scaled.
pub(super) const CLIQUES: [(&str, Resource); 2] = [
    ("PodClique", resource(GROVE, "v1alpha1", "podcliques")),
    ("PodCliqueScalingGroup", resource(GROVE, "v1alpha1", "podcliquescalinggroups")),
];
const GROVE: &str = "grove.io";

pub(crate) const fn resource(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
) -> Resource {
    Resource { group, version, plural }
}

/// The kinds whose changes lead to another plan: all that the operator makes, since others may
/// change them.
pub(super) fn followed() -> impl Iterator<Item = Resource> {
    KINDS.iter().map(|(_, resource)| *resource)
}

/// The objects of a namespace. Cheap to clone.
#[derive(Clone)]
pub(super) struct ObjectStore {
    pub(super) api: Api,
    pub(super) namespace: String,
    metrics: OperatorMetrics,
    /// Content of each object after it was set last, by kind and name. One that is not here, or that
    /// has another content since, is set again.
    applied: Arc<Mutex<BTreeMap<(String, String), String>>>,
}

impl ObjectStore {
    pub(super) fn new(api: Api, namespace: String, metrics: OperatorMetrics) -> Self {
        Self { api, namespace, metrics, applied: Arc::default() }
    }

    /// Takes the hash away from an object that is not as it was set.
    pub(super) fn forget_edited(&self, object: &mut Value) {
        let applied = self.applied.lock().get(&key(object)).cloned();
        if applied.as_ref() == Some(&content(object)) {
            return;
        }
        if applied.is_some() {
            let kind = object["kind"].as_str().unwrap_or_default();
            self.metrics.edited(kind, &self.namespace);
            tracing::info!(object = called(object), "somebody else changed it");
        }
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(APPLIED);
        }
    }

    /// Takes a step. What is gone already need not be deleted.
    pub(super) async fn take(&self, step: &ObjectStep) -> Result<(), ApiError> {
        match step {
            ObjectStep::Apply(object) => {
                let body = object.to_string().into();
                let answer = self.api.apply(&self.path(object), MANAGER, body).await?;
                let there: Value = serde_json::from_slice(&answer)
                    .map_err(|error| ApiError::Malformed(error.to_string()))?;
                self.applied.lock().insert(key(object), content(&there));
            }
            ObjectStep::Delete(object) => {
                self.applied.lock().remove(&key(object));
                match self.api.call(Method::DELETE, &self.path(object), Vec::new()).await {
                    Ok(_) | Err(ApiError::Absent(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            ObjectStep::Scale(object, copies) => {
                let path = format!("{}/scale", self.path(object));
                let scale = self.api.call(Method::GET, &path, Vec::new()).await?;
                let mut scale: Value = serde_json::from_slice(&scale)
                    .map_err(|error| ApiError::Malformed(error.to_string()))?;
                scale["spec"]["replicas"] = json!(copies);
                self.api.call(Method::PUT, &path, scale.to_string().into()).await?;
            }
        }
        Ok(())
    }

    /// Reports the state of a document.
    pub(super) async fn report(&self, document: &Value, status: &Value) -> Result<(), ApiError> {
        let metadata = &document["metadata"];
        let body = json!({
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "metadata": { "name": metadata["name"], "namespace": metadata["namespace"] },
            "status": status,
        });
        let path = format!("{}/status", self.path(document));
        self.api.apply(&path, MANAGER, body.to_string().into()).await.map(drop)
    }

    /// Sets annotations of a document.
    pub(super) async fn annotate(
        &self,
        document: &Value,
        annotations: &Value,
    ) -> Result<(), ApiError> {
        let metadata = &document["metadata"];
        let body = json!({
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "annotations": annotations,
            },
        });
        self.api.apply(&self.path(document), MANAGER, body.to_string().into()).await.map(drop)
    }

    /// The cluster's nodes; none where the operator may not see them.
    pub(super) async fn nodes(&self) -> Vec<Value> {
        let query = Query { resource: NODES, namespace: None, labels: None, fields: None };
        let Ok(answer) = self.api.call(Method::GET, &query.path(&[]), Vec::new()).await else {
            return Vec::new();
        };
        let list: Value = serde_json::from_slice(&answer).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Tells of a document's events. One that is not taken is lost: events are no state.
    pub(super) async fn tell(&self, document: &Value, events: &[DocumentEvent]) {
        for event in events {
            let name = format!("{:016x}", rand::random::<u64>());
            let event = event.object(document, &name, &timestamp(SystemTime::now()));
            let path = EVENTS.path(Some(&self.namespace));
            if let Err(error) = self.api.call(Method::POST, &path, event.to_string().into()).await {
                tracing::warn!(%error, "an event is lost");
            }
        }
    }

    fn path(&self, object: &Value) -> String {
        let kind = object["kind"].as_str().unwrap_or_default();
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let is_of = |of: &Resource| version.is_empty() || version == api_version(of);
        let mut all = KINDS.iter().chain(&CLIQUES);
        let known = all.find(|(known, resource)| *known == kind && is_of(resource));
        let document = if kind == "DynamoGraphDeploymentRequest" { REQUESTS } else { GRAPHS };
        let resource = known.map_or(document, |(_, resource)| *resource);
        resource.path_of(&self.namespace, object["metadata"]["name"].as_str().unwrap_or_default())
    }
}

/// Group and version of a kind, as its objects name them.
pub(super) fn api_version(of: &Resource) -> String {
    if of.group.is_empty() { of.version.to_owned() } else { format!("{}/{}", of.group, of.version) }
}

/// Annotations that Kubernetes' own controllers write.
const FOREIGN: [&str; 2] = ["deployment.kubernetes.io/revision", "pv.kubernetes.io/"];

/// Hash of the parts of an object that people write: no status, and none of what servers number.
fn content(object: &Value) -> String {
    let mut content = object.clone();
    let metadata = content["metadata"].take();
    let mut annotations = metadata["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.retain(|name, _| !FOREIGN.iter().any(|start| name.starts_with(start)));
    }
    content["metadata"] = json!({ "labels": metadata["labels"], "annotations": annotations });
    if let Some(content) = content.as_object_mut() {
        content.remove("status");
    }
    hash_of(&content, 32)
}

/// An object as a step calls it, for logs.
pub(super) fn called(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        json!({
            "kind": "Deployment",
            "metadata": {
                "name": "d",
                "resourceVersion": "1",
                "labels": { "a": "b" },
                "annotations": { "deployment.kubernetes.io/revision": "1", APPLIED: "h" },
            },
            "spec": { "replicas": 1 },
            "status": { "replicas": 0 },
        })
    }

    #[test]
    fn the_content_of_an_object_is_what_people_write() {
        let known = content(&deployment());
        let check = |pointer: &str, value: Value, is_same: bool| {
            let mut changed = deployment();
            *changed.pointer_mut(pointer).expect("it is there") = value;
            assert_eq!(content(&changed) == known, is_same, "{pointer}");
        };
        check("/metadata/resourceVersion", json!("2"), true);
        check("/metadata/annotations/deployment.kubernetes.io~1revision", json!("2"), true);
        check("/status/replicas", json!(1), true);
        check("/metadata/labels/a", json!("c"), false);
        check("/spec/replicas", json!(2), false);
    }
}
