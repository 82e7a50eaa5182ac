//! Looks at a cluster for the plan of one document.

use super::store::{
    CLIQUE_SETS, CLIQUES, EARLY_POD_GROUPS, KINDS, LEADER_WORKER_SETS, ObjectStore, POD_GROUPS,
    api_version,
};
use crate::objects::{ClusterApis, label};
use crate::plan::{ClusterView, OWNER, owner_label};
use http::Method;
use serde_json::Value;
use stator_kube::{ApiError, PODS, Query, Resource};

/// Field selector of pods that have no node.
pub(super) const WITHOUT_NODE: &str = "spec.nodeName=";
/// Label by which Grove's objects name their set.
const PART_OF: &str = "app.kubernetes.io/part-of";

impl ObjectStore {
    /// The view of a document. Kinds that are not installed have no objects. Those that somebody else
    /// changed do not say any more what they were set to.
    pub(super) async fn view(&self, document: &Value) -> Result<ClusterView, ApiError> {
        let mut view = ClusterView::default();
        let owner = format!("{OWNER}={}", owner_label(document));
        for (kind, resource) in KINDS {
            let Some(objects) = self.list(kind, resource, &owner, None).await? else { continue };
            note_api(&mut view.apis, resource);
            view.objects.extend(objects.into_iter().map(|mut object| {
                self.forget_edited(&mut object);
                object
            }));
        }
        let sets = view.objects.iter().filter(|object| object["kind"] == "PodCliqueSet");
        for set in sets.filter_map(|set| set["metadata"]["name"].as_str()) {
            for (kind, resource) in CLIQUES {
                let parts = self.list(kind, resource, &format!("{PART_OF}={set}"), None).await?;
                view.cliques.extend(parts.into_iter().flatten());
            }
        }
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let of = match document["kind"] == "DynamoGraphDeployment" {
            true => label("dynamo-graph-deployment-name"),
            false => label("selector"),
        };
        let labels = format!("{of}={name}");
        let waiting = self.list("Pod", PODS, &labels, Some(WITHOUT_NODE)).await?;
        view.waiting = waiting.unwrap_or_default();
        Ok(view)
    }

    /// The objects of a kind; `None` where it is not installed.
    async fn list(
        &self,
        kind: &str,
        resource: Resource,
        labels: &str,
        fields: Option<&str>,
    ) -> Result<Option<Vec<Value>>, ApiError> {
        let query = Query {
            resource,
            namespace: Some(self.namespace.clone()),
            labels: Some(labels.to_owned()),
            fields: fields.map(str::to_owned),
        };
        let answer = match self.api.call(Method::GET, &query.path(&[]), Vec::new()).await {
            Err(ApiError::Absent(_)) => return Ok(None),
            answer => answer?,
        };
        let mut list: Value = serde_json::from_slice(&answer)
            .map_err(|error| ApiError::Malformed(error.to_string()))?;
        let mut items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        for item in &mut items {
            // Items of a list do not say what they are.
            item["apiVersion"] = api_version(&resource).into();
            item["kind"] = kind.into();
        }
        Ok(Some(items))
    }
}

/// Notes that a cluster serves a kind. Of two versions the newer stands first.
fn note_api(apis: &mut ClusterApis, resource: Resource) {
    match resource {
        LEADER_WORKER_SETS => apis.leader_worker_sets = true,
        CLIQUE_SETS => apis.clique_sets = true,
        POD_GROUPS | EARLY_POD_GROUPS => {
            apis.pod_groups = apis.pod_groups.or(Some(resource.version));
        }
        _ => {}
    }
}
