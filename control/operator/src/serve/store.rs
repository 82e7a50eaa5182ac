//! Objects of one namespace in the API server.

use crate::kinds::GROUP;
use crate::plan::{OWNER, ObjectStep};
use http::Method;
use serde_json::{Value, json};
use stator_kube::{Api, ApiError, Query, Resource};

/// Name of the operator among those that change objects.
const MANAGER: &str = "stator-operator";

/// Definitions of kinds.
pub(super) const DEFINITIONS: Resource =
    resource("apiextensions.k8s.io", "v1", "customresourcedefinitions");
/// Graphs.
pub(super) const GRAPHS: Resource = resource(GROUP, "v1beta1", "dynamographdeployments");
/// Requests for graphs.
pub(super) const REQUESTS: Resource = resource(GROUP, "v1beta1", "dynamographdeploymentrequests");
/// Nodes.
const NODES: Resource = resource("", "v1", "nodes");
/// Components.
pub(super) const COMPONENTS: Resource = resource(GROUP, "v1beta1", "dynamocomponentdeployments");

/// Kinds of the objects that the operator makes.
const KINDS: [(&str, Resource); 11] = [
    ("DynamoComponentDeployment", COMPONENTS),
    (
        "DynamoGraphDeploymentScalingAdapter",
        resource(GROUP, "v1beta1", "dynamographdeploymentscalingadapters"),
    ),
    ("Deployment", resource("apps", "v1", "deployments")),
    ("LeaderWorkerSet", resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets")),
    ("Service", resource("", "v1", "services")),
    ("ServiceAccount", resource("", "v1", "serviceaccounts")),
    ("ConfigMap", resource("", "v1", "configmaps")),
    ("PersistentVolumeClaim", resource("", "v1", "persistentvolumeclaims")),
    ("Role", resource("rbac.authorization.k8s.io", "v1", "roles")),
    ("RoleBinding", resource("rbac.authorization.k8s.io", "v1", "rolebindings")),
    ("InferencePool", resource("inference.networking.k8s.io", "v1", "inferencepools")),
];

const fn resource(group: &'static str, version: &'static str, plural: &'static str) -> Resource {
    Resource { group, version, plural }
}

/// The kinds whose changes lead to another plan.
pub(super) fn followed() -> impl Iterator<Item = Resource> {
    KINDS.iter().take(4).map(|(_, resource)| *resource)
}

/// The objects of a namespace.
#[derive(Clone)]
pub(super) struct ObjectStore {
    api: Api,
    pub(super) namespace: String,
}

impl ObjectStore {
    pub(super) fn new(api: Api, namespace: String) -> Self {
        Self { api, namespace }
    }

    /// All objects with an owner's label. Kinds that are not installed have none.
    pub(super) async fn owned(&self, owner: &str) -> Result<Vec<Value>, ApiError> {
        let mut all = Vec::new();
        for (kind, resource) in KINDS {
            let query = Query {
                resource,
                namespace: Some(self.namespace.clone()),
                labels: Some(format!("{OWNER}={owner}")),
                fields: None,
            };
            let answer = match self.api.call(Method::GET, &query.path(&[]), Vec::new()).await {
                Err(ApiError::Absent(_)) => continue,
                answer => answer?,
            };
            let mut list: Value = serde_json::from_slice(&answer)
                .map_err(|error| ApiError::Malformed(error.to_string()))?;
            let version = list["apiVersion"].clone();
            let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
            all.extend(items.into_iter().map(|mut item| {
                // Items of a list do not say what they are.
                item["apiVersion"] = version.clone();
                item["kind"] = kind.into();
                item
            }));
        }
        Ok(all)
    }

    /// Takes a step. What is gone already need not be deleted.
    pub(super) async fn take(&self, step: &ObjectStep) -> Result<(), ApiError> {
        match step {
            ObjectStep::Apply(object) => {
                self.api.apply(&self.path(object), MANAGER, object.to_string().into()).await?;
            }
            ObjectStep::Delete(object) => {
                match self.api.call(Method::DELETE, &self.path(object), Vec::new()).await {
                    Ok(_) | Err(ApiError::Absent(_)) => {}
                    Err(error) => return Err(error),
                }
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

    fn path(&self, object: &Value) -> String {
        let kind = object["kind"].as_str().unwrap_or_default();
        let known = KINDS.iter().find(|(known, _)| *known == kind);
        let document = if kind == "DynamoGraphDeploymentRequest" { REQUESTS } else { GRAPHS };
        let resource = known.map_or(document, |(_, resource)| *resource);
        resource.path_of(&self.namespace, object["metadata"]["name"].as_str().unwrap_or_default())
    }
}

/// An object as a step calls it, for logs.
pub(super) fn called(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}
